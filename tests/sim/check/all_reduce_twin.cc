#include "tests/sim/check/all_reduce_twin.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {

JobModelPtr AllReduceTwin::ModelOf(const Life& life, const std::string& what) {
  const auto found = replicas_.find(life);
  if (found != replicas_.end()) return found->second;
  findings_.Report(Invariant::kReplica,
                   absl::StrCat(Name(life.first, life.second), " ", what,
                                " and has no state"));
  return nullptr;
}

void AllReduceTwin::CompareReplica(const Life& life, const JobModel& model,
                                   const SimReplica& state,
                                   const std::string& when) {
  if (model.state.SameBits(state)) return;
  findings_.Report(
      Invariant::kReplica,
      absl::StrCat(Name(life.first, life.second), " has another state ", when,
                   " at clock ", model.clock));
}

void AllReduceTwin::OnInitial(Rank rank, Incarnation incarnation,
                              const SimReplica& state) {
  if (scenario_.resume != nullptr) {
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(Name(rank, incarnation), " begins anew; the job goes on"));
  }
  // One for all, unless each worker has values of its own.
  JobModelPtr& initial =
      initial_[scenario_.BeginsWithWorker() ? rank : Rank{0}];
  if (initial == nullptr) {
    JobModel model;
    model.state = SimReplica::Initial(scenario_, rank, state.view);
    initial = std::make_shared<const JobModel>(std::move(model));
  }
  CompareReplica({rank, incarnation}, *initial, state, "to begin with");
  replicas_[{rank, incarnation}] = initial;
}

void AllReduceTwin::OnTookState(Rank rank, Incarnation incarnation, Clock clock,
                                const SimReplica& state) {
  const Life life{rank, incarnation};
  const std::string who =
      absl::StrCat(Name(rank, incarnation), " took the state of clock ", clock);
  JobModelPtr& taken = taken_[clock];
  if (taken != nullptr) {
    replicas_[life] = taken;
    if (views_.Live(life))
      CompareReplica(life, *taken, state, "from the servers");
    return;
  }
  JobModel model;
  model.clock = clock;
  model.state = state;
  const auto made = std::make_shared<const JobModel>(std::move(model));
  replicas_[life] = made;
  if (!views_.Live(life)) return;  // It goes nowhere with it.
  taken = made;
  ++findings_.stats().states_taken;
  for (const auto& [id, twin] : shards_.twins()) {
    if (!twin.held.empty()) {
      findings_.Report(Invariant::kLostPush,
                       absl::StrCat(who, "; ", twin.name,
                                    " holds gradients that it has "
                                    "not applied"));
    }
    for (const auto& [other, participant] : twin.participants) {
      if (participant.present && views_.Live(other) &&
          participant.clock != clock) {
        findings_.Report(
            Invariant::kLostPush,
            absl::StrCat(who, "; ", twin.name, " has ", participant.clock,
                         " clocks of ", Name(other.first, other.second)));
      }
    }
    const size_t table = static_cast<size_t>(twin.range.table);
    const auto part = [&, &twin = twin](const Tensor& tensor) {
      return Tensor(tensor.begin() + twin.range.region.begin(),
                    tensor.begin() + twin.range.region.end());
    };
    int32_t pulled_as = static_cast<int32_t>(twin.range.shard);
    while (static_cast<size_t>(pulled_as) >= state.versions.size())
      pulled_as =
          shards_.twins().at(pulled_as).origin;  // It was cut off since.
    bool same = SameBits(part(state.values[table]), twin.versions.back()) &&
                state.versions[static_cast<size_t>(pulled_as)] + 1 ==
                    twin.versions.size();
    for (size_t i = 0; i < twin.slots.back().size(); ++i) {
      same =
          same && SameBits(part(state.slots[table][i]), twin.slots.back()[i]);
    }
    if (!same) {
      findings_.Report(
          Invariant::kReplica,
          absl::StrCat(who, "; that of ", twin.name, " at version ",
                       twin.versions.size() - 1, " is another"));
    }
  }
}

