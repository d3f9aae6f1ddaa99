#include "tests/sim/check/shard_comparison.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/check/bits.h"
#include "tests/sim/job/sim_rows.h"

namespace slackline::sim {

std::optional<Violation> ShardComparison::Difference(
    const ShardTwin& twin, const TwinState& state, Version version,
    const ShardMachine& machine) const {
  const auto differs = [](Invariant invariant, const std::string& what) {
    return Violation{.invariant = invariant, .what = what};
  };
  if (machine.shard().version() != version) {
    return differs(machine.shard().version() < version
                       ? Invariant::kLostPush
                       : Invariant::kExactlyOnce,
                   absl::StrCat("has version ", machine.shard().version(),
                                ", not ", version));
  }
  const auto floats_of = [&](const Payload& tensor) {
    return FloatsOf(scenario_, twin.range.table, twin.range.region, tensor);
  };
  std::vector<float> values = floats_of(machine.shard().values());
  if (!SameBits(values, twin.versions[version]))
    return Explain(twin, version, values);
  const Versions& slots = twin.slots[version];
  if (machine.shard().slots().size() != slots.size()) {
    return differs(Invariant::kValue,
                   absl::StrCat("has ", machine.shard().slots().size(),
                                " slots, not ", slots.size()));
  }
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (!SameBits(floats_of(machine.shard().slots()[slot]), slots[slot])) {
      return differs(Invariant::kValue,
                     absl::StrCat("has another state in slot ", slot));
    }
  }
  if (machine.running_rms() != state.running_rms) {
    return differs(
        Invariant::kValue,
        absl::StrCat("has the running size ", machine.running_rms().mean(),
                     " of ", machine.running_rms().count(), ", not ",
                     state.running_rms.mean(), " of ",
                     state.running_rms.count()));
  }
  size_t held = 0;
  for (const Contribution& contribution : state.held) {
    const auto found = std::find_if(
        machine.held().begin(), machine.held().end(), [&](const auto& entry) {
          return Life{entry.who.rank, entry.who.incarnation} ==
                 contribution.life;
        });
    const std::string what =
        absl::StrCat("the gradient of clock ", contribution.clock, " of ",
                     Name(contribution.life.first, contribution.life.second));
    if (found == machine.held().end()) {
      return differs(Invariant::kLostPush,
                     absl::StrCat("does not hold ", what));
    }
    if (!SameBits(floats_of(found->gradient),
                  arithmetic_.GradientOf(twin.range, contribution,
                                         /*by_all_reduce=*/false))) {
      return differs(Invariant::kSyncSum,
                     absl::StrCat("holds something else as ", what));
    }
    const StepOptions options = scenario_.GradientOptions(
        contribution.life.first, contribution.clock, twin.range.table);
    const auto size = state.held_sizes.find(contribution);
    if (found->rms != (size == state.held_sizes.end() ? 0 : size->second)) {
      return differs(
          Invariant::kSyncSum,
          absl::StrCat("holds ", what, " with the size ", found->rms));
    }
    if (found->options != options) {
      return differs(
          Invariant::kSyncSum,
          absl::StrCat("holds ", what, " with the options { ",
                       ToWire(found->options).ShortDebugString(), " }, not { ",
                       ToWire(options).ShortDebugString(), " }"));
    }
    ++held;
  }
  if (machine.held().size() != held) {
    return differs(Invariant::kExactlyOnce,
                   absl::StrCat("holds ", machine.held().size(),
                                " gradients, not ", held));
  }
  size_t present = 0;
  for (const auto& [life, participant] : state.participants) {
    if (!participant.present) continue;
    ++present;
    const std::string who = Name(life.first, life.second);
    const auto found = std::find_if(
        machine.participants().begin(), machine.participants().end(),
        [&, of = life](const slackline::Participant& p) {
          return p.rank == of.first && p.incarnation == of.second;
        });
    if (found == machine.participants().end()) {
      return differs(Invariant::kExactlyOnce,
                     absl::StrCat("does not know ", who, " any more"));
    }
    if (found->next_seq != participant.next_seq) {
      return differs(found->next_seq < participant.next_seq
                         ? Invariant::kExactlyOnce
                         : Invariant::kLostPush,
                     absl::StrCat("expects push ", found->next_seq, " of ", who,
                                  ", not ", participant.next_seq));
    }
    if (found->clock != participant.clock ||
        found->joined_at != participant.joined_at) {
      return differs(
          Invariant::kStaleness,
          absl::StrCat("has ", who, " at clock ", found->clock, " from clock ",
                       found->joined_at, "; it is at clock ", participant.clock,
                       " from clock ", participant.joined_at));
    }
  }
  if (machine.participants().size() != present) {
    return differs(Invariant::kBoundedState,
                   absl::StrCat("has ", machine.participants().size(),
                                " participants, not ", present));
  }
  if (machine.participants().MinClock() != state.min_clock) {
    return differs(Invariant::kStaleness,
                   absl::StrCat("has a smallest clock of ",
                                machine.participants().MinClock(), ", not ",
                                state.min_clock));
  }
  if (machine.complete_clock() != state.complete) {
    return differs(Invariant::kStaleness,
                   absl::StrCat("is at clock ", machine.complete_clock(),
                                ", not ", state.complete));
  }
  return TurnsDifference(twin, state, machine);
}

