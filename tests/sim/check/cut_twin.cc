#include "tests/sim/check/cut_twin.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"
#include "tests/sim/check/bits.h"
#include "tests/sim/job/sim_rows.h"

namespace slackline::sim {

namespace {

TurnPlan::Clocks ClocksOf(const wire::Cut& cut) {
  TurnPlan::Clocks clocks;
  for (const wire::Cut::Until& until : cut.until())
    clocks[until.rank()] = until.clock();
  return clocks;
}

}  // namespace

void CutTwin::CheckCut(const wire::View& before, const wire::View& view) {
  if (view.state() != wire::RUNNING) return;
  const wire::Cut& cut = view.cut();
  const std::string name =
      absl::StrCat("view ", view.number(), " has cut ", cut.number());
  findings_.stats().cuts_dropped +=
      before.change().has_cutting() &&
      view.change().id() != before.change().id() &&
      cut.number() == before.cut().number();
  if (cut.number() == before.cut().number()) {
    if (cut.SerializeAsString() != before.cut().SerializeAsString())
      findings_.Report(Invariant::kCheckpoint,
                       absl::StrCat(name, ", which has changed"));
    return;
  }
  ++findings_.stats().cuts;
  findings_.stats().cuts_of_each += cut.until_size() > 0;
  findings_.stats().cuts_by_worker += cut.by_worker();
  TwinCut& known = cuts_[cut.number()];
  known.proto = cut;
  known.view_number = view.number();
  for (const auto& [life, number] : views_.joined_in()) {
    if (!views_.Live(life)) known.gone.insert(life);
  }
  if (cut.number() != before.cut().number() + 1 ||
      !before.change().has_cutting() || view.move_size() > 0) {
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat(name, " after cut ", before.cut().number(),
                                  ", with ", view.move_size(), " moves"));
  }
  for (const auto& [number, other] : cuts_) {
    if (number == cut.number() || other.given_up || other.completed) continue;
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat(name, " before cut ", number, " is done"));
  }
  const Clock end = EndOf(view);
  if (scenario_.RefusesCheckpoints())
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat(name, ", which is refused"));
  if (cut.until_size() == 0) {
    const bool begins_phase = absl::c_any_of(
        view.phase(),
        [&](const wire::Phase& phase) { return phase.from() == cut.clock(); });
    const bool by_worker =
        cut.clock() > 0 &&
        PhaseAt(view, cut.clock() - 1).mode().has_allreduce();
    if (cut.clock() >= end || begins_phase || by_worker != cut.by_worker()) {
      findings_.Report(Invariant::kCheckpoint,
                       absl::StrCat(name, " at clock ", cut.clock(),
                                    cut.by_worker() ? ", by a worker" : "",
                                    ", where there can be none"));
    }
  }
  for (const wire::WorkerMember& worker : view.worker()) {
    const bool keeps = scenario_.checkpoints.programs.count(worker.rank()) > 0;
    if (keeps != worker.keeps_state()) {
      findings_.Report(Invariant::kCheckpoint,
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
    // Who is gone, with all gradients pushed: only if delays are given.
    const bool gone = scenario_.mode.has_delays() && until.incarnation() == 0 &&
                      until.clock() == end;
    if (!gone) named.insert({Rank{until.rank()}, until.incarnation()});
    const sync::Mode& mode =
        PhaseAt(view, std::max<Clock>(0, until.clock() - 1)).mode();
    if (mode.has_ssp() || mode.has_dssp() || mode.has_asp() ||
        mode.has_delays()) {
      continue;
    }
    findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(name, " in which each worker has its own clock, and ",
                     until.clock(), " is of mode ", ModeText(mode)));
  }
  if (scenario_.mode.has_delays()) {
    ++findings_.stats().given_cuts;
    if (cut.until_size() != scenario_.workers ||
        !turns_.IsClosed(ClocksOf(cut))) {
      findings_.Report(
          Invariant::kCheckpoint,
          absl::StrCat(name, " { ", cut.ShortDebugString(),
                       " }, with gradients that are computed from others"));
    }
  }
  if (cut.until_size() > 0 && named != views_.live()) {
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat(name, ", which names ", named.size(),
                                  " workers, not ", views_.live().size()));
  }
  // Nobody is there already: not even to ask for that clock's parameters.
  for (const auto& [life, clock] : views_.reached()) {
    if (!views_.Live(life)) continue;
    const Contribution next{.life = life, .clock = clock};
    if (clock >= end || IsBefore(known, next)) continue;
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat(name, "; ", Name(life.first, life.second),
                                  " has reached clock ", clock, " already"));
  }
}

