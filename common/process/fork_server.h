// A program that has loaded its libraries makes processes of itself on request:
// to load the 300 of LibTorch takes most of a second of a core, and whoever
// starts several workers on a host pays for that once.
//
// What is made has all that a program has that was started: arguments, log,
// process group, signal handling, a command line in /proc, and whoever started
// the fork server as its parent, with whom it dies.
#pragma once

#include <string>
#include <vector>

namespace slackline {

// The first argument of a fork server. All others are kPadding, which makes
// room for the command lines of its processes.
inline constexpr char kForkServerFlag[] = "--fork-server";
inline constexpr size_t kForkServerPadding = 4096;

// A request is one message over the socket that is a fork server's stdin
// (SOCK_SEQPACKET): the command, each word with a NUL behind it, and two file
// descriptors, for the output of the process, and for its number, a pid_t. That
// one is closed without a word if there is no process.
inline constexpr size_t kForkRequestBytesMax = 64 << 10;

// The arguments of main(), or of the process that it has become.
class ForkServerArguments {
 public:
  // If `argv` is that of a fork server, serves until its socket is closed, and
  // ends the process then. Returns in each process that it makes, with the
  // arguments of that. To be called first in main(), before there are threads.
  ForkServerArguments(int argc, char** argv);

  int argc() const { return argc_; }
  char** argv() { return argv_; }

 private:
  int argc_;
  char** argv_;
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

}  // namespace slackline
