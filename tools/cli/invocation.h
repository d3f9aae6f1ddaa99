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
  // What stands after the first "--": a program for the job's workers, and its
  // arguments. Empty: there is no "--".
  std::vector<std::string> worker_command;
  std::string
      user_key;  // The user's key file; empty: there is no home for one.
};

}  // namespace slackline
