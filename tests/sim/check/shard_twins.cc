#include "tests/sim/check/shard_twins.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"
#include "common/view/initializer.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {

void ShardTwins::OnServerStarts(int32_t server) {
  std::erase_if(threads_, [&](const auto& entry) {
    return entry.first.server == server;
  });
}

void ShardTwins::OnServerGone(int32_t server) {
  for (auto& [id, twin] : twins_) {
    if (twin.owner.has_value() && twin.owner->server == server)
      twin.owner.reset();
  }
}

void ShardTwins::CreateTwins(Owner owner, const View& view) {
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    if (view.OwnerOf(ShardId{id}) != owner) continue;
    if (twins_.count(id) == 0) {
      CreateTwin(id, view);
      twins_.at(id).promoted_in = view.number();
    } else if (scenario_.replicas == 0) {
      findings_.Report(Invariant::kOwnership,
                       absl::StrCat("shard ", id, " is made a second time"));
    }
  }
}

void ShardTwins::CreateTwin(int32_t id, const View& view) {
  ShardTwin& twin = twins_[id];
  twin.range = view.shard(ShardId{id});
  twin.name = view.ShardName(ShardId{id});
  twin.origin = static_cast<int32_t>(view.OriginOf(ShardId{id}));
  ShardId first{id};
  while (view.OriginOf(first) != first) first = view.OriginOf(first);
  twin.first = static_cast<int32_t>(first);
  std::vector<float> initial(static_cast<size_t>(twin.range.region.size()));
  InitializeElements(view.table(twin.range.table), scenario_.seed,
                     twin.range.region.begin(), absl::MakeSpan(initial));
  twin.slots.push_back(
      Versions(arithmetic_.OptimizerOf(twin.range.table).slot_count(),
               Tensor(initial.size(), 0.0f)));
  twin.versions.push_back(std::move(initial));
  if (scenario_.resume != nullptr) resume_.Resume(twin);
  for (const wire::WorkerMember& worker : view.workers()) {
    if (!worker.founder()) continue;
    TwinParticipant& founder =
        twin.participants[{Rank{worker.rank()}, worker.incarnation()}];
    founder.joined_at = founder.clock = resume_.BeginsAt(worker.rank());
  }
  // Where none of them is left.
  twin.min_clock = twin.complete = resume_.Beginnings().first;
  UpdateMinClock(twin);
}

void ShardTwins::SplitTwins(Owner owner, const View& view,
                            std::vector<int32_t>* changed,
                            std::vector<std::pair<int32_t, int32_t>>* parts) {
  const int32_t first = view.shard_count() - view.proto().split_size();
  for (int i = 0; i < view.proto().split_size(); ++i) {
    const wire::Split& split = view.proto().split(i);
    const int32_t part = first + i;
    const auto kept = twins_.find(split.shard());
    if (kept == twins_.end() || kept->second.owner != owner ||
        split.at() <= kept->second.range.region.begin() ||
        split.at() >= kept->second.range.region.end()) {
      continue;
    }
    ShardTwin rest = SplitTwin(view, split, part, &kept->second);
    changed->push_back(split.shard());
    // Somebody may serve the rest who has taken it over before.
    if (!twins_.emplace(part, std::move(rest)).second) continue;
    findings_.stats().row_splits += scenario_.HasRows(kept->second.range.table);
    parts->push_back({split.shard(), part});
    changed->push_back(part);
  }
}

void ShardTwins::FollowParticipants(ShardTwin& twin, const View& view,
                                    const ShardMachine& machine) {
  for (auto& [life, participant] : twin.participants) {
    if (!participant.present) continue;
    const bool kept = std::any_of(
        machine.participants().begin(), machine.participants().end(),
        [&, who = life](const slackline::Participant& p) {
          return p.rank == who.first && p.incarnation == who.second;
        });
    const bool member = view.FindWorker(life.first, life.second) != nullptr;
    if (!kept && views_.Live(life)) {
      findings_.Report(
          Invariant::kBoundedState,
          absl::StrCat(twin.name, " has forgotten ",
                       Name(life.first, life.second), ", which lives"));
    }
    if (kept && !member && view.number() >= twin.newest_view) {
      findings_.Report(
          Invariant::kBoundedState,
          absl::StrCat(twin.name, " has view ", view.number(),
                       " and keeps the state of ",
                       Name(life.first, life.second), ", which is gone"));
    }
    participant.present = kept;
  }
  UpdateMinClock(twin);
}

