#include "tests/sim/check/push_twin.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/staleness.h"
#include "common/sync/phases.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {

void PushTwin::OnParameters(Rank rank, Incarnation incarnation, Clock clock,
                            const TableValues& values) {
  std::map<int32_t, Version>& versions =
      computed_from_[{{rank, incarnation}, clock}];
  for (const TableValues::Piece& piece : values.pieces) {
    const auto shard = static_cast<int32_t>(piece.shard);
    if (versions.emplace(shard, piece.version).second) continue;
    findings_.Report(Invariant::kVersionOrder,
                     absl::StrCat(Name(rank, incarnation), " has shard ", shard,
                                  " twice for step ", clock));
  }
}

void PushTwin::OnPushAccepted(ShardTwin& twin, const ShardTraceRecord& record,
                              Owner owner) {
  ++findings_.stats().pushes;
  const std::string who =
      absl::StrCat(twin.name, " accepted clock ", record.clock, " of ",
                   Name(record.rank, record.incarnation));
  const sync::Mode& mode =
      PhaseAt(shards_.ViewFor({record.rank, record.incarnation}, owner),
              record.clock)
          .mode();
  if (mode.has_allreduce()) {
    return findings_.Report(Invariant::kMode,
                            absl::StrCat(who, ", whose step is by all-reduce"));
  }
  const auto found = twin.participants.find({record.rank, record.incarnation});
  if (found == twin.participants.end() || !found->second.present) {
    return findings_.Report(Invariant::kBoundedState,
                            absl::StrCat(who, ", which takes no part"));
  }
  if (scenario_.Skips(record.clock, twin.range.table)) {
    return findings_.Report(
        Invariant::kExactlyOnce,
        absl::StrCat(who, ", whose step has no gradient of it"));
  }
  TwinParticipant& participant = found->second;
  CheckBase(twin, found->first, record, who);
  if (mode.has_delays())
    return delays_.OnGivenPush(twin, found->first, participant, record, who,
                               owner);
  const Version newest = twin.versions.size() - 1;
  const int64_t missed = record.version < newest
                             ? static_cast<int64_t>(newest - record.version)
                             : 0;
  findings_.stats().bases_missed += missed > 0;
  if (record.clock != participant.clock) {
    return findings_.Report(
        record.clock < participant.clock ? Invariant::kExactlyOnce
                                         : Invariant::kOrder,
        absl::StrCat(who, ", its next one is ", participant.clock));
  }
  const bool holds = mode.has_bsp() || mode.has_backup();
  const bool discarded = record.kind == ShardTraceRecord::Kind::kPushDiscarded;
  const Contribution contribution{.life = found->first, .clock = record.clock};
  const auto excess = scenario_.MakeGradientBound().Judge(
      arithmetic_.SizeOf(twin.range, contribution), twin.running_rms);
  if (!discarded && (!holds || record.clock >= twin.complete)) {
    CountMissed(missed, holds ? 1 : PresentCount(twin),
                &shards_.threads()[owner].staleness);
  }
  const bool too_stale = !excess.has_value() && !holds &&
                         !shards_.JudgeStale(twin, missed, PresentCount(twin));
  if ((too_stale || excess.has_value()) != discarded) {
    return findings_.Report(
        Invariant::kExactlyOnce,
        absl::StrCat(who, discarded   ? ", and discarded it"
                          : too_stale ? ", which is too stale to be applied"
                                      : ", which is above the bound"));
  }
  ++participant.clock;
  ++participant.next_seq;
  if (discarded) {
    // As if the worker had only said that it has done this clock.
    findings_.stats().too_stale += too_stale;
    if (excess.has_value()) {
      ++findings_.stats().oversized;
      findings_.stats().over_running += excess->running.has_value();
      oversized_.insert(record.rank);
    }
    twin.without_effect.insert(contribution);
    return UpdateMinClock(twin);
  }
  if (mode.has_backup()) {
    if (record.clock < twin.complete) {  // Late: of no effect.
      ++findings_.stats().dropped;
      return UpdateMinClock(twin);
    }
    if (record.clock > twin.complete) {
      findings_.Report(
          Invariant::kOrder,
          absl::StrCat(who, " while it is at clock ", twin.complete));
    }
  }
  findings_.stats().broken_taken +=
      scenario_.IsBroken(record.rank, record.clock);
  if (scenario_.gradient_bound.has_value())
    twin.held_sizes[contribution] =
        arithmetic_.SizeOf(twin.range, contribution);
  cuts_.CheckCutFence(twin, contribution, who, owner);
  twin.held.insert(
      std::upper_bound(twin.held.begin(), twin.held.end(), contribution),
      contribution);
  UpdateMinClock(twin);
}

