// The checker's part for checkpoints: what each shard is at a cut follows from
// the twin's list of updates alone, whatever the shard did to get there.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "tests/sim/checker.h"
#include "tests/sim/checker_bits.h"
#include "tests/sim/sim_checkpoint.h"

namespace slackline::sim {
namespace {

std::string ShardName(const std::string& table, int64_t begin, int64_t end) {
  return absl::StrCat(table, "[", begin, ", ", end, ")");
}

// The reason of a job says this that was to be suspended after its last step.
constexpr char kAfterLast[] = "none is taken after the last step";

}  // namespace

// ---- The view's cut ---------------------------------------------------------

void Checker::CheckCut(const wire::View& before, const wire::View& view) {
  if (view.state() != wire::RUNNING) return;
  const wire::Cut& cut = view.cut();
  const std::string name =
      absl::StrCat("view ", view.number(), " has cut ", cut.number());
  stats_.cuts_dropped += before.change().has_cutting() &&
                         view.change().id() != before.change().id() &&
                         cut.number() == before.cut().number();
  if (cut.number() == before.cut().number()) {
    if (cut.SerializeAsString() != before.cut().SerializeAsString())
      Report(Invariant::kCheckpoint, absl::StrCat(name, ", which has changed"));
    return;
  }
  ++stats_.cuts;
  stats_.cuts_of_each += cut.until_size() > 0;
  stats_.cuts_by_worker += cut.by_worker();
  Cut& known = cuts_[cut.number()];
  known.proto = cut;
  known.view_number = view.number();
  for (const auto& [life, number] : joined_in_) {
    if (!Live(life)) known.gone.insert(life);
  }
  if (cut.number() != before.cut().number() + 1 ||
      !before.change().has_cutting() || view.move_size() > 0) {
    Report(Invariant::kCheckpoint,
           absl::StrCat(name, " after cut ", before.cut().number(), ", with ",
                        view.move_size(), " moves"));
  }
  for (const auto& [number, other] : cuts_) {
    if (number == cut.number() || other.given_up || other.completed) continue;
    Report(Invariant::kCheckpoint,
           absl::StrCat(name, " before cut ", number, " is done"));
  }
  const Clock end = EndOf(view);
  if (scenario_.RefusesCheckpoints())
    Report(Invariant::kCheckpoint, absl::StrCat(name, ", which is refused"));
  if (cut.until_size() == 0) {
    const bool begins_phase = absl::c_any_of(
        view.phase(),
        [&](const wire::Phase& phase) { return phase.from() == cut.clock(); });
    const bool by_worker =
        cut.clock() > 0 &&
        PhaseAt(view, cut.clock() - 1).mode().has_allreduce();
    if (cut.clock() >= end || begins_phase || by_worker != cut.by_worker()) {
      Report(Invariant::kCheckpoint,
             absl::StrCat(name, " at clock ", cut.clock(),
                          cut.by_worker() ? ", by a worker" : "",
                          ", where there can be none"));
    }
  }
  for (const wire::WorkerMember& worker : view.worker()) {
    const bool keeps = scenario_.checkpoints.programs.count(worker.rank()) > 0;
    if (keeps != worker.keeps_state()) {
      Report(Invariant::kCheckpoint,
             absl::StrCat(name, "; worker ", worker.rank(),
                          " keeps something: ", keeps));
    }
    if (keeps && !worker.done())
      known.programs[{Rank{worker.rank()}, worker.incarnation()}] = cut.clock();
  }
  for (const wire::Cut::Until& until : cut.until()) {
    const auto program =
        known.programs.find({Rank{until.rank()}, until.incarnation()});
    if (program != known.programs.end()) program->second = until.clock();
  }
  std::set<Life> named;
  for (const wire::Cut::Until& until : cut.until()) {
    named.insert({Rank{until.rank()}, until.incarnation()});
    const sync::Mode& mode =
        PhaseAt(view, std::max<Clock>(0, until.clock() - 1)).mode();
    if (mode.has_ssp() || mode.has_dssp() || mode.has_asp()) continue;
    Report(Invariant::kCheckpoint,
           absl::StrCat(name, " in which each worker has its own clock, and ",
                        until.clock(), " is of mode ", ModeText(mode)));
  }
  if (cut.until_size() > 0 && named != live_) {
    Report(Invariant::kCheckpoint,
           absl::StrCat(name, ", which names ", named.size(), " workers, not ",
                        live_.size()));
  }
  // Nobody is there already: not even to ask for that clock's parameters.
  for (const auto& [life, clock] : reached_) {
    if (!Live(life)) continue;
    const Contribution next{.life = life, .clock = clock};
    if (clock >= end || IsBefore(known, next)) continue;
    Report(Invariant::kCheckpoint,
           absl::StrCat(name, "; ", Name(life.first, life.second),
                        " has reached clock ", clock, " already"));
  }
}

void Checker::CheckNoCutPending(const std::string& what) {
  if (cuts_.empty()) return;
  const auto& [number, cut] = *cuts_.rbegin();
  if (cut.given_up || cut.completed || cut.proto.by_worker()) return;
  for (const auto& [id, twin] : twins_) {
    if (twin.cut_done >= number) continue;
    return Report(
        Invariant::kCheckpoint,
        absl::StrCat("view ", latest_view_.number(), " ", what, " before ",
                     twin.name, " has its state at cut ", number));
  }
}

uint64_t Checker::ViewOfCut(int32_t cut) const {
  const auto found = cuts_.find(cut);
  return found == cuts_.end() ? 0 : found->second.view_number;
}

// ---- What is before a cut ---------------------------------------------------

bool Checker::IsBefore(const Cut& cut, const Contribution& contribution) const {
  for (const wire::Cut::Until& until : cut.proto.until()) {
    if (Life{Rank{until.rank()}, until.incarnation()} == contribution.life)
      return contribution.clock < until.clock();
  }
  const bool uniform = cut.proto.until_size() == 0;
  if (uniform && contribution.clock < cut.proto.clock()) return true;
  return cut.gone.count(contribution.life) > 0;
}

bool Checker::IsBefore(const Cut& cut, const Update& update) const {
  if (update.contributions.empty()) return true;
  // Gradients that wait for each other make one update, of one clock.
  if (update.held || update.by_all_reduce)
    return cut.proto.until_size() > 0 || update.clock < cut.proto.clock();
  return IsBefore(cut, update.contributions.front());
}

int Checker::PresentAt(const Cut& cut, const Twin& twin,
                       const Update& update) const {
  return static_cast<int>(
      absl::c_count_if(update.present, [&](const Life& who) {
        if (cut.gone.count(who) > 0) return true;
        if (cut.proto.until_size() == 0)
          return twin.participants.at(who).joined_at < cut.proto.clock();
        return absl::c_any_of(cut.proto.until(), [&](const auto& until) {
          return Life{Rank{until.rank()}, until.incarnation()} == who;
        });
      }));
}

bool Checker::IsComplete(const Cut& cut, const Twin& twin) const {
  if (cut.proto.until_size() == 0) return twin.complete >= cut.proto.clock();
  return absl::c_all_of(cut.proto.until(), [&](const auto& until) {
    const auto who =
        twin.participants.find({Rank{until.rank()}, until.incarnation()});
    return who == twin.participants.end() || !who->second.present ||
           who->second.clock >= until.clock();
  });
}

Checker::CutShard Checker::StateAt(const Cut& cut, const Twin& twin) const {
  CutShard state{
      .table = scenario_.Tables()[static_cast<size_t>(twin.range.table)].name(),
      .begin = twin.range.begin,
      .end = twin.range.end};
  // Who has joined after the cut counts at the live shard alone.
  const auto is_same = [&](const Update& update) {
    return IsBefore(cut, update) &&
           (update.present.empty() ||
            PresentAt(cut, twin, update) == update.divisor);
  };
  size_t next = 0;
  while (next < twin.updates.size() && is_same(twin.updates[next])) ++next;
  state.version = next;
  state.values = twin.versions[next];
  state.slots = twin.slots[next];
  // In the order in which updates have come.
  state.running_rms = twin.resumed_rms;
  for (const Update& update : twin.updates) {
    if (!IsBefore(cut, update)) continue;
    if (update.by_all_reduce) state.running_rms = {};  // It was installed.
    for (const double size : update.sizes) state.running_rms.Add(size);
  }
  // Those that came behind some after the cut.
  for (; next < twin.updates.size(); ++next) {
    if (!IsBefore(cut, twin.updates[next])) continue;
    Update update = twin.updates[next];
    if (!update.present.empty()) update.divisor = PresentAt(cut, twin, update);
    state.values =
        Apply(twin, state.version, state.values, &state.slots, update);
    ++state.version;
    state.late = true;
  }
  return state;
}

void Checker::CheckCutFence(const Twin& twin, const Contribution& contribution,
                            const std::string& who, Owner owner) {
  const int32_t known = shard_threads_[owner].view->proto().cut().number();
  for (const auto& [number, cut] : cuts_) {
    if (cut.proto.by_worker()) continue;
    const bool before = IsBefore(cut, contribution);
    if (number > known && !before && Live(contribution.life)) {
      Report(Invariant::kCheckpoint,
             absl::StrCat(who, ", after cut ", number, ", and knows ", known,
                          " cuts"));
    }
    // Its state may have what a failover has lost, and workers send again.
    if (number == twin.cut_done && number > twin.cut_before_failover &&
        before && !cut.given_up) {
      Report(Invariant::kCheckpoint,
             absl::StrCat(who, ", which its state at cut ", number, " lacks"));
    }
  }
}

void Checker::FollowCopy(Twin& twin, const ShardCore& core) {
  const ShardCut* const cut = core.CutOf(twin.range.shard);
  const bool copied = cut != nullptr && cut->copied();
  stats_.cut_copies += copied && !twin.cut_copied;
  if (copied && !twin.cut_copied) {
    const wire::Cut& of = latest_view_.cut();
    const sync::Mode& mode = PhaseOf(of.clock()).mode();
    if (of.until_size() == 0 && (mode.has_bsp() || mode.has_backup())) {
      Report(Invariant::kBoundedState,
             absl::StrCat(twin.name, " is copied for a cut in ", ModeText(mode),
                          ", where nothing comes too early"));
    }
  }
  twin.cut_copied = copied;
}

// ---- Parts ------------------------------------------------------------------

void Checker::CompareCut(const CutShard& expected, const ShardState& actual,
                         const std::string& when) {
  const std::string what =
      absl::StrCat(ShardName(expected.table, expected.begin, expected.end),
                   " of version ", expected.version, ", ", when);
  if (actual.version != expected.version) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat(what, ": has version ", actual.version));
  }
  if (!SameBits(FloatsOf(actual.values), expected.values)) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat(what, ": has other values"));
  }
  if (actual.running_rms != expected.running_rms) {
    return Report(
        Invariant::kCheckpoint,
        absl::StrCat(what, ": has the running size ", actual.running_rms.mean(),
                     " of ", actual.running_rms.count(), ", not ",
                     expected.running_rms.mean(), " of ",
                     expected.running_rms.count()));
  }
  if (actual.slots.size() != expected.slots.size()) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat(what, ": has ", actual.slots.size(), " slots"));
  }
  for (size_t i = 0; i < expected.slots.size(); ++i) {
    if (SameBits(FloatsOf(actual.slots[i]), expected.slots[i])) continue;
    return Report(Invariant::kCheckpoint,
                  absl::StrCat(what, ": has another state in slot ", i));
  }
}

