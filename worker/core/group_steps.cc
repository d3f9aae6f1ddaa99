#include "worker/core/group_steps.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slackline {
namespace {

constexpr int kFailedConnectsMax = 5;
// Attempts that each take longer than this wait for somebody who may have died.
constexpr absl::Duration kQuickConnect = absl::Milliseconds(250);
// Workers hear of a job's end one after the other, and each leaves its group at
// once: a group that is lost may be all that the others notice so far.
constexpr absl::Duration kEndComesWithin = absl::Seconds(1);

}  // namespace

worker_action::Connect GroupSteps::ConnectTo(const View& view, Rank self,
                                             absl::Time now) {
  worker_action::Connect connect{
      .group = view.proto().group(), .ranks = {}, .self = 0};
  for (const wire::WorkerMember& worker : view.workers())
    connect.ranks.push_back(worker.rank());
  std::sort(connect.ranks.begin(), connect.ranks.end());
  connect.self =
      static_cast<int32_t>(std::find(connect.ranks.begin(), connect.ranks.end(),
                                     static_cast<int32_t>(self)) -
                           connect.ranks.begin());
  group_ = connect.group;
  ranks_ = connect.ranks;
  connecting_since_ = now;
  return connect;
}

absl::Status GroupSteps::WhyOver(uint64_t group, const View& view) {
  if (view.proto().group() == group) return absl::OkStatus();
  return absl::UnavailableError("the group of workers has changed");
}

void GroupSteps::OnCaughtUp() {
  own_values_ = false;
  failed_connects_ = 0;
}

bool GroupSteps::OnConnectFailed(absl::Time now, absl::Duration lease) {
  if (++failed_connects_ == 1) failing_since_ = connecting_since_;
  if (failed_connects_ < kFailedConnectsMax) return false;
  const absl::Duration failing = now - failing_since_;
  return failing < failed_connects_ * kQuickConnect || failing > 2 * lease;
}

void GroupSteps::OnComputed(Clock clock, bool again) {
  is_computed_ = true;
  if (again) computed_ = clock;
}

GroupSteps::Culprits GroupSteps::CulpritsOf(const worker_action::Reduced& step,
                                            Clock clock) const {
  Culprits culprits;
  for (const Rank culprit : step.culprits) {
    const auto index = static_cast<size_t>(culprit);
    if (index < ranks_.size()) culprits.workers.push_back(ranks_[index]);
  }
  culprits.what = absl::StrCat("all-reduce at step ", clock);
  if (culprits.workers.empty()) {
    absl::StrAppend(&culprits.what,
                    ": the gradients are finite, and their sum is not");
  } else {
    absl::StrAppend(&culprits.what,
                    ": a NaN or an infinity is in the gradient of worker ",
                    absl::StrJoin(culprits.workers, ", "));
  }
  return culprits;
}

void GroupSteps::OnLost(Clock clock, const absl::Status& why, absl::Time now) {
  loss_ = absl::StrCat("clock ", clock, ": all-reduce failed: ", why.message(),
                       "; connecting anew");
  tell_lost_at_ = now + kEndComesWithin;
}

std::optional<std::string> GroupSteps::TakeLoss() {
  tell_lost_at_ = absl::InfiniteFuture();
  if (loss_.empty()) return std::nullopt;
  return std::exchange(loss_, "");
}

}  // namespace slackline
