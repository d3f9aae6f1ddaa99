#include "server/shard/shard_parts.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "server/shard/feed_sender.h"
#include "server/shard/request_desk.h"
#include "server/shard/thread_cut.h"

namespace slackline {

ServedShard::Call ShardParts::NewCall() const {
  done.Clear();
  return {.now = now,
          .end = EndOf(view->proto()),
          .counts = counts,
          .effects = done};
}

void ShardParts::Settle(ServedShard& served) const {
  const ShardId shard = served.range().shard;
  if (!done.failure.ok()) return Fail("go on with", shard, done.failure);
  if (!done.cut_lost.ok()) cut.Fail(shard, done.cut_lost, *this);
  if (done.at_cut.has_value()) cut.Add(*std::move(done.at_cut), *this);
  if (done.logged) {
    if (LogFeed* const feed = served.move_feed()) feeds.Pump(*feed, *this);
    if (!served.followers().empty()) places.PumpSoon(shard);
  }
  std::move(done.trace.begin(), done.trace.end(),
            std::back_inserter(effects.trace));
  effects.work.insert(effects.work.end(), done.work.begin(), done.work.end());
  effects.report |= done.report;
  for (const ServedShard::Answer& answer : done.answers)
    desk.Answer(shard, answer, now);
  if (done.still_parked.has_value()) desk.Remind(shard, *done.still_parked);
}

const wire::Follower* ShardParts::ListedHere(ShardId shard) const {
  for (const wire::Follower& follower : view->FollowersOf(shard)) {
    if (Owner{follower.server(), follower.thread()} == options.self)
      return &follower;
  }
  return nullptr;
}

void ShardParts::RemoveStrangers(ServedShard& served) const {
  LeaveRecord leave;
  for (const Participant& participant : served.machine().participants()) {
    if (view->FindWorker(participant.rank, participant.incarnation) == nullptr)
      leave.incarnations.push_back(participant.incarnation);
  }
  served.Leave(std::move(leave), NewCall());
  Settle(served);
}

void ShardParts::Fail(absl::string_view what, ShardId shard,
                      const absl::Status& why) const {
  failed = true;
  effects.failure = Annotate(
      why, absl::StrCat("cannot ", what, " shard ", view->ShardName(shard)));
}

void ShardParts::Sign(wire::Header* header) const {
  if (view == nullptr) return;
  header->set_view_number(view->number());
  header->set_run(view->proto().run());
}

}  // namespace slackline