bool ShardTwins::JudgeStale(ShardTwin& twin, int64_t missed_updates,
                            int workers) {
  twin.gradient_factor = 1;
  twin.rate_factor = 1;
  const config::StaleGradients& rule = scenario_.stale;
  const double delay =
      static_cast<double>(missed_updates) / static_cast<double>(workers);
  if (rule.has_scale()) {
    twin.gradient_factor = static_cast<float>(1 / (1 + delay));
  } else if (rule.has_staleness_aware_rate()) {
    twin.rate_factor =
        static_cast<double>(workers) /
        static_cast<double>(std::max<int64_t>(1, missed_updates));
  }
  findings_.stats().weakened +=
      twin.gradient_factor != 1 || twin.rate_factor != 1;
  return !rule.has_drop() || delay <= rule.drop().beyond_clocks();
}

void ShardTwins::AddUpdate(ShardTwin& twin, TwinUpdate update) {
  findings_.stats().row_updates += scenario_.HasRows(twin.range.table);
  // Those of a clock in the order of their ranks, once it is complete.
  for (const Contribution& contribution : update.contributions) {
    const auto size = twin.held_sizes.find(contribution);
    if (size == twin.held_sizes.end()) continue;
    twin.running_rms.Add(size->second);
    update.sizes.push_back(size->second);
    twin.held_sizes.erase(size);
  }
  Versions slots = twin.slots.back();
  twin.versions.push_back(
      arithmetic_.Apply(twin.range, twin.versions.size() - 1,
                        twin.versions.back(), &slots, update));
  twin.slots.push_back(std::move(slots));
  twin.updates.push_back(std::move(update));
}

void ShardTwins::CompareState(const ShardTwin& twin,
                              const ShardMachine& machine,
                              const std::string& when) {
  if (const std::optional<Violation> found =
          comparison_.Difference(twin, machine)) {
    findings_.Report(found->invariant,
                     absl::StrCat(twin.name, ", ", when, ": ", found->what));
  }
}

const wire::View& ShardTwins::ViewFor(const Life& life, Owner owner) const {
  return views_.Live(life) ? views_.latest() : threads_.at(owner).view->proto();
}

const wire::View& ShardTwins::ViewForHeld(const ShardTwin& twin,
                                          Owner owner) const {
  const auto live = std::find_if(
      twin.held.begin(), twin.held.end(),
      [&](const Contribution& held) { return views_.Live(held.life); });
  return ViewFor((live == twin.held.end() ? twin.held.begin() : live)->life,
                 owner);
}

bool ShardTwins::IsDeposed(int32_t shard, Owner owner) const {
  const auto thread = threads_.find(owner);
  if (thread == threads_.end() || thread->second.view == nullptr) return false;
  const View& view = *thread->second.view;
  auto twin = twins_.find(shard);
  // What is split off by a view that comes late, of a shard that has gone to
  // somebody else since, who has not split it yet.
  for (ShardId part{shard}; twin == twins_.end() && part != view.OriginOf(part);
       twin = twins_.find(static_cast<int32_t>(part))) {
    part = view.OriginOf(part);
  }
  return twin != twins_.end() && view.number() < twin->second.promoted_in;
}

bool HasEnough(const ShardTwin& twin, const wire::View& view) {
  const Clock clock = twin.held.front().clock;
  int present = 0;
  bool may_come = false;  // Somebody's gradient of this clock.
  for (const auto& [life, participant] : twin.participants) {
    present += participant.present;
    may_come = may_come || (participant.present && participant.clock <= clock);
  }
  const sync::Mode& mode = PhaseAt(view, clock).mode();
  const int spare = mode.has_backup() ? mode.backup().workers() : 0;
  return !may_come ||
         static_cast<int>(twin.held.size()) >= std::max(1, present - spare);
}

}  // namespace slackline::sim
