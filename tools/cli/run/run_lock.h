// Whether a `slackline run` follows the run in a folder: it holds a lock as
// long as it lives, and the kernel takes that back at its end, whatever that
// is.
#pragma once

#include <string>
#include <utility>

#include "tools/cli/file_descriptor.h"

namespace slackline {

class RunLock {
 public:
  // Of the config that `slackline run` has just written into the folder of its
  // run. Where files cannot be locked there is none, which is no error: nobody
  // else knows then whether it lives.
  static RunLock Take(const std::string& cluster_file);

  enum class Holder {
    kUnknown,  // Files cannot be locked, or no `slackline run` has begun it.
    kLives,
    kGone,
  };
  // Who asks holds it for some microseconds, so Take() tries more than once.
  static Holder HolderOf(const std::string& cluster_file);

 private:
  explicit RunLock(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

// What a config begins with that `slackline run` has written.
inline constexpr char kWrittenByRun[] = "# Written by `slackline run` from ";

}  // namespace slackline
