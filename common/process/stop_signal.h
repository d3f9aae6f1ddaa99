// SIGINT and SIGTERM as an ordinary call instead of a handler.
#pragma once

#include <functional>
#include <thread>

namespace slackline {

// Calls `on_signal` with the signal's number on a thread of its own, each time.
// A process has one.
class StopSignal {
 public:
  // Blocks both signals for this thread and all threads made after it; they wait
  // until a StopSignal is there. Call it first in main(), before any thread.
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