void PushTwin::OnAdvanced(ShardTwin& twin, const ShardTraceRecord& record,
                          Owner owner) {
  const auto found = twin.participants.find({record.rank, record.incarnation});
  if (found == twin.participants.end() || !found->second.present ||
      record.clock < found->second.clock) {
    return findings_.Report(
        Invariant::kOrder,
        absl::StrCat(twin.name, " lets ", Name(record.rank, record.incarnation),
                     " advance to clock ", record.clock));
  }
  ++(record.clock == twin.installed_at ? findings_.stats().installs_again
                                       : findings_.stats().advances);
  const Contribution skipped{.life = found->first,
                             .clock = found->second.clock};
  if (record.clock == skipped.clock + 1 &&
      scenario_.Skips(skipped.clock, twin.range.table)) {
    ++findings_.stats().skipped;
    twin.without_effect.insert(skipped);
    if (scenario_.mode.has_delays()) delays_.OnGivenSkip(twin, skipped);
  }
  ++found->second.next_seq;
  found->second.clock = record.clock;
  UpdateMinClock(twin);
  if (scenario_.mode.has_delays()) delays_.PassTurnsWithoutEffect(twin, owner);
}

void PushTwin::OnUpdated(ShardTwin& twin, const ShardTraceRecord& record,
                         Owner owner) {
  ++findings_.stats().updates;
  if (record.version != twin.versions.size()) {
    return findings_.Report(
        Invariant::kVersionOrder,
        absl::StrCat(twin.name, " went from version ", twin.versions.size() - 1,
                     " to version ", record.version));
  }
  if (scenario_.mode.has_delays())
    return delays_.OnGivenUpdate(twin, record, owner);
  TwinUpdate update;
  if (twin.held.empty()) {
    return findings_.Report(Invariant::kExactlyOnce,
                            absl::StrCat(twin.name, " was updated to version ",
                                         record.version, " without a push"));
  }
  const wire::View& view = shards_.ViewForHeld(twin, owner);
  const bool enough = HasEnough(twin, view);
  update.contributions = std::move(twin.held);
  update.clock = record.clock;
  twin.held.clear();
  const int present = PresentCount(twin);
  const sync::Mode& mode = PhaseAt(view, record.clock).mode();
  update.held = mode.has_bsp() || mode.has_backup();
  if (update.held) {
    update.divisor = static_cast<int>(update.contributions.size());
    for (const Contribution& contribution : update.contributions) {
      if (contribution.clock != record.clock) {
        findings_.Report(
            Invariant::kSyncSum,
            absl::StrCat(
                twin.name, " sums clock ", contribution.clock, " of ",
                Name(contribution.life.first, contribution.life.second),
                " into clock ", record.clock));
      }
    }
    if (mode.has_backup()) {
      if (!enough) {
        findings_.Report(Invariant::kSyncSum,
                         absl::StrCat(twin.name, " applied clock ",
                                      record.clock, " with ", update.divisor,
                                      " gradients of ", present, " workers"));
      }
      twin.complete = std::max(twin.complete, record.clock + 1);
    }
    for (const auto& [life, participant] : twin.participants) {
      const bool waits = participant.present && views_.Live(life) &&
                         participant.clock <= record.clock;
      if (waits && mode.has_backup()) {
        ++findings_.stats().without_some;
      } else if (waits) {
        findings_.Report(
            Invariant::kSyncSum,
            absl::StrCat(twin.name, " applied clock ", record.clock,
                         " without ", Name(life.first, life.second),
                         ", whose clock is ", participant.clock));
      }
    }
    if (update.divisor < scenario_.workers) ++findings_.stats().partial_sums;
  } else {
    update.divisor = present;
    for (const auto& [life, participant] : twin.participants) {
      if (participant.present) update.present.push_back(life);
    }
    update.gradient_factor = twin.gradient_factor;
    update.rate_factor = twin.rate_factor;
  }
  shards_.AddUpdate(twin, std::move(update));
}

