// How this program was called.
#pragma once

#include <string>
#include <vector>

namespace slackline {

// This program, as the user has called it.
struct Invocation {
  std::string program;                 // Path of its file.
  std::string bin_dir;                 // The folder of it and the others.
  std::vector<std::string> arguments;  // Without the program's name.
};

}  // namespace slackline
