// SIGINT and SIGTERM as an ordinary call on a thread of its own.
#pragma once

#include <functional>
#include <thread>

namespace slackline {

// Calls `on_signal` with the signal's number on a thread of its own, each time.
// A process has one.
class StopSignal {
 public:
  // Blocks both signals, so that they wait until a StopSignal is there: at once
  // for this thread and all threads made after it, and for threads that
  // libraries have made already when a signal reaches them. Call it first in
  // main().
  static void Block();

  explicit StopSignal(std::function<void(int signal)> on_signal);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

 private:
  int quit_event_;
  std::thread thread_;
};

}  // namespace slackline
