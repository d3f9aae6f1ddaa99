// What results say about where they come from.
#pragma once

#include <string>

namespace slackline {

struct Machine {
  int cpus = 0;           // That this program may use.
  std::string cpu_model;  // As the system calls it, or "unknown".
  double memory_gib = 0;
};
Machine ThisMachine();

}  // namespace slackline
