#include "tests/sim/check/resume_twin.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tests/sim/check/bits.h"
#include "tests/sim/job/sim_checkpoint.h"
#include "tests/sim/job/sim_rows.h"

namespace slackline::sim {

Clock ResumeTwin::BeginsAt(int32_t rank) const {
  if (scenario_.resume == nullptr) return 0;
  const checkpoint::Manifest& manifest = scenario_.resume->manifest;
  Clock of_rank = manifest.clock();
  Clock smallest = manifest.clock();
  Clock largest = manifest.clock();
  for (const checkpoint::WorkerClock& worker : manifest.worker()) {
    if (worker.rank() == rank) of_rank = worker.clock();
    smallest = std::min<Clock>(smallest, worker.clock());
    largest = std::max<Clock>(largest, worker.clock());
  }
  if (manifest.workers() == scenario_.workers &&
      manifest.steps_per_epoch() == scenario_.steps) {
    // Where a phase begins they meet, and by all-reduce they have one clock.
    const wire::Phase& phase = views_.PhaseOf(smallest);
    const bool apart = !phase.mode().has_allreduce() &&
                       views_.PhaseOf(largest).from() == phase.from();
    return apart ? of_rank : smallest;
  }
  return std::llround(static_cast<double>(smallest) *
                      static_cast<double>(scenario_.steps) /
                      static_cast<double>(manifest.steps_per_epoch()));
}

std::pair<Clock, Clock> ResumeTwin::Beginnings() const {
  std::pair<Clock, Clock> both{BeginsAt(0), BeginsAt(0)};
  for (int32_t rank = 1; rank < scenario_.workers; ++rank) {
    both.first = std::min(both.first, BeginsAt(rank));
    both.second = std::max(both.second, BeginsAt(rank));
  }
  return both;
}

void ResumeTwin::CheckBegin(const wire::View& view) {
  if (view.begins_at() != Beginnings().first) {
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat("the job begins at clock ", view.begins_at(),
                                  ", not ", Beginnings().first));
  }
  for (const wire::WorkerMember& worker : view.worker()) {
    const Clock expected = worker.founder() ? BeginsAt(worker.rank()) : 0;
    if (worker.begins_at() == expected) continue;
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat("worker ", worker.rank(), " begins at clock ",
                                  worker.begins_at(), ", not ", expected));
  }
  for (const wire::Table& table : view.table()) {
    const bool of_checkpoint =
        table.initializer().kind() == wire::Initializer::OF_CHECKPOINT;
    if (of_checkpoint == (scenario_.resume != nullptr)) continue;
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat(table.name(), " begins as ",
                                  table.initializer().ShortDebugString()));
  }
}

void ResumeTwin::Resume(ShardTwin& twin) const {
  const std::string table =
      scenario_.Tables()[static_cast<size_t>(twin.range.table)].name();
  const absl::StatusOr<ShardState> stored =
      SimStoredShards(scenario_.resume)
          .Read(table, twin.range.region,
                StoreOf(scenario_, twin.range.table)->form());
  SL_CHECK(stored.ok(), stored.status().ToString());
  const auto floats_of = [&](const Payload& tensor) {
    return FloatsOf(scenario_, twin.range.table, twin.range.region, tensor);
  };
  Versions slots;
  for (const Payload& slot : stored->slots) slots.push_back(floats_of(slot));
  // Nobody asks for what was before.
  twin.versions.assign(stored->version + 1, floats_of(stored->values));
  twin.slots.assign(stored->version + 1, slots);
  twin.updates.assign(stored->version, TwinUpdate());
  twin.after_turns = {stored->version};
  twin.running_rms = twin.resumed_rms = stored->running_rms;
  if (stored->turns.has_value()) ResumeTurns(*stored->turns, twin);
}

void ResumeTwin::ResumeTurns(const StoredTurns& stored, ShardTwin& twin) const {
  TurnPlan::Clocks begins_at;
  for (int32_t rank = 0; rank < scenario_.workers; ++rank)
    begins_at[rank] = BeginsAt(rank);
  // Nobody asks for the others.
  const Version present = twin.after_turns.front();
  twin.after_turns.assign(turns_.OverAt(twin, begins_at) + 1, present);
  twin.waiting = turns_.WaitingAt(twin, begins_at);
  const auto said = [&](size_t turns, Version version) {
    if (turns < twin.after_turns.size()) twin.after_turns[turns] = version;
  };
  for (const wire::Turns::Waiting& waiting : stored.turns.waiting()) {
    said(turns_.TurnsBefore(twin, Rank{waiting.rank()}, waiting.clock()),
         waiting.base());
  }
  findings_.stats().resumed_waiting += stored.turns.waiting_size();
  for (int i = 0; i < stored.turns.kept_size(); ++i) {
    const wire::Turns::Kept& kept = stored.turns.kept(i);
    said(static_cast<size_t>(kept.turns()), kept.version());
    if (kept.version() < twin.versions.size()) {
      twin.versions[kept.version()] = FloatsOf(
          stored.tensors[static_cast<size_t>(stored.turns.waiting_size() + i)]);
    }
  }
}

void ResumeTwin::CheckResumed(const ShardTwin& twin, const ShardCore& core) {
  const ShardMachine* const machine = core.MachineOf(twin.range.shard);
  if (machine == nullptr) {
    return findings_.Report(Invariant::kCheckpoint,
                            absl::StrCat(twin.name, " was not restored"));
  }
  ++findings_.stats().resumed_shards;
  findings_.stats().row_resumed += scenario_.HasRows(twin.range.table);
  if (const std::optional<Violation> found =
          comparison_.Difference(twin, *machine)) {
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat(twin.name, ", as it begins: ", found->what));
  }
}

}  // namespace slackline::sim