void AllReduceTwin::OnShared(Rank rank, Incarnation incarnation,
                             uint64_t group) {
  const auto found = replicas_.find({rank, incarnation});
  if (found != replicas_.end())
    shared_[{group, {rank, incarnation}}] = found->second;
}

void AllReduceTwin::OnExchange(uint64_t group,
                               const std::vector<SimShare>& shares) {
  if (bases_.count(group) > 0) return;
  Clock most = -1;
  bool agreed = false;  // On whose values count, before the first step.
  for (const SimShare& share : shares) {
    most = std::max(most, share.standing.clock);
    agreed =
        agreed || (share.standing.clock >= 0 && !share.standing.own_values);
  }
  if (most < 0) return;
  JobModelPtr base;
  JobModelPtr of_the_dead;
  for (const SimShare& share : shares) {
    if (share.standing.clock != most) continue;
    const JobModelPtr model = shared_[{group, {share.rank, share.incarnation}}];
    if (share.standing.own_values) {
      if (agreed) continue;
      base = model;  // The first one's count.
      break;
    }
    // Who has been removed, and has not heard of it, took a state of its own.
    if (model != nullptr && !views_.Live({share.rank, share.incarnation})) {
      of_the_dead = model;
      continue;
    }
    if (base == nullptr) base = model;
    if (model == nullptr || base != model || base->clock != most) {
      return findings_.Report(
          Invariant::kReplica,
          absl::StrCat(Name(share.rank, share.incarnation), " is at clock ",
                       most,
                       " with another history than the others of "
                       "group ",
                       group));
    }
  }
  if (base == nullptr) base = of_the_dead;  // It goes nowhere.
  ++findings_.stats().groups;
  bool apart = false;
  for (const SimShare& share : shares) {
    apart = apart || share.standing.clock != most;
    if (share.standing.clock == most || share.standing.clock < 0) continue;
    const JobModelPtr behind =
        shared_[{group, {share.rank, share.incarnation}}];
    // Steps of groups that knew nothing of it yet are no business of its.
    int64_t missed = 0;
    JobModelPtr ancestor = base;
    while (ancestor != nullptr && ancestor != behind) {
      missed += ancestor->group_number >=
                views_.JoinedIn({share.rank, share.incarnation});
      ancestor = ancestor->before;
    }
    if (ancestor == nullptr) {
      findings_.Report(Invariant::kLostPush,
                       absl::StrCat("group ", group, " goes on from clock ",
                                    most, " without steps of ",
                                    Name(share.rank, share.incarnation)));
    }
    if (missed > 1) {
      findings_.Report(
          Invariant::kReplica,
          absl::StrCat(Name(share.rank, share.incarnation), " is at clock ",
                       share.standing.clock, ", its group at ", most));
    }
  }
  findings_.stats().groups_apart += apart;
  bases_[group] = base;
}

void AllReduceTwin::OnCaughtUp(Rank rank, Incarnation incarnation,
                               uint64_t group, Clock clock,
                               const SimReplica& state) {
  const JobModelPtr base = bases_[group];
  if (base == nullptr) return;  // It was reported.
  const Life life{rank, incarnation};
  CompareReplica(life, *base, state, "than its group");
  if (clock != base->clock) {
    findings_.Report(
        Invariant::kReplica,
        absl::StrCat(Name(rank, incarnation), " goes on from clock ", clock,
                     ", its group from clock ", base->clock));
  }
  replicas_[life] = base;
}