void CutTwin::CheckNoCutPending(const std::string& what) {
  if (cuts_.empty()) return;
  const auto& [number, cut] = *cuts_.rbegin();
  if (cut.given_up || cut.completed || cut.proto.by_worker()) return;
  for (const auto& [id, twin] : shards_.twins()) {
    if (twin.cut_done >= number) continue;
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat("view ", views_.latest().number(), " ", what, " before ",
                     twin.name, " has its state at cut ", number));
  }
}

uint64_t CutTwin::ViewOfCut(int32_t cut) const {
  const auto found = cuts_.find(cut);
  return found == cuts_.end() ? 0 : found->second.view_number;
}

bool CutTwin::IsBefore(const TwinCut& cut,
                       const Contribution& contribution) const {
  for (const wire::Cut::Until& until : cut.proto.until()) {
    if (Life{Rank{until.rank()}, until.incarnation()} == contribution.life)
      return contribution.clock < until.clock();
  }
  const bool uniform = cut.proto.until_size() == 0;
  if (uniform && contribution.clock < cut.proto.clock()) return true;
  return cut.gone.count(contribution.life) > 0;
}

bool CutTwin::IsBefore(const TwinCut& cut, const TwinUpdate& update) const {
  if (update.contributions.empty()) return true;
  // Gradients that wait for each other make one update, of one clock.
  if (update.held || update.by_all_reduce)
    return cut.proto.until_size() > 0 || update.clock < cut.proto.clock();
  return IsBefore(cut, update.contributions.front());
}

