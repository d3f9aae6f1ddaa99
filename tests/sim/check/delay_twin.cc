#include "tests/sim/check/delay_twin.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/staleness.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {

void DelayTwin::OnGivenPush(ShardTwin& twin, const Life& life,
                            TwinParticipant& participant,
                            const ShardTraceRecord& record,
                            const std::string& who, Owner owner) {
  if (record.clock != participant.clock) {
    return findings_.Report(
        record.clock < participant.clock ? Invariant::kExactlyOnce
                                         : Invariant::kOrder,
        absl::StrCat(who, ", its next one is ", participant.clock));
  }
  const size_t turns = turns_.TurnsBefore(twin, record.rank, record.clock);
  if (turns >= twin.after_turns.size() ||
      twin.after_turns[turns] != record.version) {
    return findings_.Report(
        Invariant::kVersionOrder,
        absl::StrCat(who, ", computed from version ", record.version,
                     ", not from that after ", turns, " turns"));
  }
  const int64_t newest = static_cast<int64_t>(twin.versions.size()) - 1;
  findings_.stats().bases_missed +=
      static_cast<int64_t>(record.version) < newest;
  ++participant.clock;
  ++participant.next_seq;
  if (turns_.HasTurn(twin, record.rank, record.clock)) {
    twin.waiting.insert({record.clock, record.rank});
  } else {
    ++findings_.stats().dropped;
    twin.without_effect.insert({.life = life, .clock = record.clock});
  }
  UpdateMinClock(twin);
  PassTurnsWithoutEffect(twin, owner);
}

bool DelayTwin::JudgeTurn(ShardTwin& twin, const DelayTrace::Update& turn,
                          Owner owner) {
  ThreadTwin& thread = shards_.threads()[owner];
  const auto newest = static_cast<int64_t>(twin.versions.size()) - 1;
  twin.gradient_factor = 1;
  twin.rate_factor = 1;
  bool applied = true;
  for (const int32_t rank : turn.ranks) {
    const size_t turns = turns_.TurnsBefore(twin, Rank{rank}, turn.clock);
    const int64_t missed =
        newest - static_cast<int64_t>(twin.after_turns[turns]);
    const bool mean = scenario_.delays.IsMean(turn);
    applied = mean || shards_.JudgeStale(twin, missed, turn.workers);
    if (applied)
      CountMissed(missed, mean ? 1 : turn.workers, &thread.staleness);
  }
  return applied;
}

void DelayTwin::PassTurnsWithoutEffect(ShardTwin& twin, Owner owner) {
  while (const DelayTrace::Update* const turn = turns_.ReadyTurn(twin)) {
    if (scenario_.Skips(turn->clock, twin.range.table)) {
      for (const int32_t rank : turn->ranks)
        twin.waiting.erase({turn->clock, Rank{rank}});
      twin.after_turns.push_back(twin.after_turns.back());
      continue;
    }
    // Only by this rule; what it takes is counted with the update.
    if (!scenario_.stale.has_drop()) return;
    const Rank rank{turn->ranks.front()};
    const auto missed = static_cast<int64_t>(
        twin.versions.size() - 1 -
        twin.after_turns[turns_.TurnsBefore(twin, rank, turn->clock)]);
    if (scenario_.delays.IsMean(*turn) ||
        shards_.JudgeStale(twin, missed, turn->workers)) {
      return;
    }
    JudgeTurn(twin, *turn, owner);
    ++findings_.stats().too_stale;
    for (const auto& [life, participant] : twin.participants) {
      if (life.first == rank)
        twin.without_effect.insert({.life = life, .clock = turn->clock});
    }
    twin.waiting.erase({turn->clock, rank});
    twin.after_turns.push_back(twin.after_turns.back());
  }
}

void DelayTwin::OnGivenUpdate(ShardTwin& twin, const ShardTraceRecord& record,
                              Owner owner) {
  ++findings_.stats().given_updates;
  const DelayTrace::Update* const turn = turns_.ReadyTurn(twin);
  const std::vector<int32_t> ranks =
      turn == nullptr
          ? std::vector<int32_t>()
          : std::vector<int32_t>(turn->ranks.begin(), turn->ranks.end());
  std::vector<int32_t> actual;
  for (const Rank rank : record.ranks)
    actual.push_back(static_cast<int32_t>(rank));
  if (turn == nullptr || turn->clock != record.clock || ranks != actual) {
    return findings_.Report(
        Invariant::kOrder,
        absl::StrCat(twin.name, " applied clock ", record.clock, " of rank ",
                     actual.empty() ? -1 : actual.front(), " as turn ",
                     twin.after_turns.size() - 1,
                     turn == nullptr ? ", of which not all is there"
                                     : absl::StrCat(", which is that of clock ",
                                                    turn->clock, " of rank ",
                                                    turn->ranks.front())));
  }
  if (!JudgeTurn(twin, *turn, owner)) {
    return findings_.Report(Invariant::kExactlyOnce,
                            absl::StrCat(twin.name, " applied clock ",
                                         record.clock, ", which is too stale"));
  }
  TwinUpdate update;
  update.clock = turn->clock;
  update.held = scenario_.delays.IsMean(*turn);
  update.divisor =
      update.held ? static_cast<int>(turn->ranks.size()) : turn->workers;
  update.gradient_factor = twin.gradient_factor;
  update.rate_factor = twin.rate_factor;
  for (const int32_t rank : turn->ranks) {
    twin.waiting.erase({turn->clock, Rank{rank}});
    for (const auto& [life, participant] : twin.participants) {
      if (life.first == Rank{rank})
        update.contributions.push_back({.life = life, .clock = turn->clock});
    }
  }
  shards_.AddUpdate(twin, std::move(update));
  twin.after_turns.push_back(twin.versions.size() - 1);
  PassTurnsWithoutEffect(twin, owner);
}

void DelayTwin::CheckKept(const ShardTwin& twin, const TurnState& kept) {
  const size_t turns = twin.after_turns.size() - 1;
  std::set<size_t> needed;
  for (const auto& [life, participant] : twin.participants) {
    for (Clock clock = participant.clock; clock < scenario_.steps; ++clock) {
      const size_t before = turns_.TurnsBefore(twin, life.first, clock);
      if (before < turns) needed.insert(before);
    }
  }
  const auto waiting =
      static_cast<size_t>(absl::c_count_if(twin.waiting, [&](const auto& of) {
        return !scenario_.Skips(of.first, twin.range.table);
      }));
  if (kept.kept.size() != needed.size() || kept.waiting.size() != waiting) {
    findings_.Report(
        Invariant::kBoundedState,
        absl::StrCat(twin.name, " keeps ", kept.kept.size(), " versions and ",
                     kept.waiting.size(), " gradients for their turn; ",
                     needed.size(), " and ", waiting, " are needed"));
  }
}

void DelayTwin::OnGivenSkip(ShardTwin& twin, const Contribution& skipped) {
  const Rank rank = skipped.life.first;
  if (turns_.HasTurn(twin, rank, skipped.clock))
    twin.waiting.insert({skipped.clock, rank});
}

void DelayTwin::CheckReady(const ShardTwin& twin) {
  if (scenario_.mode.has_delays() && turns_.ReadyTurn(twin) != nullptr) {
    findings_.Report(
        Invariant::kLostPush,
        absl::StrCat(twin.name, " has all gradients of turn ",
                     twin.after_turns.size() - 1, " and has not applied them"));
  }
}

}  // namespace slackline::sim
