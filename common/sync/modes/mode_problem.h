// Why a mode cannot be.
#pragma once

#include <cstdint>
#include <string>

namespace slackline {

// Bounds of the parameters. They refuse slips of the keyboard.
inline constexpr int64_t kStalenessBoundMax = 1000000;

// A parameter of a mode that cannot be.
struct ModeProblem {
  // A field of the mode's block in the config; empty: there is no such mode.
  std::string field;
  std::string why;  // "value is -1; 0 to 1000000 is required; ..."
};

}  // namespace slackline