void Checker::OnCut(Owner owner, const ShardCore::CutState& state) {
  const std::string here =
      absl::StrCat("server ", owner.server, " thread ", owner.thread, " has ",
                   state.shards.size(), " shards at cut ", state.number);
  const auto found = cuts_.find(state.number);
  if (found == cuts_.end() || found->second.proto.by_worker() ||
      state.number != shard_threads_[owner].view->proto().cut().number() ||
      found->second.parts.count(owner) > 0) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat(here, ", which is not asked for, or once more"));
  }
  Cut& cut = found->second;
  std::vector<CutShard>& part = cut.parts[owner];
  // Shards may move again, and everything else happen, meanwhile.
  if (cut.given_up) return;
  if (!state.error.empty()) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat(here, "; it says: ", state.error));
  }
  for (auto& [id, twin] : twins_) {
    if (twin.owner != owner) continue;
    twin.cut_done = state.number;
    part.push_back(StateAt(cut, twin));
    const CutShard& expected = part.back();
    ++stats_.cut_shards;
    stats_.cut_late += expected.late;
    const auto actual = absl::c_find_if(state.shards, [&](const auto& shard) {
      return shard.table == expected.table && shard.begin == expected.begin &&
             shard.end == expected.end;
    });
    if (actual == state.shards.end() || !IsComplete(cut, twin)) {
      Report(Invariant::kCheckpoint,
             absl::StrCat(here, ", and ", twin.name,
                          actual == state.shards.end()
                              ? " is none of them"
                              : " is not at the cut yet"));
      continue;
    }
    CompareCut(
        expected, *actual,
        absl::StrCat("at cut ", state.number, " of clock ", cut.proto.clock()));
  }
  if (part.size() != state.shards.size()) {
    Report(Invariant::kCheckpoint,
           absl::StrCat(here, "; it serves ", part.size()));
  }
}

