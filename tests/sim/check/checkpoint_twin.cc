#include "tests/sim/check/checkpoint_twin.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {
namespace {

// The reason of a job says this that was to be suspended after its last step.
constexpr char kAfterLast[] = "none is taken after the last step";

}  // namespace

void CheckpointTwin::CheckKept(const TwinCut& cut, const StoredByName& shards) {
  // There is one part, of who was the chief.
  const auto is_it = [&](const auto& kept) {
    return kept.second != nullptr &&
           absl::c_all_of(shards, [&](const auto& shard) {
             return IsOf(*kept.second, *shard.second);
           });
  };
  if (absl::c_any_of(cut.kept, is_it)) return;
  findings_.Report(Invariant::kCheckpoint,
                   absl::StrCat("the checkpoint of cut ", cut.proto.number(),
                                " is not what a worker has kept"));
}

bool CheckpointTwin::IsOf(const JobModel& model,
                          const ShardState& shard) const {
  const View& view = *model.state.view;
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    const ShardRange& range = view.shard(ShardId{id});
    if (view.table(range.table).name() != shard.table ||
        !range.region.Contains(shard.region)) {
      continue;
    }
    const auto table = static_cast<size_t>(range.table);
    const auto same = [&](const Tensor& whole, const Payload& part) {
      return SameBits(Tensor(whole.begin() + shard.region.begin(),
                             whole.begin() + shard.region.end()),
                      FloatsOf(part));
    };
    bool all = shard.version == model.state.versions[static_cast<size_t>(id)] &&
               shard.slots.size() == model.state.slots[table].size() &&
               same(model.state.values[table], shard.values);
    for (size_t i = 0; all && i < shard.slots.size(); ++i)
      all = same(model.state.slots[table][i], shard.slots[i]);
    return all;
  }
  return false;
}

void CheckpointTwin::CheckManifest(const TwinCut& cut,
                                   const checkpoint::Manifest& manifest) {
  const std::string what =
      absl::StrCat("the manifest of cut ", cut.proto.number(), " ");
  std::map<int32_t, Clock> clocks;
  for (const wire::Cut::Until& until : cut.proto.until())
    clocks[until.rank()] = until.clock();
  Clock smallest = cut.proto.clock();
  for (const auto& [rank, clock] : clocks)
    smallest = smallest == 0 ? clock : std::min<Clock>(smallest, clock);
  std::map<int32_t, Clock> said;
  for (const checkpoint::WorkerClock& worker : manifest.worker())
    said[worker.rank()] = worker.clock();
  // Who is not listed is at `clock`.
  const auto said_of = [&](int32_t rank) {
    const auto found = said.find(rank);
    return found == said.end() ? manifest.clock() : found->second;
  };
  for (const auto& [rank, clock] : clocks) {
    if (said_of(rank) == clock) continue;
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat(what, "has rank ", rank, " at clock ",
                                  said_of(rank), ", not ", clock));
  }
  if (manifest.clock() != smallest ||
      (clocks.empty() && manifest.worker_size() > 0)) {
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat(what, "is of clock ", manifest.clock(),
                                  ", not ", smallest));
  }
  if (manifest.workers() != scenario_.workers ||
      manifest.steps_total() != scenario_.steps ||
      manifest.steps_per_epoch() != scenario_.steps ||
      manifest.table_size() != views_.latest().table_size()) {
    findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(what, "is of another job: ", manifest.ShortDebugString()));
  }
  for (int i = 0; i < manifest.table_size() && i < views_.latest().table_size();
       ++i) {
    const checkpoint::Table& table = manifest.table(i);
    const wire::Table& expected = views_.latest().table(i);
    if (table.name() == expected.name() && table.shape_size() == 1 &&
        table.shape(0) == expected.shape(0) &&
        table.optimizer().kind_case() ==
            scenario_.OptimizerOf(TableId{i}).kind_case()) {
      continue;
    }
    findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(what, "has table ", table.ShortDebugString()));
  }
}

void CheckpointTwin::OnCheckpoint(
    int32_t number,
    const absl::StatusOr<std::shared_ptr<const SimCheckpoint>>& made) {
  const auto found = cuts_.cuts().find(number);
  if (found == cuts_.cuts().end()) {
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat("cut ", number, ", which no view has, is done"));
  }
  TwinCut& cut = found->second;
  if (cut.given_up) return;  // It came too late.
  if (absl::IsNotFound(made.status())) {
    return findings_.Report(Invariant::kCheckpoint,
                            std::string(made.status().message()));
  }
  if (cut.completed) {
    return findings_.Report(Invariant::kCheckpoint,
                            absl::StrCat("cut ", number, " is done once more"));
  }
  if (!made.ok()) {
    ++findings_.stats().checkpoints_failed;
    return;
  }
  cut.completed = true;
  ++findings_.stats().checkpoints;
  findings_.stats().checkpoints_of_each += cut.proto.until_size() > 0;
  findings_.stats().checkpoints_by_worker += cut.proto.by_worker();
  const SimCheckpoint& checkpoint = **made;
  cut.clock = checkpoint.manifest.clock();
  CheckManifest(cut, checkpoint.manifest);
  // Each element once.
  StoredByName shards;
  for (const ShardState& shard : checkpoint.shards) {
    if (shards.insert({{shard.table, shard.region.begin()}, &shard}).second)
      continue;
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat("the checkpoint of cut ", number, " has ",
                                  shard.table, shard.region.Text(), " twice"));
  }
  auto next = shards.begin();
  for (const wire::Table& table : views_.latest().table()) {
    int64_t end = 0;
    for (; next != shards.end() && next->first.first == table.name(); ++next) {
      if (next->first.second != end) break;
      end = next->second->region.end();
    }
    if (end == table.shape(0)) continue;
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat("the checkpoint of cut ", number, " has ", table.name(),
                     " up to element ", end, " of ", table.shape(0)));
  }
  if (next != shards.end()) {
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat("the checkpoint of cut ", number, " has a shard of ",
                     next->first.first, ", which is no table"));
  }
  programs_.CheckPrograms(cut, checkpoint);
  if (cut.proto.by_worker()) return CheckKept(cut, shards);
  for (const auto& [owner, part] : cut.parts) {
    for (const CutShard& expected : part) {
      const auto actual = shards.find({expected.table, expected.begin});
      if (actual == shards.end() ||
          actual->second->region.end() != expected.end) {
        findings_.Report(
            Invariant::kCheckpoint,
            absl::StrCat(
                "the checkpoint of cut ", number, " lacks ",
                ShardName(expected.table, expected.begin, expected.end)));
        continue;
      }
      cuts_.CompareCut(expected, *actual->second,
                       absl::StrCat("in the checkpoint of cut ", number));
    }
  }
}

