#include "tools/cli/signals.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<SignalWatch>> SignalWatch::Create() {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGCHLD}) {
    sigaddset(&watched, signal);
  }
  struct sigaction hangup;
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 &&
      hangup.sa_handler != SIG_IGN) {
    sigaddset(&watched, SIGHUP);
  }
  sigset_t before;
  const int error = pthread_sigmask(SIG_BLOCK, &watched, &before);
  if (error != 0) {
    return absl::InternalError(
        absl::StrCat("blocking signals: ", std::strerror(error)));
  }
  Descriptor signals(signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals.valid()) {
    const absl::Status failed = absl::UnavailableError(
        absl::StrCat("watching signals: ", std::strerror(errno)));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return failed;
  }
  return std::unique_ptr<SignalWatch>(
      new SignalWatch(std::move(signals), before));
}

SignalWatch::~SignalWatch() {
  // What is still pending would otherwise strike now.
  Wait(absl::ZeroDuration());
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

SignalWatch::Requests SignalWatch::Wait(absl::Duration wait_max) {
  pollfd ready = {.fd = signals_.get(), .events = POLLIN, .revents = 0};
  poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(wait_max)));
  Requests requests;
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGINT) {
      ++requests.interrupts;
    } else if (info.ssi_signo == SIGTERM) {
      ++requests.terminations;
    } else if (info.ssi_signo == SIGQUIT) {
      ++requests.quits;
    } else if (info.ssi_signo != SIGCHLD) {
      ++requests.hangups;
    }
  }
  return requests;
}

}  // namespace slackline