void AllReduceTwin::OnReduced(Rank rank, Incarnation incarnation,
                              uint64_t group,
                              const std::vector<SimShare>& shares, Clock clock,
                              const SimReplica& state) {
  const Life life{rank, incarnation};
  const JobModelPtr before = ModelOf(life, "did a step by all-reduce");
  if (before == nullptr) return;
  for (const SimShare& share : shares) {
    if (share.standing.clock + 1 == clock && before->clock + 1 == clock)
      continue;
    return findings_.Report(
        Invariant::kReplica,
        absl::StrCat(Name(rank, incarnation), " of clock ", before->clock,
                     " sums a gradient of clock ", share.standing.clock, " by ",
                     Name(share.rank, share.incarnation)));
  }
  JobModelPtr& after = reduced_[{group, clock}];
  if (after == nullptr) {
    for (const auto& [other, model] : reduced_) {
      findings_.stats().steps_repeated +=
          other.second == clock && other.first != group;
    }
    ++findings_.stats().steps_reduced;
    JobModel model;
    model.clock = clock;
    model.before = before;
    model.group_number = group;
    model.state = before->state;
    TwinUpdate update;
    for (const SimShare& share : shares) {
      model.group.push_back({share.rank, share.incarnation});
      if (!share.counts) continue;
      update.contributions.push_back(
          {.life = model.group.back(), .clock = clock - 1});
    }
    const bool nobody = update.contributions.empty();
    findings_.stats().steps_of_nobody += nobody;
    update.divisor = static_cast<int>(update.contributions.size());
    update.by_all_reduce = true;
    update.clock = clock - 1;
    const View& view = *model.state.view;
    for (int32_t id = 0; id < view.shard_count() && !nobody; ++id) {
      const ShardRange& range = view.shard(ShardId{id});
      const size_t table = static_cast<size_t>(range.table);
      const auto cut = [&](const Tensor& tensor) {
        return Tensor(tensor.begin() + range.region.begin(),
                      tensor.begin() + range.region.end());
      };
      const auto put = [&](const Tensor& from, Tensor* tensor) {
        std::copy(from.begin(), from.end(),
                  tensor->begin() + range.region.begin());
      };
      Versions slots;
      for (const Tensor& slot : model.state.slots[table])
        slots.push_back(cut(slot));
      Version& version = model.state.versions[static_cast<size_t>(id)];
      put(arithmetic_.Apply(range, version, cut(model.state.values[table]),
                            &slots, update),
          &model.state.values[table]);
      for (size_t i = 0; i < slots.size(); ++i)
        put(slots[i], &model.state.slots[table][i]);
      ++version;
    }
    after = std::make_shared<const JobModel>(std::move(model));
  }
  if (after->before != before) {
    return findings_.Report(
        Invariant::kReplica,
        absl::StrCat(Name(rank, incarnation), " did step ", clock - 1,
                     " from another state than the others of group ", group));
  }
  CompareReplica(life, *after, state, "after a step");
  replicas_[life] = after;
}

