#include "common/net/poller.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

using SteadyClock = std::chrono::steady_clock;

// What a wake-up from sleep adds to the time that a wait seems to have taken.
constexpr absl::Duration kWakeCost = absl::Microseconds(50);
// Shorter spins find nothing and are not worth a system call.
constexpr absl::Duration kSpinMin = absl::Microseconds(4);

}  // namespace

Waker::Waker() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  SL_CHECK(event_ >= 0, absl::StrCat("eventfd: ", std::strerror(errno)));
}

Waker::~Waker() { close(event_); }

void Waker::Wake() {
  if (pending_.exchange(true, std::memory_order_acq_rel)) return;
  const uint64_t one = 1;
  const ssize_t written = write(event_, &one, sizeof(one));
  SL_CHECK(written == sizeof(one), "eventfd is broken");
}

void Waker::Drain() {
  if (!pending_.load(std::memory_order_acquire)) return;
  // In this order: a Wake() between the two writes nothing, but what it
  // announces is seen after Drain(). The other way round its write would be
  // read away while pending_ stays set, and no later wake would get through.
  uint64_t count = 0;
  const ssize_t ignored = read(event_, &count, sizeof(count));
  static_cast<void>(ignored);
  pending_.exchange(false, std::memory_order_acq_rel);
}

Poller::Poller(const Options& options)
    : options_(options), spin_(options.spin_max) {}
Poller::~Poller() = default;

void Poller::Add(Waitable& waitable) {
  waitables_.push_back(&waitable);
  for (const int descriptor : waitable.Descriptors())
    descriptors_.push_back({descriptor, POLLIN, 0});
}

void Poller::Remove(const Waitable& waitable) {
  std::erase(waitables_, &waitable);
  for (const int descriptor : waitable.Descriptors()) {
    std::erase_if(descriptors_,
                  [=](const pollfd& entry) { return entry.fd == descriptor; });
  }
}

absl::Status Poller::Wait(absl::Duration wait_max) {
  // A time that is over by now, on a machine that was busy.
  wait_max = std::max(wait_max, absl::ZeroDuration());
  for (Waitable* const waitable : waitables_) {
    SL_ASSIGN_OR_RETURN(const absl::Duration may_wait, waitable->WaitMax());
    if (may_wait <= absl::ZeroDuration()) return absl::OkStatus();
    wait_max = std::min(wait_max, may_wait);
  }
  if (options_.spin_max == absl::ZeroDuration()) {
    return Look(wait_max).status();
  }
  const auto start = SteadyClock::now();
  const auto waited = [&] {
    return absl::FromChrono(SteadyClock::now() - start);
  };
  bool found = false;
  const absl::Duration spin = std::min(spin_, wait_max);
  while (!found && spin >= kSpinMin && waited() < spin) {
    SL_ASSIGN_OR_RETURN(found, Look(absl::ZeroDuration()));
  }
  if (!found) {
    SL_ASSIGN_OR_RETURN(
        found, Look(std::max(wait_max - waited(), absl::ZeroDuration())));
  }
  // A spin pays if messages come within it; judged by this wait, also if it
  // slept, less what waking up took. Otherwise it only takes time from threads
  // that have work.
  const bool soon = found && waited() < options_.spin_max + kWakeCost;
  spin_ = soon ? std::min(options_.spin_max, std::max(kSpinMin, spin_ * 2))
               : spin_ / 2;
  return absl::OkStatus();
}

absl::StatusOr<bool> Poller::Look(absl::Duration wait_max) {
  const timespec timeout = absl::ToTimespec(wait_max);
  const int ready =
      ppoll(descriptors_.data(), descriptors_.size(),
            wait_max == absl::InfiniteDuration() ? nullptr : &timeout, nullptr);
  if (ready < 0 && errno != EINTR) {
    return absl::UnavailableError(
        absl::StrCat("wait: poll: ", std::strerror(errno)));
  }
  return ready != 0;  // A signal also ends the wait.
}

}  // namespace slackline