int CutTwin::PresentAt(const TwinCut& cut, const ShardTwin& twin,
                       const TwinUpdate& update) const {
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

bool CutTwin::IsComplete(const TwinCut& cut, const ShardTwin& twin) const {
  if (cut.proto.until_size() == 0) return twin.complete >= cut.proto.clock();
  return absl::c_all_of(cut.proto.until(), [&](const auto& until) {
    const auto who =
        twin.participants.find({Rank{until.rank()}, until.incarnation()});
    return who == twin.participants.end() || !who->second.present ||
           who->second.clock >= until.clock();
  });
}

CutShard CutTwin::StateAfterTurns(const TwinCut& cut,
                                  const ShardTwin& twin) const {
  const TurnPlan::Clocks until = ClocksOf(cut.proto);
  CutShard state{
      .table = scenario_.Tables()[static_cast<size_t>(twin.range.table)].name(),
      .id = twin.range.table,
      .begin = twin.range.region.begin(),
      .end = twin.range.region.end()};
  const size_t over = turns_.OverAt(twin, until);
  if (over >= twin.after_turns.size()) return state;  // It is not complete.
  CutTurns& turns = state.turns.emplace();
  turns.over = static_cast<int64_t>(over);
  state.version = twin.after_turns[over];
  state.values = twin.versions[state.version];
  state.slots = twin.slots[state.version];
  for (const auto& [clock, rank] : turns_.WaitingAt(twin, until)) {
    if (scenario_.Skips(clock, twin.range.table)) continue;
    for (const auto& [life, participant] : twin.participants) {
      if (life.first != rank) continue;
      turns.waiting[{clock, rank}] = {
          .base = twin.after_turns[turns_.TurnsBefore(twin, rank, clock)],
          .gradient =
              arithmetic_.GradientOf(twin.range, {.life = life, .clock = clock},
                                     /*by_all_reduce=*/false)};
    }
  }
  for (const size_t before : turns_.KeptAt(twin, until)) {
    const Version version = twin.after_turns[before];
    turns.kept[static_cast<int64_t>(before)] = {
        .version = version, .values = twin.versions[version]};
  }
  return state;
}

CutShard CutTwin::StateAt(const TwinCut& cut, const ShardTwin& twin) const {
  if (scenario_.mode.has_delays()) return StateAfterTurns(cut, twin);
  CutShard state{
      .table = scenario_.Tables()[static_cast<size_t>(twin.range.table)].name(),
      .id = twin.range.table,
      .begin = twin.range.region.begin(),
      .end = twin.range.region.end()};
  // Who has joined after the cut counts at the live shard alone.
  const auto is_same = [&](const TwinUpdate& update) {
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
  for (const TwinUpdate& update : twin.updates) {
    if (!IsBefore(cut, update)) continue;
    if (update.by_all_reduce) state.running_rms = {};  // It was installed.
    for (const double size : update.sizes) state.running_rms.Add(size);
  }
  // Those that came behind some after the cut.
  for (; next < twin.updates.size(); ++next) {
    if (!IsBefore(cut, twin.updates[next])) continue;
    TwinUpdate update = twin.updates[next];
    if (!update.present.empty()) update.divisor = PresentAt(cut, twin, update);
    state.values = arithmetic_.Apply(twin.range, state.version, state.values,
                                     &state.slots, update);
    ++state.version;
    state.late = true;
  }
  return state;
}

void CutTwin::CheckCutFence(const ShardTwin& twin,
                            const Contribution& contribution,
                            const std::string& who, Owner owner) {
  const int32_t known = shards_.threads()[owner].view->proto().cut().number();
  for (const auto& [number, cut] : cuts_) {
    if (cut.proto.by_worker()) continue;
    const bool before = IsBefore(cut, contribution);
    if (number > known && !before && views_.Live(contribution.life)) {
      findings_.Report(Invariant::kCheckpoint,
                       absl::StrCat(who, ", after cut ", number, ", and knows ",
                                    known, " cuts"));
    }
    // Its state may have what a failover has lost, and workers send again.
    if (number == twin.cut_done && number > twin.cut_before_failover &&
        before && !cut.given_up) {
      findings_.Report(
          Invariant::kCheckpoint,
          absl::StrCat(who, ", which its state at cut ", number, " lacks"));
    }
  }
}

void CutTwin::FollowCopy(ShardTwin& twin, const ShardCore& core, Owner owner) {
  const ShardCut* const cut = core.CutOf(twin.range.shard);
  const bool copied = cut != nullptr && cut->copied();
  const bool copies_now = copied && !twin.cut_copied;
  findings_.stats().cut_copies += copies_now;
  findings_.stats().row_cut_copies +=
      copies_now && scenario_.HasRows(twin.range.table);
  if (copies_now) {
    // The latest view may have another one, in another phase.
    const wire::Cut& of = shards_.threads()[owner].view->proto().cut();
    const sync::Mode& mode = views_.PhaseOf(of.clock()).mode();
    if (of.until_size() == 0 && (mode.has_bsp() || mode.has_backup())) {
      findings_.Report(
          Invariant::kBoundedState,
          absl::StrCat(twin.name, " is copied for a cut in ", ModeText(mode),
                       ", where nothing comes too early"));
    }
  }
  twin.cut_copied = copied;
}

void CutTwin::CompareCut(const CutShard& expected, const ShardState& actual,
                         const std::string& when) {
  const std::string what =
      absl::StrCat(ShardName(expected.table, expected.begin, expected.end),
                   " of version ", expected.version, ", ", when);
  if (actual.version != expected.version) {
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(what, ": has version ", actual.version));
  }
  const auto floats_of = [&](const Payload& tensor) {
    return FloatsOf(scenario_, expected.id, actual.region, tensor);
  };
  if (!SameBits(floats_of(actual.values), expected.values)) {
    return findings_.Report(Invariant::kCheckpoint,
                            absl::StrCat(what, ": has other values"));
  }
  if (actual.running_rms != expected.running_rms) {
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(what, ": has the running size ", actual.running_rms.mean(),
                     " of ", actual.running_rms.count(), ", not ",
                     expected.running_rms.mean(), " of ",
                     expected.running_rms.count()));
  }
  if (actual.turns.has_value() != expected.turns.has_value()) {
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(what, ": has turns: ", actual.turns.has_value()));
  }
  if (expected.turns.has_value())
    CompareTurns(*expected.turns, *actual.turns, what);
  if (actual.slots.size() != expected.slots.size()) {
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(what, ": has ", actual.slots.size(), " slots"));
  }
  for (size_t i = 0; i < expected.slots.size(); ++i) {
    if (SameBits(floats_of(actual.slots[i]), expected.slots[i])) continue;
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(what, ": has another state in slot ", i));
  }
}

void CutTwin::CompareTurns(const CutTurns& expected, const StoredTurns& actual,
                           const std::string& what) {
  const auto differ = [&](const std::string& how) {
    findings_.Report(Invariant::kCheckpoint, absl::StrCat(what, how));
  };
  const wire::Turns& turns = actual.turns;
  if (turns.over() != expected.over ||
      turns.waiting_size() != static_cast<int>(expected.waiting.size()) ||
      turns.kept_size() != static_cast<int>(expected.kept.size()) ||
      actual.tensors.size() != TensorCount(turns)) {
    return differ(absl::StrCat(": has ", turns.over(), " turns, ",
                               turns.waiting_size(), " gradients that wait, ",
                               turns.kept_size(), " kept versions, not ",
                               expected.over, ", ", expected.waiting.size(),
                               ", ", expected.kept.size()));
  }
  findings_.stats().cut_waiting += turns.waiting_size();
  findings_.stats().cut_kept += turns.kept_size();
  auto tensor = actual.tensors.begin();
  int i = 0;
  for (const auto& [of, waiting] : expected.waiting) {
    const wire::Turns::Waiting& is = turns.waiting(i++);
    if (std::pair(Clock{is.clock()}, Rank{is.rank()}) == of &&
        is.base() == waiting.base &&
        SameBits(FloatsOf(*tensor++), waiting.gradient)) {
      continue;
    }
    return differ(absl::StrCat(": lets something else wait as the gradient of ",
                               "rank ", static_cast<int>(of.second),
                               " and clock ", of.first));
  }
  i = 0;
  for (const auto& [before, kept] : expected.kept) {
    const wire::Turns::Kept& is = turns.kept(i++);
    if (is.turns() == before && is.version() == kept.version &&
        SameBits(FloatsOf(*tensor++), kept.values)) {
      continue;
    }
    return differ(absl::StrCat(": keeps something else as what it was after ",
                               before, " turns"));
  }
}