void AllReduceTwin::OnInstalled(ShardTwin& twin, const ShardTraceRecord& record,
                                const View& view) {
  const Life life{record.rank, record.incarnation};
  const std::string what =
      absl::StrCat(twin.name, " was installed at clock ", record.clock, " by ",
                   Name(record.rank, record.incarnation));
  if (twin.installed_at >= record.clock) {
    return findings_.Report(Invariant::kExactlyOnce,
                            absl::StrCat(what, " once more"));
  }
  twin.installed_at = record.clock;
  twin.running_rms = {};
  twin.after_turns = {record.version};  // Turns begin here.
  ++findings_.stats().installs;
  const JobModelPtr model = ModelOf(life, "installs shards");
  if (model == nullptr) return;
  if (model->clock != record.clock) {
    return findings_.Report(
        Invariant::kReplica,
        absl::StrCat(what, ", which is at clock ", model->clock));
  }
  JobModelPtr& installed = installed_[record.clock];
  if (installed == nullptr) {
    installed = model;
    CheckHistory(model);
  }
  if (installed != model) {
    return findings_.Report(Invariant::kReplica,
                            absl::StrCat(what,
                                         ", which has another history than who "
                                         "installed others"));
  }
  // What happened to the shard meanwhile.
  std::vector<const JobModel*> steps;
  for (const JobModel* at = model.get(); at->before != nullptr;
       at = at->before.get()) {
    steps.insert(steps.begin(), at);
  }
  const JobModel& first = steps.empty() ? *model : *steps.front()->before;
  const auto version_in = [&](const JobModel& of) {
    return of.state.VersionOf(view, twin.range.shard);
  };
  if (scenario_.BeginsWithWorker() && first.clock == 0) {
    // The first worker's optimizer has a past that the shard knows nothing of.
    while (twin.updates.empty() || twin.updates.back().contributions.empty()) {
      if (twin.versions.size() > version_in(first)) break;
      twin.versions.push_back(twin.versions.back());
      twin.slots.push_back(twin.slots.back());
      twin.updates.emplace_back();
    }
  }
  if (version_in(first) + 1 != twin.versions.size()) {
    return findings_.Report(
        Invariant::kLostPush,
        absl::StrCat(what, " from version ", version_in(first),
                     "; it has version ", twin.versions.size() - 1));
  }
  const size_t table = static_cast<size_t>(twin.range.table);
  const auto part = [&](const Tensor& tensor) {
    return Tensor(tensor.begin() + twin.range.region.begin(),
                  tensor.begin() + twin.range.region.end());
  };
  for (const JobModel* const step : steps) {
    TwinUpdate update;
    for (const Life& who : step->group) {
      const Contribution part{.life = who, .clock = step->clock - 1};
      if (!scenario_.elastic.has_value() || examples_.Has(part))
        update.contributions.push_back(part);
    }
    if (update.contributions.empty()) continue;  // It changed nothing.
    update.divisor = static_cast<int>(update.contributions.size());
    update.by_all_reduce = true;
    update.clock = step->clock - 1;
    Versions slots;
    for (const Tensor& slot : step->state.slots[table])
      slots.push_back(part(slot));
    twin.versions.push_back(part(step->state.values[table]));
    twin.slots.push_back(std::move(slots));
    twin.updates.push_back(std::move(update));
  }
  if (record.version + 1 != twin.versions.size()) {
    findings_.Report(Invariant::kVersionOrder,
                     absl::StrCat(what, " with version ", record.version,
                                  ", not ", twin.versions.size() - 1));
  }
  // All are at this clock now.
  for (const wire::WorkerMember& worker : view.workers()) {
    const Clock joined_at = std::max(record.clock, twin.min_clock);
    TwinParticipant& participant =
        twin.participants
            .try_emplace({Rank{worker.rank()}, worker.incarnation()},
                         TwinParticipant{.joined_at = joined_at})
            .first->second;
    participant.clock = std::max(participant.clock, joined_at);
  }
  for (auto& [who, participant] : twin.participants) {
    if (participant.present)
      participant.clock = std::max(participant.clock, record.clock);
  }
  ++twin.participants[life].next_seq;
  UpdateMinClock(twin);
}

void AllReduceTwin::CheckHistory(const JobModelPtr& last) {
  for (const JobModel* at = last.get(); at->before != nullptr;
       at = at->before.get()) {
    for (const wire::WorkerMember& worker : views_.latest().worker()) {
      const Life life{Rank{worker.rank()}, worker.incarnation()};
      const auto start = views_.starts().find(life);
      if (start == views_.starts().end() || start->second >= at->clock ||
          at->group_number < views_.JoinedIn(life)) {
        continue;
      }
      if (std::find(at->group.begin(), at->group.end(), life) !=
          at->group.end()) {
        continue;
      }
      findings_.Report(
          Invariant::kLostPush,
          absl::StrCat("the job's model lacks step ", at->clock - 1, " of ",
                       Name(life.first, life.second)));
    }
  }
}

}  // namespace slackline::sim
