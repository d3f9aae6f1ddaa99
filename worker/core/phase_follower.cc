#include "worker/core/phase_follower.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/sync/modes/mode.h"
#include "common/sync/phases.h"

namespace slackline {
namespace {

// Completes "waits for ...".
std::string WantedClock(const wire::ModeChange& change) {
  if (change.has_ending()) return "the clock at which the job ends early";
  if (change.has_cutting()) return "the clock of the checkpoint";
  return absl::StrCat("the clock from which ", ModeText(change.mode()),
                      " holds");
}

}  // namespace

PhaseFollower::PhaseFollower(const Options& options, bool has_model)
    : options_(options), has_model_(has_model), clock_(options.begins_at) {}

std::vector<wire::Call> PhaseFollower::Promise(const View& view) {
  std::vector<wire::Call> calls;
  const wire::View& proto = view.proto();
  if (!proto.has_change() || clock_ < 0 ||
      promised_change_ == proto.change().id()) {
    return calls;
  }
  promised_change_ = proto.change().id();
  limit_ = std::min(clock_ + kStepLimitAhead, EndOf(proto));
  wire::StepLimit& limit = *calls.emplace_back().mutable_step_limit();
  limit.set_change(promised_change_);
  limit.set_clock(limit_);
  return calls;
}

PhaseFollower::Decision PhaseFollower::Next(const View& view, Clock clock) {
  const wire::View& proto = view.proto();
  clock_ = clock;
  Decision decision;
  decision.calls = Promise(view);
  const auto decide = [&](Do what, std::string waiting_for = "") {
    decision.what = what;
    decision.waiting_for = std::move(waiting_for);
    return decision;
  };
  const bool all_steps = clock == EndOf(proto);
  // Nothing begins at the end of the job.
  const bool stays_with_workers =
      clock >= 0 && !all_steps && WorkersHaveModel(StepAt(proto, clock));
  if (has_model_) {
    const bool leaves = clock >= 0 && !stays_with_workers;
    if (leaves && proto.arrived() >= clock)
      return decide(all_steps ? Do::kFinish : Do::kGiveState);
    if (group_ != proto.group()) {
      group_ = 0;  // Whatever fails from here on is of the view's group.
      return proto.group() == lost_group_
                 ? decide(Do::kWait, "the coordinator to name a new group")
                 : decide(Do::kConnect);
    }
    if (leaves) {
      if (arrived_ != clock) {
        arrived_ = clock;
        decision.calls.emplace_back().mutable_arrive()->set_clock(clock);
      }
      return decide(Do::kWait,
                    absl::StrCat("all workers to complete step ", clock));
    }
  } else if (all_steps) {
    return decide(Do::kFinish);
  }
  if (proto.has_change() && clock >= limit_)
    return decide(Do::kWait, WantedClock(proto.change()));
  if (!has_model_ && stays_with_workers) return decide(Do::kTakeState);
  if (const Clock from = PhaseAt(proto, clock).from(); from != entered_) {
    entered_ = from;
    decision.calls.emplace_back().mutable_entered()->set_from(from);
  }
  decision.step = StepAt(proto, clock);
  return decide(Do::kStep);
}

Clock PhaseFollower::SkipLimit(const View& view, Clock clock) const {
  const wire::View& proto = view.proto();
  Clock limit = EndOf(proto);
  if (const wire::Phase* const after = PhaseAfter(proto, clock))
    limit = std::min<Clock>(limit, after->from());
  // It has promised to stop there.
  if (proto.has_change() && promised_change_ == proto.change().id())
    limit = std::min(limit, limit_);
  return std::max(limit, clock);
}

void PhaseFollower::TookState() {
  has_model_ = true;
  given_.clear();
}

wire::Call PhaseFollower::ConnectionLost(uint64_t group) {
  group_ = 0;
  lost_group_ = group;
  wire::Call call;
  call.mutable_regroup()->set_group(group);
  return call;
}

std::vector<ShardId> PhaseFollower::Share(const View& view) {
  std::vector<int32_t> ranks;
  for (const wire::WorkerMember& worker : view.workers())
    ranks.push_back(worker.rank());
  std::sort(ranks.begin(), ranks.end());
  const auto self = std::find(ranks.begin(), ranks.end(),
                              static_cast<int32_t>(options_.rank));
  std::vector<ShardId> share;
  if (self == ranks.end()) return share;
  given_.resize(static_cast<size_t>(view.shard_count()), false);
  for (size_t shard = self - ranks.begin(); shard < given_.size();
       shard += ranks.size()) {
    if (given_[shard]) continue;
    given_[shard] = true;
    share.push_back(ShardId{static_cast<int32_t>(shard)});
  }
  return share;
}

void PhaseFollower::GaveState() {
  has_model_ = false;
  group_ = 0;
}

bool JoinsWorkersWithModel(const View& view) {
  const wire::View& proto = view.proto();
  const int index = proto.entered();
  if (!WorkersHaveModel(FirstStepOf(proto.phase(index)))) return false;
  // Whoever has left the phase by now has left it for good.
  return index + 1 == proto.phase_size() ||
         proto.arrived() < proto.phase(index + 1).from();
}

}  // namespace slackline
