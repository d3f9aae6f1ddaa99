// A mutex that clang's analysis of threads understands: members that it guards
// say so with ABSL_GUARDED_BY, and the preset asan refuses an access without
// the lock. g++ ignores all of it.
//
// std::mutex has no such annotations in GNU's library. absl::Mutex has them,
// but its waits with a deadline run on the time of day in the versions that
// distributions have: a clock that is set would end them, or make them endless.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace slackline {

// The end of a wait of so long that begins now; at most about 100 years away,
// which is as far as the clock counts.
inline std::chrono::steady_clock::time_point SteadyDeadline(
    absl::Duration wait_max) {
  constexpr absl::Duration kWaitMax = absl::Hours(24 * 365 * 100);
  return std::chrono::steady_clock::now() +
         absl::ToChronoNanoseconds(std::min(wait_max, kWaitMax));
}

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  friend class MutexRelease;
  std::mutex mutex_;
};

// Holds a mutex from its construction to its end, but for Wait() and between
// Unlock() and Lock(). Of one thread.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : lock_(mutex.mutex_) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() ABSL_UNLOCK_FUNCTION() { lock_.unlock(); }
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { lock_.lock(); }

  // Let go of the mutex until `changed` is notified, or for no reason: call
  // them in a loop that looks at what is waited for.
  void Wait(std::condition_variable& changed) { changed.wait(lock_); }
  // False at the deadline.
  bool WaitUntil(std::condition_variable& changed,
                 std::chrono::steady_clock::time_point deadline) {
    return changed.wait_until(lock_, deadline) == std::cv_status::no_timeout;
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

// Of Abseil's annotations none says that an object lets go of what is held
// exclusively, and takes it again at its end.
#if defined(__clang__)
#define SLACKLINE_RELEASES(...) __attribute__((release_capability(__VA_ARGS__)))
#else
#define SLACKLINE_RELEASES(...)
#endif

// Lets go of a mutex that its thread holds by a MutexLock, from its
// construction to its end.
class ABSL_SCOPED_LOCKABLE MutexRelease {
 public:
  explicit MutexRelease(Mutex& mutex) SLACKLINE_RELEASES(mutex)
      : mutex_(mutex) {
    mutex_.mutex_.unlock();
  }
  ~MutexRelease() SLACKLINE_RELEASES() { mutex_.mutex_.lock(); }
  MutexRelease(const MutexRelease&) = delete;
  MutexRelease& operator=(const MutexRelease&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace slackline
