#include "common/keys/live_keys.h"

namespace slackline {
namespace {

bool AreSame(const Credentials& a, const Credentials& b) {
  return a.own.bytes() == b.own.bytes() && a.server == b.server;
}

}  // namespace

LiveKeys::LiveKeys(const KeyPlan& plan, absl::Time now) {
  const bool next_counts = plan.next.has_value() && plan.next_from <= now;
  held_ = std::make_shared<const Held>(
      Held{.credentials = next_counts ? *plan.next : plan.first});
  if (next_counts) return;
  next_ = plan.next;
  if (next_.has_value()) next_from_ = plan.next_from;
}

std::shared_ptr<const LiveKeys::Held> LiveKeys::Get() const {
  const MutexLock lock(mutex_);
  return held_;
}

bool LiveKeys::Adopt(const KeyPlan& plan) {
  const MutexLock lock(mutex_);
  const Credentials& held = held_->credentials;
  if (AreSame(plan.first, held)) {
    next_ = plan.next;
    next_from_ = next_.has_value() ? plan.next_from : absl::InfiniteFuture();
    return true;
  }
  // The file still names the keys first that were exchanged.
  if (plan.next.has_value() && AreSame(*plan.next, held)) return true;
  // The plan before this one has not come to its end here, for all others it
  // has: what follows is taken when it has here, too.
  return next_.has_value() && AreSame(plan.first, *next_);
}

bool LiveKeys::Advance(absl::Time now) {
  const MutexLock lock(mutex_);
  if (!next_.has_value() || now < next_from_) return false;
  const int64_t generation = held_->generation + 1;
  held_ = std::make_shared<const Held>(
      Held{.generation = generation, .credentials = *next_});
  next_.reset();
  next_from_ = absl::InfiniteFuture();
  generation_.store(generation, std::memory_order_release);
  return true;
}

absl::Time LiveKeys::NextFrom() const {
  const MutexLock lock(mutex_);
  return next_from_;
}

}  // namespace slackline