void PushTwin::OnFinished() {
  for (const auto& [id, twin] : shards_.twins()) {
    if (!twin.waiting.empty()) {
      findings_.Report(Invariant::kLostPush,
                       absl::StrCat(twin.name, " has ", twin.waiting.size(),
                                    " gradients whose turn never came"));
    }
    if (!twin.held.empty()) {
      findings_.Report(
          Invariant::kLostPush,
          absl::StrCat(twin.name, " still holds ", twin.held.size(),
                       " gradients that it never applied"));
    }
  }
}

void PushTwin::CheckBase(const ShardTwin& twin, const Life& life,
                         const ShardTraceRecord& record,
                         const std::string& who) {
  const auto base = computed_from_.find({life, record.clock});
  if (base == computed_from_.end()) return;
  ++findings_.stats().bases;
  const std::map<int32_t, Version>& versions = base->second;
  int32_t id = static_cast<int32_t>(twin.range.shard);
  while (versions.count(id) == 0 && shards_.twins().at(id).origin != id)
    id = shards_.twins().at(id).origin;  // It was split off since.
  const auto expected = versions.find(id);
  if (expected == versions.end()) {
    findings_.Report(Invariant::kVersionOrder,
                     absl::StrCat(who, ", before its parameters had come"));
  } else if (record.version != expected->second) {
    findings_.Report(
        Invariant::kVersionOrder,
        absl::StrCat(who, ", computed from version ", record.version,
                     "; the step has version ", expected->second));
  }
}

void PushTwin::OnSent(const Life& life, const wire::PushRequest& request) {
  for (const wire::Push& push : request.push()) {
    if (!push.has_advance())
      views_.CheckFence(life, push.clock(), request.phases(), "pushes");
  }
}

void PushTwin::OnReply(const Life& life, const wire::PushReply& reply) {
  for (const wire::PushAnswer& answer : reply.answer()) {
    findings_.stats().relocations += answer.refusal().moved().has_to();
    const auto found = shards_.twins().find(answer.shard());
    if (found == shards_.twins().end() || answer.accepted_seq() == 0) continue;
    const ShardTwin& twin = found->second;
    const auto participant = twin.participants.find(life);
    const uint64_t taken = participant == twin.participants.end()
                               ? 0
                               : participant->second.next_seq - 1;
    if (answer.accepted_seq() <= taken) continue;
    findings_.Report(
        twin.failovers > 0 ? Invariant::kCopies : Invariant::kLostPush,
        absl::StrCat(Name(life), " was told that its push ",
                     answer.accepted_seq(), " to ", twin.name,
                     " is accepted; the shard has ", taken));
  }
}

void PushTwin::CheckHeld(const ShardTwin& twin, Owner owner) {
  if (twin.held.empty()) return;
  const wire::View& view = shards_.ViewForHeld(twin, owner);
  if (!PhaseAt(view, twin.held.front().clock).mode().has_backup() ||
      !HasEnough(twin, view)) {
    return;
  }
  findings_.Report(Invariant::kSyncSum,
                   absl::StrCat(twin.name, " holds ", twin.held.size(),
                                " gradients of clock ", twin.held.front().clock,
                                ", which are enough"));
}

}  // namespace slackline::sim