std::optional<Violation> ShardComparison::TurnsDifference(
    const ShardTwin& twin, const TwinState& state,
    const ShardMachine& machine) const {
  if (machine.turns() == nullptr) return std::nullopt;
  const auto differs = [](Invariant invariant, const std::string& what) {
    return Violation{.invariant = invariant, .what = what};
  };
  const TurnState& turns = machine.turns()->state();
  const auto over = static_cast<int64_t>(state.after_turns.size()) - 1;
  if (turns.over != over) {
    return differs(
        turns.over < over ? Invariant::kLostPush : Invariant::kExactlyOnce,
        absl::StrCat("has done ", turns.over, " turns, not ", over));
  }
  size_t waiting = 0;
  for (const auto& [life, participant] : state.participants) {
    for (const auto& [clock, rank] : state.waiting) {
      if (rank != life.first || scenario_.Skips(clock, twin.range.table))
        continue;
      ++waiting;
      const auto found = turns.waiting.find({clock, rank});
      const std::string what =
          absl::StrCat("the gradient of clock ", clock, " of ",
                       Name(life.first, life.second));
      if (found == turns.waiting.end()) {
        return differs(
            Invariant::kLostPush,
            absl::StrCat("has lost ", what, ", which waits for its turn"));
      }
      if (!SameBits(
              FloatsOf(found->second.gradient),
              arithmetic_.GradientOf(twin.range, {.life = life, .clock = clock},
                                     /*by_all_reduce=*/false)) ||
          found->second.base !=
              state.after_turns[turns_.TurnsBefore(twin, rank, clock)] ||
          found->second.options !=
              scenario_.GradientOptions(rank, clock, twin.range.table)) {
        return differs(Invariant::kSyncSum,
                       absl::StrCat("lets something else wait as ", what));
      }
    }
  }
  if (turns.waiting.size() != waiting) {
    return differs(
        Invariant::kExactlyOnce,
        absl::StrCat("lets ", turns.waiting.size(),
                     " gradients wait for their turn, not ", waiting));
  }
  for (const auto& [before, kept] : turns.kept) {
    if (before < 0 || before >= over) {
      return differs(Invariant::kVersionOrder,
                     absl::StrCat("keeps a version as that after ", before,
                                  " turns, and ", over, " are over"));
    }
    const Version version = state.after_turns[static_cast<size_t>(before)];
    if (kept.version == version &&
        SameBits(FloatsOf(kept.values), twin.versions[version])) {
      continue;
    }
    return differs(
        Invariant::kVersionOrder,
        absl::StrCat("keeps version ", kept.version, " as that after ", before,
                     " turns, which is version ", version,
                     ", or other values"));
  }
  return std::nullopt;
}

