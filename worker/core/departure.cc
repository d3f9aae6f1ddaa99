#include "worker/core/departure.h"

#include <algorithm>
#include <utility>

namespace slackline {
namespace {

// How long who leaves waits for the coordinator to hear of it.
constexpr absl::Duration kLeaveWaitMax = absl::Seconds(2);
// The coordinator is asked for a verdict, and for the job's end, for so many
// leases.
constexpr int kVerdictLeases = 2;

}  // namespace

bool Departure::SuspendWhenJoined(const std::string& reason, absl::Time now) {
  if (!suspends_when_joined_.empty()) return false;
  suspends_when_joined_ = reason;
  give_up_joining_at_ = now + kSuspendJoinMax;
  return true;
}

std::string Departure::OnJoined() {
  give_up_joining_at_ = absl::InfiniteFuture();
  return std::exchange(suspends_when_joined_, {});
}

bool Departure::GivesUpJoining(absl::Time now) const {
  return now >= give_up_joining_at_;
}

bool Departure::OnFenced(absl::Time now, absl::Duration lease) {
  if (fenced_until_ != absl::InfiniteFuture()) return false;
  fenced_until_ = now + lease * kVerdictLeases;
  return true;
}

void Departure::OnLeaving(uint64_t call, absl::Time now) {
  leave_call_ = call;
  give_up_leaving_at_ = now + kLeaveWaitMax;
}

void Departure::OnStopping(absl::Time now, absl::Duration lease) {
  give_up_leaving_at_ = now + lease * kVerdictLeases;
}

bool Departure::OnAnswer(uint64_t call) {
  if (leave_call_ == 0 || call != leave_call_) return false;
  leave_call_ = 0;
  return true;
}

void Departure::OnMissed(absl::Duration missed) {
  fenced_until_ += missed;  // What is InfiniteFuture stays so.
  give_up_leaving_at_ += missed;
  give_up_joining_at_ += missed;
}

absl::Time Departure::NextWakeup(bool leaving) const {
  const absl::Time next = std::min(fenced_until_, give_up_joining_at_);
  return leaving ? std::min(next, give_up_leaving_at_) : next;
}

}  // namespace slackline