void CutTwin::OnCut(Owner owner, const ShardCore::CutState& state) {
  const std::string here =
      absl::StrCat("server ", owner.server, " thread ", owner.thread, " has ",
                   state.shards.size(), " shards at cut ", state.number);
  const auto found = cuts_.find(state.number);
  if (found == cuts_.end() || found->second.proto.by_worker() ||
      state.number != shards_.threads()[owner].view->proto().cut().number() ||
      found->second.parts.count(owner) > 0) {
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(here, ", which is not asked for, or once more"));
  }
  TwinCut& cut = found->second;
  std::vector<CutShard>& part = cut.parts[owner];
  // Shards may move again, and everything else happen, meanwhile.
  if (cut.given_up) return;
  if (!state.error.empty()) {
    return findings_.Report(Invariant::kCheckpoint,
                            absl::StrCat(here, "; it says: ", state.error));
  }
  for (auto& [id, twin] : shards_.twins()) {
    if (twin.owner != owner) continue;
    twin.cut_done = state.number;
    part.push_back(StateAt(cut, twin));
    const CutShard& expected = part.back();
    ++findings_.stats().cut_shards;
    findings_.stats().row_cut_shards += scenario_.HasRows(twin.range.table);
    findings_.stats().cut_late += expected.late;
    const auto actual = absl::c_find_if(state.shards, [&](const auto& shard) {
      return shard.table == expected.table &&
             shard.region == Region(expected.begin, expected.end);
    });
    if (actual == state.shards.end() || !IsComplete(cut, twin)) {
      findings_.Report(Invariant::kCheckpoint,
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
    findings_.Report(Invariant::kCheckpoint,
                     absl::StrCat(here, "; it serves ", part.size()));
  }
}

void CutTwin::OnPartWritten(Owner owner, const ShardCore::CutState& state) {
  ++findings_.stats().parts_written;
  const TwinCut& cut = cuts_.at(state.number);
  const std::vector<CutShard>& part = cut.parts.at(owner);
  if (cut.given_up || part.size() != state.shards.size()) return;
  for (const ShardState& actual : state.shards) {
    for (const CutShard& expected : part) {
      if (expected.table != actual.table ||
          expected.begin != actual.region.begin())
        continue;
      CompareCut(expected, actual,
                 absl::StrCat("as it was written at cut ", state.number));
    }
  }
}

void CutTwin::OnKept(Rank rank, Incarnation incarnation, int32_t number,
                     Clock clock, const SimReplica& state) {
  const Life life{rank, incarnation};
  const std::string who =
      absl::StrCat(Name(rank, incarnation), " keeps its state at clock ", clock,
                   " for cut ", number);
  const auto found = cuts_.find(number);
  if (found == cuts_.end() || !found->second.proto.by_worker() ||
      found->second.proto.clock() != clock) {
    return findings_.Report(Invariant::kCheckpoint,
                            absl::StrCat(who, ", which is another one"));
  }
  const JobModelPtr model = all_reduce_.ModelOf(life, "keeps it");
  if (model == nullptr) return;
  ++findings_.stats().states_kept;
  if (model->clock != clock || !model->state.SameBits(state)) {
    return findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(who, ", and has that of clock ", model->clock));
  }
  found->second.kept[rank] = model;
}

void CutTwin::OnKeptWritten(Rank rank, int32_t number,
                            const SimReplica& state) {
  ++findings_.stats().parts_written;
  const JobModelPtr& model = cuts_[number].kept[rank];
  if (model == nullptr || model->state.SameBits(state)) return;
  findings_.Report(
      Invariant::kCheckpoint,
      absl::StrCat("worker ", static_cast<int>(rank),
                   " has written another state than it has kept for cut ",
                   number));
}

void CutTwin::OnServerStarts(int32_t server) {
  for (auto& [number, cut] : cuts_) {
    std::erase_if(cut.parts, [&](const auto& part) {
      return part.first.server == server;
    });
  }
}

}  // namespace slackline::sim
