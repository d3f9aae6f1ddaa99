#include "server/shard/shard_calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/sync/phases.h"
#include "server/shard/feed_sender.h"
#include "server/shard/thread_cut.h"

namespace slackline {

void CallShard(
    ShardId shard, const ShardParts& at,
    absl::FunctionRef<void(ServedShard&, const ServedShard::Call&)> act) {
  ServedShard::Effects& done = at.done;
  done.Clear();
  const ShardPlaces::Called called = at.places.Call(shard);
  bool logged = false;
  const auto log = [&](const ShardRecord& record, const ShardOutcome& outcome) {
    logged = true;
    at.places.OnRecord(called, record, outcome, at.now);
  };
  act(called.shard(), {.now = at.now,
                       .end = EndOf(at.view->proto()),
                       .sums = !called.feeds().followers().empty(),
                       .log = log,
                       .counts = at.counts,
                       .effects = done});
  if (!done.failure.ok()) return at.Fail("go on with", shard, done.failure);
  if (!done.cut_lost.ok()) at.cut.Fail(shard, done.cut_lost, at);
  if (done.at_cut.has_value()) at.cut.Add(*std::move(done.at_cut), at);
  if (logged && called.feeds().move_feed() != nullptr)
    at.feeds.Pump(*at.places.MoveFeed(shard), at);
  std::move(done.trace.begin(), done.trace.end(),
            std::back_inserter(at.effects.trace));
  at.effects.work.insert(at.effects.work.end(), done.work.begin(),
                         done.work.end());
  at.effects.report |= done.report;
  for (const ServedShard::Answer& answer : done.answers)
    at.replies.Answer(shard, answer, at.now);
  if (done.still_parked.has_value())
    at.replies.Remind(shard, *done.still_parked);
}

void RemoveStrangers(ShardId shard, const ShardParts& at) {
  LeaveRecord leave;
  for (const Participant& participant :
       at.places.Served(shard)->machine().participants()) {
    if (at.view->FindWorker(participant.rank, participant.incarnation) ==
        nullptr) {
      leave.incarnations.push_back(participant.incarnation);
    }
  }
  CallShard(shard, at, [&](ServedShard& served, const ServedShard::Call& call) {
    served.Leave(std::move(leave), call);
  });
}

}  // namespace slackline
