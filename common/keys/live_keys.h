// LiveKeys: the keys of a process that runs, which are exchanged for others at
// a time that all processes of its job know beforehand. Nobody holds two keys
// at once: before that time everybody uses the old ones, from it on the new
// ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/keys/credentials.h"
#include "common/mutex.h"

namespace slackline {

// Thread-safe.
class LiveKeys {
 public:
  // One generation of keys; the first has number 0.
  struct Held {
    int64_t generation = 0;
    Credentials credentials;
  };

  // As the plan says at `now`.
  LiveKeys(const KeyPlan& plan, absl::Time now);
  explicit LiveKeys(const Credentials& credentials)
      : LiveKeys({.first = credentials}, absl::InfinitePast()) {}

  std::shared_ptr<const Held> Get() const;
  // Of Get(); costs next to nothing.
  int64_t generation() const {
    return generation_.load(std::memory_order_acquire);
  }

  // What the place of the keys says now. A plan counts that begins with the
  // keys that are held, or with those that follow them. Another one has no time
  // from which on it would count for all: false, and nothing changes.
  bool Adopt(const KeyPlan& plan);
  // Goes over to the next keys when their time has come. True if it has.
  bool Advance(absl::Time now);
  // When Advance() has something to do; infinite: nothing is planned.
  absl::Time NextFrom() const;

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const Held> held_ ABSL_GUARDED_BY(mutex_);
  std::optional<Credentials> next_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_from_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::atomic<int64_t> generation_{0};  // Of held_.
};

}  // namespace slackline