void Checker::OnPartWritten(Owner owner, const ShardCore::CutState& state) {
  ++stats_.parts_written;
  const Cut& cut = cuts_.at(state.number);
  const std::vector<CutShard>& part = cut.parts.at(owner);
  if (cut.given_up || part.size() != state.shards.size()) return;
  for (const ShardState& actual : state.shards) {
    for (const CutShard& expected : part) {
      if (expected.table != actual.table || expected.begin != actual.begin)
        continue;
      CompareCut(expected, actual,
                 absl::StrCat("as it was written at cut ", state.number));
    }
  }
}

void Checker::OnKept(Rank rank, Incarnation incarnation, int32_t number,
                     Clock clock, const SimReplica& state) {
  const Life life{rank, incarnation};
  const std::string who =
      absl::StrCat(Name(rank, incarnation), " keeps its state at clock ", clock,
                   " for cut ", number);
  const auto found = cuts_.find(number);
  if (found == cuts_.end() || !found->second.proto.by_worker() ||
      found->second.proto.clock() != clock) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat(who, ", which is another one"));
  }
  const ModelPtr model = ModelOf(life, "keeps it");
  if (model == nullptr) return;
  ++stats_.states_kept;
  if (model->clock != clock || !model->state.SameBits(state)) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat(who, ", and has that of clock ", model->clock));
  }
  found->second.kept[rank] = model;
}