void CheckpointTwin::OnGivenUp(int32_t number, const char* excuse) {
  ++findings_.stats().checkpoints_given_up;
  const auto found = cuts_.cuts().find(number);
  if (found == cuts_.cuts().end() || found->second.completed ||
      excuse == nullptr) {
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat("cut ", number, " is given up without need"));
  }
  found->second.given_up = true;
}

void CheckpointTwin::OnSuspended(const wire::JobEnd& end) {
  if (!scenario_.suspends()) {
    return findings_.Report(
        Invariant::kOutcome,
        absl::StrCat("nobody has stopped the job: ", end.reason()));
  }
  if (end.cause() == wire::JobEnd::SUSPENDED) {
    // A cut that was given up is not completed, and the last one is not older.
    const bool whole = !cuts_.cuts().empty() &&
                       cuts_.cuts().rbegin()->second.completed &&
                       cuts_.cuts().rbegin()->second.clock == end.clock();
    if (whole) return;
    return findings_.Report(
        Invariant::kOutcome,
        absl::StrCat("the job is suspended without a whole checkpoint: ",
                     end.reason()));
  }
  const bool says_why =
      absl::StrContains(end.reason(), "; without a checkpoint: ");
  if (says_why && absl::StrContains(end.reason(), kAfterLast))
    return CheckStoppedAfterLast(end);
  const bool failed =
      scenario_.RefusesCheckpoints() ||
      findings_.stats().checkpoints_given_up +
              findings_.stats().checkpoints_failed >
          0 ||
      absl::StrContains(end.reason(), "the job does not run") ||
      absl::StrContains(end.reason(), "it was not there within");
  if (says_why && failed) return;
  findings_.Report(
      Invariant::kOutcome,
      absl::StrCat("the job was stopped without a checkpoint, and without "
                   "need: ",
                   end.reason()));
}

void CheckpointTwin::CheckStoppedAfterLast(const wire::JobEnd& end) {
  ++findings_.stats().stopped_after_last;
  bool names_one = false;
  for (const wire::WorkerMember& worker : views_.latest().worker()) {
    const Life life{Rank{worker.rank()}, worker.incarnation()};
    const std::string name = absl::StrCat("worker ", worker.rank());
    const auto reached = views_.reached().find(life);
    if (reached == views_.reached().end() ||
        reached->second + 1 < EndOf(views_.latest())) {
      findings_.Report(
          Invariant::kOutcome,
          absl::StrCat("the job was stopped as after its last step, which ",
                       name, " has not begun: ", end.reason()));
    }
    if (!absl::StrContains(end.reason(), name)) continue;
    names_one = true;
    if (worked_after_last_.count(life) > 0) continue;
    findings_.Report(
        Invariant::kOutcome,
        absl::StrCat("the job was stopped because the script of ", name,
                     " was at work after its last step, which it never "
                     "was: ",
                     end.reason()));
  }
  if (names_one) return;
  findings_.Report(
      Invariant::kOutcome,
      absl::StrCat("the job was stopped because of a script that is not "
                   "named, or whose worker has left: ",
                   end.reason()));
}

void CheckpointTwin::OnCheckpointRefused(const std::string& why) {
  if (scenario_.RefusesCheckpoints() || findings_.stats().cuts_dropped > 0 ||
      findings_.stats().checkpoints_given_up +
              findings_.stats().checkpoints_failed >
          0 ||
      views_.latest().state() != wire::RUNNING) {
    return;
  }
  // Or somebody is near the end.
  const Clock near = EndOf(views_.latest()) - kStepLimitAhead;
  for (const auto& [life, clock] : views_.reached()) {
    if (clock + 1 >= near) return;  // It may have completed that one.
  }
  for (const wire::WorkerMember& worker : views_.latest().worker()) {
    if (worker.begins_at() >= near) return;
  }
  if (absl::StrContains(why, "ended early") &&
      absl::c_any_of(scenario_.placement.user, [](const UserAction& action) {
        return action.kind == UserAction::Kind::kFinish;
      })) {
    return;
  }
  findings_.Report(
      Invariant::kCheckpoint,
      absl::StrCat("a checkpoint was refused without need: ", why));
}

}  // namespace slackline::sim
