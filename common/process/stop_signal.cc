#include "common/process/stop_signal.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <utility>

#include "common/status.h"
#include "common/thread_name.h"

namespace slackline {

namespace {

// A large allocation hears of its end node by node.
constexpr absl::Duration kSameFor = absl::Seconds(10);

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  return signals;
}

// Runs on a thread that does not block the signals: blocks them from the return
// on, and gives the signal back to the process, where it stays pending once all
// such threads had it.
void BlockHereAndGiveBack(int signal, siginfo_t*, void* context) {
  sigset_t& blocked = static_cast<ucontext_t*>(context)->uc_sigmask;
  sigaddset(&blocked, SIGINT);
  sigaddset(&blocked, SIGTERM);
  sigaddset(&blocked, SIGHUP);
  kill(getpid(), signal);
}

}  // namespace

SignalWish SignalWishes::Of(int signal, absl::Time now) {
  const bool first = std::exchange(first_, false);
  if (signal == SIGHUP && !first) return SignalWish::kNothing;
  if (signal == SIGTERM && now < same_until_) return SignalWish::kNothing;
  const bool may_suspend = std::exchange(may_suspend_, false);
  if (!may_suspend || signal == SIGINT) return SignalWish::kEnd;
  if (signal == SIGTERM && options_.by_slurm) same_until_ = now + kSameFor;
  return SignalWish::kSuspend;
}

SignalWishes WishesOfSignals(const config::ClusterConfig& config) {
  return SignalWishes({.with_checkpoints = config.has_checkpoint(),
                       .by_slurm = config.launch().has_slurm()});
}

void StopSignal::Block() {
  const sigset_t signals = StopSignals();
  SL_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0,
           "cannot block signals");
  // OpenBLAS starts threads when it is loaded, before main().
  struct sigaction action = {};
  action.sa_sigaction = BlockHereAndGiveBack;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  action.sa_mask = signals;
  SL_CHECK(sigaction(SIGINT, &action, nullptr) == 0 &&
               sigaction(SIGTERM, &action, nullptr) == 0,
           "cannot handle signals");
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
    SL_CHECK(sigaction(SIGHUP, &action, nullptr) == 0, "cannot handle SIGHUP");
}

StopSignal::StopSignal(std::function<void(int signal)> on_signal) {
  const sigset_t signals = StopSignals();
  const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  quit_event_ = eventfd(0, EFD_CLOEXEC);
  SL_CHECK(signal_fd >= 0 && quit_event_ >= 0,
           "no file descriptors left for signals");
  thread_ = std::thread(
      [signal_fd, quit = quit_event_, on_signal = std::move(on_signal)] {
        NameThisThread("signals");
        pollfd watched[2] = {{signal_fd, POLLIN, 0}, {quit, POLLIN, 0}};
        while (true) {
          if (poll(watched, 2, -1) < 0) continue;
          if (watched[1].revents != 0) break;
          signalfd_siginfo info;
          if (read(signal_fd, &info, sizeof(info)) == sizeof(info)) {
            on_signal(static_cast<int>(info.ssi_signo));
          }
        }
        close(signal_fd);
      });
}

StopSignal::~StopSignal() {
  const uint64_t one = 1;
  (void)!write(quit_event_, &one, sizeof(one));
  thread_.join();
  close(quit_event_);
}

}  // namespace slackline
