#include "tests/sim/check/failover_twin.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/check/bits.h"
#include "tests/sim/check/twin_log.h"

namespace slackline::sim {

void FailoverTwin::OnPromoted(Owner owner, int32_t id, const View& view,
                              const ShardMachine& machine) {
  int32_t of = id;
  const auto origin_of = [&](int32_t shard) {
    return static_cast<int32_t>(view.OriginOf(ShardId{shard}));
  };
  while (shards_.twins().count(of) == 0 && origin_of(of) != of)
    of = origin_of(of);
  if (shards_.twins().count(of) == 0) {  // Nobody has ever served it.
    shards_.CreateTwin(id, view);
    ShardTwin& twin = shards_.twins().at(id);
    twin.owner = twin.last_owner = owner;
    twin.promoted_in = view.number();
    // The copy may have seen the founders go, one after the other: then it
    // stays where the last of them was.
    twin.min_clock = std::clamp(machine.participants().MinClock(),
                                twin.min_clock, resume_.Beginnings().second);
    UpdateMinClock(twin);
    return;
  }
  const ShardTwin& present = shards_.twins().at(of);
  const std::string who =
      absl::StrCat(Name(owner), " begins to serve ",
                   view.ShardName(ShardId{id}), " by view ", view.number());
  // Of a shard that it cuts in two, it may have begun to serve the rest.
  if (of == id && present.owner.has_value() && *present.owner != owner &&
      !Deposes(view, of, *present.owner)) {
    findings_.Report(
        Invariant::kOwnership,
        absl::StrCat(who, "; it is served by ", Name(*present.owner)));
  }
  // What it had, perhaps before the shard was split off.
  const std::map<int32_t, HeldCopy>& had = copies_.CopiesOf(owner);
  auto copy = had.find(id);
  for (int32_t from = id; copy == had.end() && origin_of(from) != from;) {
    from = origin_of(from);
    copy = had.find(from);
  }
  std::shared_ptr<const ShardTwin> was;
  uint64_t index = 0;
  if (copy != had.end()) {
    index = copy->second.at.index;
    was = TwinAt(present, copy->second.range, copy->second.at);
    if (const auto& from = copy->second.cut_from;
        was == nullptr && from.has_value()) {
      index = from->second.index;
      was = TwinAt(present, from->first, from->second);
    }
    // Perhaps without founders that had died before its first view.
    if (was == nullptr && index == 0) was = AtFirst(present);
    if (was == nullptr) {
      was = CutOnTheWay(present, view, copy->second.range, copy->second.at);
      if (was != nullptr) index = was->index;
    }
    if (was == nullptr && HasFollowedTheReplaced(present, copy->second.at)) {
      findings_.JudgeNoMore();
      return;
    }
    if (was == nullptr) {
      findings_.Report(Invariant::kCopies,
                       absl::StrCat(who, " at ", Name(copy->second.at),
                                    ", where its log has never been"));
    }
  } else if (shards_.threads().at(owner).first_view == view.number()) {
    was = AtFirst(present);
  } else {
    findings_.Report(Invariant::kCopies,
                     absl::StrCat(who, ", and has no copy of it"));
  }
  if (was == nullptr) was = std::make_shared<const ShardTwin>(present);
  ShardTwin next = *was;
  Rewind(next, index);
  const int32_t first = view.shard_count() - view.proto().split_size();
  for (int i = 0; i < view.proto().split_size(); ++i) {
    const wire::Split& split = view.proto().split(i);
    if (ShardId{split.shard()} != next.range.shard ||
        !next.range.region.CanBeSplit(split.at())) {
      continue;
    }
    ShardTwin rest = SplitTwin(view, split, first + i, &next);
    if (view.shard(ShardId{id}).region.begin() >= split.at())
      next = std::move(rest);
  }
  ++findings_.stats().failovers;
  findings_.stats().row_failovers += scenario_.HasRows(next.range.table);
  findings_.stats().failovers_apart += was->index != present.index;
  findings_.stats().failovers_behind += index < present.index;
  findings_.stats().records_lost +=
      static_cast<int64_t>(present.index) -
      static_cast<int64_t>(std::min(index, present.index));
  next.earlier = present.earlier;
  next.earlier.push_back(std::make_shared<const ShardTwin>(present));
  next.failovers = present.failovers + 1;
  next.promoted_in = view.number();
  next.told = present.told;
  next.cut_done = next.cut_before_failover = present.cut_done;
  next.newest_view = present.newest_view;
  next.leads.clear();
  next.owner = next.last_owner = owner;
  pulls_.ForgetAnswersAfter(id, index);
  CheckTold(next, who);
  if (of != id) pulls_.InheritSeen(of, id);
  shards_.twins()[id] = std::move(next);
}

void FailoverTwin::CheckTold(const ShardTwin& twin, const std::string& who) {
  const auto lost = [&](const std::string& what) {
    findings_.Report(
        Invariant::kCopies,
        absl::StrCat(who, ": an answer was lost in a failover: ", what));
  };
  const Told& told = twin.told;
  for (const auto& [life, seq] : told.accepted_seq) {
    const auto found = twin.participants.find(life);
    const uint64_t taken =
        found == twin.participants.end() ? 0 : found->second.next_seq - 1;
    if (taken < seq) {
      lost(absl::StrCat("push ", seq, " of ", Name(life.first, life.second),
                        " was acknowledged, and ", taken, " are here"));
    }
  }
  for (const auto& [life, clock] : told.joined_at) {
    const auto found = twin.participants.find(life);
    if (found == twin.participants.end() || found->second.joined_at != clock) {
      lost(absl::StrCat(Name(life.first, life.second),
                        " was told that it takes part from clock ", clock));
    }
  }
  const Version version = twin.versions.size() - 1;
  if (told.version > version || told.complete > twin.complete) {
    lost(absl::StrCat("somebody has version ", told.version, " of clock ",
                      told.complete, "; here are ", version, " and ",
                      twin.complete));
  }
}

void FailoverTwin::OnTraceOfDeposed(const ShardTraceRecord& record,
                                    const ShardCore& core) {
  // It may tell what all have, and does not know what has come since.
  const ShardMachine* const machine = core.MachineOf(record.shard);
  if (machine == nullptr ||
      record.kind != ShardTraceRecord::Kind::kPullAnswered) {
    return;
  }
  const auto id = static_cast<int32_t>(record.shard);
  const LogPosition at = {.term = machine->position().term,
                          .index = record.index};
  PullIntent* const pull =
      pulls_.Find({record.rank, record.incarnation}, record.request_id);
  if (pull != nullptr && IsOnLine(shards_.twins().at(id), at))
    pull->answered[id].emplace(record.version, record.index);
}

}  // namespace slackline::sim