void Checker::OnKeptWritten(Rank rank, int32_t number,
                            const SimReplica& state) {
  ++stats_.parts_written;
  const ModelPtr& model = cuts_[number].kept[rank];
  if (model == nullptr || model->state.SameBits(state)) return;
  Report(Invariant::kCheckpoint,
         absl::StrCat("worker ", static_cast<int>(rank),
                      " has written another state than it has kept for cut ",
                      number));
}

// ---- Checkpoints ------------------------------------------------------------

void Checker::CheckKept(const Cut& cut, const StoredByName& shards) {
  // There is one part, of who was the chief.
  const auto is_it = [&](const auto& kept) {
    return kept.second != nullptr &&
           absl::c_all_of(shards, [&](const auto& shard) {
             return IsOf(*kept.second, *shard.second);
           });
  };
  if (absl::c_any_of(cut.kept, is_it)) return;
  Report(Invariant::kCheckpoint,
         absl::StrCat("the checkpoint of cut ", cut.proto.number(),
                      " is not what a worker has kept"));
}

bool Checker::IsOf(const Model& model, const ShardState& shard) const {
  const View& view = *model.state.view;
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    const ShardRange& range = view.shard(ShardId{id});
    if (view.table(range.table).name() != shard.table ||
        range.begin > shard.begin || range.end < shard.end) {
      continue;
    }
    const auto table = static_cast<size_t>(range.table);
    const auto same = [&](const Tensor& whole, const Payload& part) {
      return SameBits(
          Tensor(whole.begin() + shard.begin, whole.begin() + shard.end),
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

void Checker::CheckManifest(const Cut& cut,
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
    Report(Invariant::kCheckpoint,
           absl::StrCat(what, "has rank ", rank, " at clock ", said_of(rank),
                        ", not ", clock));
  }
  if (manifest.clock() != smallest ||
      (clocks.empty() && manifest.worker_size() > 0)) {
    Report(Invariant::kCheckpoint,
           absl::StrCat(what, "is of clock ", manifest.clock(), ", not ",
                        smallest));
  }
  if (manifest.workers() != scenario_.workers ||
      manifest.steps_total() != scenario_.steps ||
      manifest.steps_per_epoch() != scenario_.steps ||
      manifest.table_size() != latest_view_.table_size()) {
    Report(
        Invariant::kCheckpoint,
        absl::StrCat(what, "is of another job: ", manifest.ShortDebugString()));
  }
  for (int i = 0; i < manifest.table_size() && i < latest_view_.table_size();
       ++i) {
    const checkpoint::Table& table = manifest.table(i);
    const wire::Table& expected = latest_view_.table(i);
    if (table.name() == expected.name() && table.shape_size() == 1 &&
        table.shape(0) == expected.shape(0) &&
        table.optimizer().kind_case() ==
            scenario_.OptimizerOf(TableId{i}).kind_case()) {
      continue;
    }
    Report(Invariant::kCheckpoint,
           absl::StrCat(what, "has table ", table.ShortDebugString()));
  }
}

void Checker::OnProgramBegins(Rank rank, Incarnation incarnation, bool founder,
                              const std::string& state) {
  std::string expected;
  if (founder && scenario_.resume != nullptr &&
      scenario_.checkpoints.programs.count(static_cast<int32_t>(rank)) > 0) {
    const auto& programs = scenario_.resume->programs;
    const auto found = programs.find(static_cast<int32_t>(rank));
    if (found != programs.end()) expected = found->second;
  }
  stats_.programs_begun += !expected.empty();
  program_began_[{rank, incarnation}] = expected;
  if (state == expected) return;
  Report(Invariant::kCheckpoint,
         absl::StrCat("the program of ", Name(rank, incarnation),
                      " begins with '", state, "', not with '", expected, "'"));
}

void Checker::OnProgramStep(Rank rank, Incarnation incarnation, Clock clock) {
  program_steps_[{rank, incarnation}].insert(clock);
}

void Checker::CheckPrograms(const Cut& cut, const SimCheckpoint& checkpoint) {
  std::set<int32_t> ranks;
  for (const auto& [life, until] : cut.programs) {
    const auto rank = static_cast<int32_t>(life.first);
    ranks.insert(rank);
    const std::string who =
        absl::StrCat("in the checkpoint of cut ", cut.proto.number(),
                     ", the program of ", Name(life.first, life.second));
    const auto kept = checkpoint.programs.find(rank);
    if (kept == checkpoint.programs.end()) {
      // After its last step a program may take its time, so nobody waits for
      // it.
      if (Live(life) && until < EndOf(latest_view_))
        Report(Invariant::kCheckpoint, absl::StrCat(who, " is missing"));
      continue;
    }
    ++stats_.programs_kept;
    std::string expected = program_began_[life];
    const std::set<Clock>& steps = program_steps_[life];
    if (const auto next = steps.lower_bound(until); next != steps.begin())
      expected = ProgramAfter(rank, *std::prev(next));
    if (kept->second == expected) continue;
    Report(Invariant::kCheckpoint,
           absl::StrCat(who, " is '", kept->second, "', not '", expected,
                        "', as it is before clock ", until));
  }
  for (const auto& [rank, state] : checkpoint.programs) {
    if (ranks.count(rank) > 0) continue;
    Report(Invariant::kCheckpoint,
           absl::StrCat("the checkpoint of cut ", cut.proto.number(), " has '",
                        state, "', which nobody was asked for"));
  }
}

void Checker::OnCheckpoint(
    int32_t number,
    const absl::StatusOr<std::shared_ptr<const SimCheckpoint>>& made) {
  const auto found = cuts_.find(number);
  if (found == cuts_.end()) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat("cut ", number, ", which no view has, is done"));
  }
  Cut& cut = found->second;
  if (cut.given_up) return;  // It came too late.
  if (absl::IsNotFound(made.status())) {
    return Report(Invariant::kCheckpoint, std::string(made.status().message()));
  }
  if (cut.completed) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat("cut ", number, " is done once more"));
  }
  if (!made.ok()) {
    ++stats_.checkpoints_failed;
    return;
  }
  cut.completed = true;
  ++stats_.checkpoints;
  stats_.checkpoints_of_each += cut.proto.until_size() > 0;
  stats_.checkpoints_by_worker += cut.proto.by_worker();
  const SimCheckpoint& checkpoint = **made;
  cut.clock = checkpoint.manifest.clock();
  CheckManifest(cut, checkpoint.manifest);
  // Each element once.
  StoredByName shards;
  for (const ShardState& shard : checkpoint.shards) {
    if (shards.insert({{shard.table, shard.begin}, &shard}).second) continue;
    Report(
        Invariant::kCheckpoint,
        absl::StrCat("the checkpoint of cut ", number, " has ",
                     ShardName(shard.table, shard.begin, shard.end), " twice"));
  }
  auto next = shards.begin();
  for (const wire::Table& table : latest_view_.table()) {
    int64_t end = 0;
    for (; next != shards.end() && next->first.first == table.name(); ++next) {
      if (next->first.second != end) break;
      end = next->second->end;
    }
    if (end == table.shape(0)) continue;
    return Report(
        Invariant::kCheckpoint,
        absl::StrCat("the checkpoint of cut ", number, " has ", table.name(),
                     " up to element ", end, " of ", table.shape(0)));
  }
  if (next != shards.end()) {
    return Report(
        Invariant::kCheckpoint,
        absl::StrCat("the checkpoint of cut ", number, " has a shard of ",
                     next->first.first, ", which is no table"));
  }
  CheckPrograms(cut, checkpoint);
  if (cut.proto.by_worker()) return CheckKept(cut, shards);
  for (const auto& [owner, part] : cut.parts) {
    for (const CutShard& expected : part) {
      const auto actual = shards.find({expected.table, expected.begin});
      if (actual == shards.end() || actual->second->end != expected.end) {
        Report(Invariant::kCheckpoint,
               absl::StrCat(
                   "the checkpoint of cut ", number, " lacks ",
                   ShardName(expected.table, expected.begin, expected.end)));
        continue;
      }
      CompareCut(expected, *actual->second,
                 absl::StrCat("in the checkpoint of cut ", number));
    }
  }
}

