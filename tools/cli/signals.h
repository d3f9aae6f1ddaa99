// The user's wish to stop, as something to wait for instead of a handler.
#pragma once

#include <signal.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/io/descriptor.h"

namespace slackline {

// While it lives, SIGINT, SIGTERM, SIGHUP (unless ignored, as under nohup) and
// SIGCHLD are taken from the thread that made it and from threads that this one
// starts afterwards; make it before any other thread. One at a time.
class SignalWatch {
 public:
  static absl::StatusOr<std::unique_ptr<SignalWatch>> Create();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch();

  // How often somebody has asked to stop since the last call.
  struct Requests {
    int interrupts = 0;    // SIGINT: Ctrl-C.
    int terminations = 0;  // SIGTERM: the process will have to end soon.
    int hangups = 0;       // SIGHUP: the terminal is gone.
    int quits = 0;         // SIGQUIT.
    int all() const { return interrupts + terminations + hangups + quits; }
  };
  // Returns at a signal, at the latest after `wait_max`. Ended children only
  // end the wait.
  Requests Wait(absl::Duration wait_max);

 private:
  SignalWatch(Descriptor signals, const sigset_t& before)
      : signals_(std::move(signals)), before_(before) {}

  const Descriptor signals_;
  const sigset_t before_;
};

}  // namespace slackline