Violation ShardComparison::Explain(const ShardTwin& twin, Version version,
                                   const std::vector<float>& actual) const {
  const std::string where =
      absl::StrCat("the answer for version ", version, " of ", twin.name);
  const size_t size = twin.versions.front().size();
  if (actual.size() != size) {
    return {Invariant::kValue, absl::StrCat(where, " has ", actual.size(),
                                            " elements, not ", size)};
  }
  size_t prefix = 0, suffix = 0;
  Version prefix_of = 0, suffix_of = 0;
  for (Version v = 0; v < twin.versions.size(); ++v) {
    const std::vector<float>& values = twin.versions[v];
    const size_t same_first =
        std::mismatch(actual.begin(), actual.end(), values.begin()).first -
        actual.begin();
    const size_t same_last =
        std::mismatch(actual.rbegin(), actual.rend(), values.rbegin()).first -
        actual.rbegin();
    if (same_first > prefix) prefix = same_first, prefix_of = v;
    if (same_last > suffix) suffix = same_last, suffix_of = v;
  }
  if (prefix + suffix >= size) {
    return {Invariant::kTornRead,
            absl::StrCat(where, " begins as version ", prefix_of,
                         " and ends as version ", suffix_of)};
  }
  if (std::optional<Violation> found =
          ExplainAsOtherPushes(twin, version, actual)) {
    found->what = absl::StrCat(where, found->what);
    return *found;
  }
  if (version > 0 && version < twin.versions.size() &&
      twin.updates[version - 1].held) {
    return {Invariant::kSyncSum,
            absl::StrCat(where, " is no sum of what the workers pushed")};
  }
  return {Invariant::kValue,
          absl::StrCat(where, " cannot come from what the workers pushed")};
}

// Replays the updates with one push replaced, repeated or left out.
std::optional<Violation> ShardComparison::ExplainAsOtherPushes(
    const ShardTwin& twin, Version version,
    const std::vector<float>& actual) const {
  const auto becomes_actual = [&](Version changed, const TwinUpdate* update) {
    std::vector<float> values = twin.versions[changed];
    Versions slots = twin.slots[changed];
    Version at = changed;
    if (update != nullptr)
      values = arithmetic_.Apply(twin.range, at++, values, &slots, *update);
    for (Version v = changed + 1; v < version; ++v)
      values =
          arithmetic_.Apply(twin.range, at++, values, &slots, twin.updates[v]);
    return SameBits(values, actual);
  };
  // The latest ones first: earlier updates were seen right by somebody.
  for (Version changed = version; changed-- > 0;) {
    const TwinUpdate& update = twin.updates[changed];
    // Gradients that were held and got lost are not in the mean either.
    const unsigned subsets =
        update.held ? (1u << update.contributions.size()) - 1 : 0;
    for (unsigned lost = 1; lost < subsets; ++lost) {
      TwinUpdate other;
      other.clock = update.clock;
      for (size_t i = 0; i < update.contributions.size(); ++i) {
        if ((lost >> i & 1) == 0)
          other.contributions.push_back(update.contributions[i]);
      }
      other.divisor = static_cast<int>(other.contributions.size());
      if (!becomes_actual(changed, &other)) continue;
      return Violation{Invariant::kLostPush,
                       absl::StrCat(" lacks ", update.divisor - other.divisor,
                                    " pushes that were held")};
    }
    const bool whole = update.contributions.size() == 1;
    for (size_t i = 0; i < update.contributions.size(); ++i) {
      const Contribution& contribution = update.contributions[i];
      const std::string push =
          absl::StrCat(" the push of clock ", contribution.clock, " by ",
                       Name(contribution.life.first, contribution.life.second));
      TwinUpdate other = update;
      other.contributions.insert(other.contributions.begin() + i, contribution);
      if (becomes_actual(changed, &other)) {
        return Violation{Invariant::kExactlyOnce,
                         absl::StrCat(" contains twice", push)};
      }
      other = update;
      other.contributions.erase(other.contributions.begin() + i);
      if (becomes_actual(changed, whole ? nullptr : &other)) {
        return Violation{Invariant::kLostPush, absl::StrCat(" lacks", push)};
      }
      for (Clock clock = 0; clock < scenario_.StepsMax(); ++clock) {
        if (clock == contribution.clock) continue;
        other = update;
        other.contributions[i].clock = clock;
        if (!becomes_actual(changed, &other)) continue;
        return Violation{
            clock < contribution.clock ? Invariant::kExactlyOnce
                                       : Invariant::kOrder,
            absl::StrCat(" contains clock ", clock, " in the place of", push)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace slackline::sim