void Checker::OnGivenUp(int32_t number, const char* excuse) {
  ++stats_.checkpoints_given_up;
  const auto found = cuts_.find(number);
  if (found == cuts_.end() || found->second.completed || excuse == nullptr) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat("cut ", number, " is given up without need"));
  }
  found->second.given_up = true;
}

void Checker::OnSuspended(const wire::JobEnd& end) {
  if (!scenario_.suspends()) {
    return Report(Invariant::kOutcome,
                  absl::StrCat("nobody has stopped the job: ", end.reason()));
  }
  if (end.cause() == wire::JobEnd::SUSPENDED) {
    // A cut that was given up is not completed, and the last one is not older.
    const bool whole = !cuts_.empty() && cuts_.rbegin()->second.completed &&
                       cuts_.rbegin()->second.clock == end.clock();
    if (whole) return;
    return Report(
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
      stats_.checkpoints_given_up + stats_.checkpoints_failed > 0 ||
      absl::StrContains(end.reason(), "the job does not run") ||
      absl::StrContains(end.reason(), "it was not there within");
  if (says_why && failed) return;
  Report(Invariant::kOutcome,
         absl::StrCat("the job was stopped without a checkpoint, and without "
                      "need: ",
                      end.reason()));
}

void Checker::CheckStoppedAfterLast(const wire::JobEnd& end) {
  ++stats_.stopped_after_last;
  bool names_one = false;
  for (const wire::WorkerMember& worker : latest_view_.worker()) {
    const Life life{Rank{worker.rank()}, worker.incarnation()};
    const std::string name = absl::StrCat("worker ", worker.rank());
    const auto reached = reached_.find(life);
    if (reached == reached_.end() ||
        reached->second + 1 < EndOf(latest_view_)) {
      Report(Invariant::kOutcome,
             absl::StrCat("the job was stopped as after its last step, which ",
                          name, " has not begun: ", end.reason()));
    }
    if (!absl::StrContains(end.reason(), name)) continue;
    names_one = true;
    if (worked_after_last_.count(life) > 0) continue;
    Report(Invariant::kOutcome,
           absl::StrCat("the job was stopped because the script of ", name,
                        " was at work after its last step, which it never "
                        "was: ",
                        end.reason()));
  }
  if (names_one) return;
  Report(Invariant::kOutcome,
         absl::StrCat("the job was stopped because of a script that is not "
                      "named, or whose worker has left: ",
                      end.reason()));
}

void Checker::OnCheckpointRefused(const std::string& why) {
  if (scenario_.RefusesCheckpoints() || stats_.cuts_dropped > 0 ||
      stats_.checkpoints_given_up + stats_.checkpoints_failed > 0 ||
      latest_view_.state() != wire::RUNNING) {
    return;
  }
  // Or somebody is near the end.
  const Clock near = EndOf(latest_view_) - kStepLimitAhead;
  for (const auto& [life, clock] : reached_) {
    if (clock + 1 >= near) return;  // It may have completed that one.
  }
  for (const wire::WorkerMember& worker : latest_view_.worker()) {
    if (worker.begins_at() >= near) return;
  }
  if (absl::StrContains(why, "ended early") &&
      absl::c_any_of(scenario_.placement.user, [](const UserAction& action) {
        return action.kind == UserAction::Kind::kFinish;
      })) {
    return;
  }
  Report(Invariant::kCheckpoint,
         absl::StrCat("a checkpoint was refused without need: ", why));
}

// ---- Going on ---------------------------------------------------------------

Clock Checker::BeginsAt(int32_t rank) const {
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
    const wire::Phase& phase = PhaseOf(smallest);
    const bool apart = !phase.mode().has_allreduce() &&
                       PhaseOf(largest).from() == phase.from();
    return apart ? of_rank : smallest;
  }
  return std::llround(static_cast<double>(smallest) *
                      static_cast<double>(scenario_.steps) /
                      static_cast<double>(manifest.steps_per_epoch()));
}

std::pair<Clock, Clock> Checker::Beginnings() const {
  std::pair<Clock, Clock> both{BeginsAt(0), BeginsAt(0)};
  for (int32_t rank = 1; rank < scenario_.workers; ++rank) {
    both.first = std::min(both.first, BeginsAt(rank));
    both.second = std::max(both.second, BeginsAt(rank));
  }
  return both;
}

void Checker::CheckBegin(const wire::View& view) {
  if (view.begins_at() != Beginnings().first) {
    Report(Invariant::kCheckpoint,
           absl::StrCat("the job begins at clock ", view.begins_at(), ", not ",
                        Beginnings().first));
  }
  for (const wire::WorkerMember& worker : view.worker()) {
    const Clock expected = worker.founder() ? BeginsAt(worker.rank()) : 0;
    if (worker.begins_at() == expected) continue;
    Report(Invariant::kCheckpoint,
           absl::StrCat("worker ", worker.rank(), " begins at clock ",
                        worker.begins_at(), ", not ", expected));
  }
  for (const wire::Table& table : view.table()) {
    const bool of_checkpoint =
        table.initializer().kind() == wire::Initializer::OF_CHECKPOINT;
    if (of_checkpoint == (scenario_.resume != nullptr)) continue;
    Report(Invariant::kCheckpoint,
           absl::StrCat(table.name(), " begins as ",
                        table.initializer().ShortDebugString()));
  }
}

void Checker::Resume(Twin& twin) {
  const std::string table =
      scenario_.Tables()[static_cast<size_t>(twin.range.table)].name();
  const absl::StatusOr<ShardState> stored =
      SimStoredShards(scenario_.resume)
          .Read(table, twin.range.begin, twin.range.end);
  SL_CHECK(stored.ok(), stored.status().ToString());
  Versions slots;
  for (const Payload& slot : stored->slots) slots.push_back(FloatsOf(slot));
  // Nobody asks for what was before.
  twin.versions.assign(stored->version + 1, FloatsOf(stored->values));
  twin.slots.assign(stored->version + 1, slots);
  twin.updates.assign(stored->version, Update());
  twin.after_turns = {stored->version};
  twin.running_rms = twin.resumed_rms = stored->running_rms;
}

void Checker::CheckResumed(const Twin& twin, const ShardCore& core) {
  const ShardMachine* const machine = core.MachineOf(twin.range.shard);
  if (machine == nullptr) {
    return Report(Invariant::kCheckpoint,
                  absl::StrCat(twin.name, " was not restored"));
  }
  ++stats_.resumed_shards;
  if (const std::optional<Violation> found = Difference(twin, *machine)) {
    Report(Invariant::kCheckpoint,
           absl::StrCat(twin.name, ", as it begins: ", found->what));
  }
}

}  // namespace slackline::sim
