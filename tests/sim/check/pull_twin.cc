#include "tests/sim/check/pull_twin.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/staleness.h"
#include "common/sync/phases.h"
#include "tests/sim/check/bits.h"
#include "tests/support/row_store.h"

namespace slackline::sim {
namespace {

// Clocks of every worker that a pull of this clock must contain, with the
// smallest bound or with the largest one.
Clock NeededClock(const wire::View& view, Clock clock,
                  bool largest_bound = true) {
  const wire::Phase& phase = PhaseAt(view, clock);
  const sync::Mode& mode = phase.mode();
  Clock needed = clock;
  if (mode.has_ssp()) needed = clock - mode.ssp().staleness();
  if (mode.has_dssp()) {
    needed = clock - (largest_bound ? mode.dssp().max_staleness()
                                    : mode.dssp().min_staleness());
  }
  if (mode.has_asp() || mode.has_backup()) needed = 0;
  if (phase.from() == 0) return needed;
  // No clock of these is left half done.
  const sync::Mode& before = PhaseAt(view, phase.from() - 1).mode();
  if (before.has_bsp() || before.has_allreduce())
    needed = std::max<Clock>(needed, phase.from());
  return needed;
}

// How many clocks must be complete.
Clock NeededComplete(const wire::View& view, Clock clock) {
  const wire::Phase& phase = PhaseAt(view, clock);
  if (phase.mode().has_backup()) return clock;
  if (phase.from() == 0) return 0;
  return PhaseAt(view, phase.from() - 1).mode().has_backup() ? phase.from() : 0;
}

}  // namespace

void PullTwin::OnPulled(Rank rank, Incarnation incarnation,
                        const PullResult& result) {
  for (size_t shard = 0; shard < result.shards.size(); ++shard) {
    const int32_t id = static_cast<int32_t>(shard);
    Version& last = seen_[{{rank, incarnation}, id}];
    // Given delays may name an older one than before.
    if (result.shards[shard].version < last && !scenario_.mode.has_delays()) {
      findings_.Report(Invariant::kVersionOrder,
                       absl::StrCat(Name(rank, incarnation), " pulled version ",
                                    result.shards[shard].version, " of shard ",
                                    id, " after version ", last));
    }
    last = result.shards[shard].version;
  }
}

void PullTwin::OnPullAnswered(ShardTwin& twin, const ShardTraceRecord& record,
                              Owner owner) {
  const Life life{record.rank, record.incarnation};
  const auto who = [&] {
    return absl::StrCat(twin.name, " answered pull ", record.request_id, " of ",
                        Name(record.rank, record.incarnation));
  };
  const auto intent = pulls_.find({life, record.request_id});
  if (intent == pulls_.end()) {
    return findings_.Report(Invariant::kValue,
                            absl::StrCat(who(), ", which was never sent"));
  }
  PullIntent& pull = intent->second;
  const bool given = scenario_.mode.has_delays();
  auto puller = twin.participants.find(life);
  // Who begins in the middle of given delays is told its own first version.
  const Clock clock = given && pull.join && puller != twin.participants.end()
                          ? puller->second.joined_at
                          : pull.clock;
  ThreadTwin& thread = shards_.threads()[owner];
  const auto counted = twin.leads.find(record.rank);
  const bool again = counted != twin.leads.end() &&
                     counted->second.first == record.incarnation &&
                     counted->second.second >= clock;
  if (!again && clock < EndOf(thread.view->proto())) {
    twin.leads[record.rank] = {record.incarnation, clock};
    CountLead(clock,
              given ? turns_.CompleteAfter(
                          twin, turns_.TurnsBefore(twin, record.rank, clock))
                    : twin.complete,
              &thread.staleness);
  }
  if (puller == twin.participants.end()) {
    if (!pull.join)
      return findings_.Report(Invariant::kStaleness,
                              absl::StrCat(who(), ", which takes no part"));
    puller = twin.participants.emplace(life, TwinParticipant()).first;
    puller->second.joined_at = puller->second.clock = twin.complete;
    ++findings_.stats().joins;
    UpdateMinClock(twin);
  }
  pull.answered[static_cast<int32_t>(twin.range.shard)].emplace(record.version,
                                                                record.index);
  if (given) {
    const size_t turns = turns_.TurnsBefore(twin, record.rank, clock);
    if (turns >= twin.after_turns.size() ||
        twin.min_clock < scenario_.delays.first ||
        twin.after_turns[turns] != record.version) {
      return findings_.Report(
          Invariant::kVersionOrder,
          absl::StrCat(who(), " at clock ", clock, " with version ",
                       record.version, ", not with that after ", turns,
                       " turns; ", twin.after_turns.size() - 1, " are over"));
    }
    findings_.stats().given_answers +=
        record.version + 1 != twin.versions.size();
  } else if (record.version + 1 != twin.versions.size()) {
    return findings_.Report(
        Invariant::kVersionOrder,
        absl::StrCat(who(), " with version ", record.version, " while at ",
                     twin.versions.size() - 1));
  }
  if (puller->second.clock < pull.own_clock) {
    findings_.Report(
        Invariant::kStaleness,
        absl::StrCat(who(), " for its clock ", pull.own_clock,
                     ", but has only ", puller->second.clock, " of it"));
  }
  if (given) return;
  const wire::View& view = shards_.ViewFor(life, owner);
  const Clock complete = pull.join ? 0 : NeededComplete(view, pull.clock);
  if (twin.complete < complete) {
    findings_.Report(
        Invariant::kStaleness,
        absl::StrCat(who(), " at clock ", pull.clock, ", where clocks before ",
                     complete, " must be complete; it is at clock ",
                     twin.complete));
  }
  const Clock needed = pull.join ? 0 : NeededClock(view, pull.clock);
  if (needed <= 0 && complete <= 0) return;
  ++findings_.stats().gated;
  findings_.stats().beyond_low +=
      twin.min_clock < NeededClock(view, pull.clock, /*largest_bound=*/false);
  for (const auto& [other, participant] : twin.participants) {
    if (!views_.Live(other)) continue;
    if (participant.clock < needed) {
      findings_.Report(
          Invariant::kStaleness,
          absl::StrCat(who(), " at clock ", pull.clock, ", which needs ",
                       needed, " clocks, but has only ", participant.clock,
                       " of ", Name(other.first, other.second)));
    }
  }
  for (const Contribution& contribution : twin.held) {
    if (contribution.clock < std::max(needed, complete) &&
        views_.Live(contribution.life)) {
      findings_.Report(
          Invariant::kStaleness,
          absl::StrCat(who(), " at clock ", pull.clock, " without clock ",
                       contribution.clock, " of ",
                       Name(contribution.life.first, contribution.life.second),
                       ", which it holds and has not applied"));
    }
  }
}

void PullTwin::CheckWaiting(const ShardTwin& twin, const StalenessGate& gate,
                            Owner owner) {
  for (const StalenessGate::Pull& pull : gate.Parked()) {
    ++findings_.stats().parked;
    const auto puller = twin.participants.find({pull.rank, pull.incarnation});
    if (puller == twin.participants.end() ||
        puller->second.clock < pull.own_clock) {
      continue;
    }
    const wire::View& view = shards_.ViewFor(puller->first, owner);
    const bool may_go =
        scenario_.mode.has_delays()
            ? twin.min_clock >= scenario_.delays.first &&
                  turns_.TurnsBefore(twin, pull.rank, pull.clock) <
                      twin.after_turns.size()
        : pull.asked->has_state()
            ? twin.min_clock >= pull.clock
            : twin.min_clock >= NeededClock(view, pull.clock,
                                            /*largest_bound=*/false) &&
                  twin.complete >= NeededComplete(view, pull.clock);
    if (!may_go) continue;
    findings_.Report(
        Invariant::kStaleness,
        absl::StrCat(twin.name, " parks pull ", pull.request_id, " of ",
                     Name(pull.rank, pull.incarnation), " at clock ",
                     pull.clock, ", which may go: it is at clock ",
                     twin.complete, " and all workers at ", twin.min_clock));
  }
}

void PullTwin::InheritSeen(int32_t from, int32_t to) {
  std::vector<std::pair<Life, Version>> seen;
  for (const auto& [who, version] : seen_) {
    if (who.second == from) seen.push_back({who.first, version});
  }
  for (const auto& [life, version] : seen) {
    Version& last = seen_[{life, to}];
    last = std::max(last, version);
  }
}

void PullTwin::OnSent(const Life& life, const wire::PullRequest& request) {
  for (const wire::Pull& pull : request.pull()) {
    PullIntent& intent = pulls_[{life, pull.id()}];
    intent.join = pull.has_join();
    intent.state = pull.has_state();
    intent.exact = pull.step().exact();
    intent.rows = RowsNamed(pull);
    intent.clock =
        pull.has_state() ? pull.state().clock() : pull.step().clock();
    intent.own_clock =
        pull.has_state() ? pull.state().clock() : pull.step().own_clock();
    if (intent.join) continue;
    views_.CheckFence(life, intent.clock, request.phases(), "pulls");
    views_.Reach(life, intent.clock);
  }
}

void PullTwin::OnReply(const Life& life, const Message& message) {
  size_t next_payload = 0;
  for (const wire::PullAnswer& answer : message.header.pull_reply().answer()) {
    findings_.stats().relocations += answer.refusal().moved().has_to();
    if (answer.has_state()) {
      // States are looked at as a whole, when they are there.
      next_payload += 1 + static_cast<size_t>(answer.state().slots());
    }
    if (!answer.has_values()) continue;
    if (shards_.twins().count(answer.shard()) == 0 ||
        next_payload >= message.payloads.size()) {
      return findings_.Report(Invariant::kValue,
                              absl::StrCat("an answer to ", Name(life),
                                           " has a shard or payload too many"));
    }
    CheckAnswer(life, answer, message.header.view_number(),
                message.payloads[next_payload++]);
  }
}

void PullTwin::CheckAnswer(const Life& life, const wire::PullAnswer& answer,
                           uint64_t view_number, const Payload& payload) {
  const auto intent = pulls_.find({life, answer.pull()});
  const ShardTwin& twin = shards_.twins().at(answer.shard());
  const Version version = answer.values().version();
  const wire::Encoding::Kind kind = answer.values().kind();
  if (intent == pulls_.end() ||
      intent->second.answered[answer.shard()].count(version) == 0) {
    return findings_.Report(
        twin.failovers > 0 ? Invariant::kCopies : Invariant::kVersionOrder,
        absl::StrCat(Name(life), " was given version ", version, " of ",
                     twin.name, ", which the shard did not answer to its pull ",
                     answer.pull()));
  }
  if (!intent->second.join && answer.values().shard_clock() > twin.complete) {
    findings_.Report(
        Invariant::kStaleness,
        absl::StrCat(Name(life), " was told that ", twin.name, " is at clock ",
                     answer.values().shard_clock(), "; it is at clock ",
                     twin.complete));
  }
  if (intent->second.join &&
      twin.participants.at(life).joined_at != answer.values().shard_clock()) {
    findings_.Report(Invariant::kStaleness,
                     absl::StrCat(Name(life), " was told to start at clock ",
                                  answer.values().shard_clock(), " of ",
                                  twin.name, "; it takes part from clock ",
                                  twin.participants.at(life).joined_at));
  }
  ++findings_.stats().answers;
  findings_.stats().row_answers += scenario_.HasRows(twin.range.table);
  // An answer of before a split is of the whole shard.
  const auto whole = std::find_if(
      twin.before_split.begin(), twin.before_split.end(),
      [&](const auto& split) { return view_number < split.first; });
  const Versions& versions =
      whole == twin.before_split.end() ? twin.versions : whole->second;
  if (kind != (intent->second.exact ? wire::Encoding::FLOAT32
                                    : scenario_.PulledAs(twin.range.table))) {
    return findings_.Report(
        Invariant::kValue,
        absl::StrCat(Name(life), " was given ", twin.name, " as ",
                     wire::Encoding::Kind_Name(kind)));
  }
  const bool names_rows =
      scenario_.HasRows(twin.range.table) && !intent->second.rows.empty();
  findings_.stats().row_named += names_rows;
  Tensor expected = version < versions.size() ? versions[version] : Tensor();
  for (size_t e = 0; names_rows && e < expected.size(); ++e) {
    const int64_t row = (twin.range.region.begin() + static_cast<int64_t>(e)) /
                        scenario_.RowWidth(twin.range.table);
    if (!intent->second.rows.contains(row)) expected[e] = 0;
  }
  if (kind != wire::Encoding::FLOAT32) {
    if (version < versions.size() && IsRounded(kind, payload, expected)) return;
    return findings_.Report(
        Invariant::kValue,
        absl::StrCat(Name(life), ": ", twin.name, " of version ", version,
                     " was rounded to something else"));
  }
  const std::vector<float> actual = FloatsOf(payload);
  if (names_rows) {
    if (version < versions.size() && SameBits(actual, expected)) return;
    return findings_.Report(
        Invariant::kValue,
        absl::StrCat(Name(life), ": of ", twin.name, " of version ", version,
                     " it was given other rows than it has named"));
  }
  if (version >= versions.size() || !SameBits(actual, versions[version])) {
    Violation why = comparison_.Explain(twin, version, actual);
    return findings_.Report(why.invariant,
                            absl::StrCat(Name(life), ": ", why.what));
  }
}

void PullTwin::ForgetAnswersAfter(int32_t shard, uint64_t index) {
  for (auto& [request, pull] : pulls_) {
    const auto answered = pull.answered.find(shard);
    if (answered == pull.answered.end()) continue;
    std::erase_if(answered->second,
                  [&](const auto& entry) { return entry.second > index; });
  }
}

PullIntent* PullTwin::Find(const Life& life, uint64_t request) {
  const auto found = pulls_.find({life, request});
  return found == pulls_.end() ? nullptr : &found->second;
}

}  // namespace slackline::sim
