#include "tests/sim/sim_world.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/match.h"
#include "common/status.h"

namespace slackline::sim {
namespace {

// A run of this many events goes in circles: the largest need some 30 000.
constexpr int64_t kEventsMax = 3'000'000;
// Users start no more than this.
constexpr int kServersAddedMax = 3;
// After the last fault everything is to come to its end within this time.
constexpr absl::Duration kLingerMax = absl::Seconds(60);

template <typename Struct>
void AddAll(std::initializer_list<int64_t Struct::*> fields, const Struct& from,
            Struct* to) {
  for (const auto field : fields) to->*field += from.*field;
}

}  // namespace

void RunCounts::Add(const RunCounts& other) {
  using N = NetworkStats;
  using C = CheckerStats;
  using R = RunCounts;
  AddAll<N>(
      {&N::delivered, &N::lost, &N::repeated, &N::reordered, &N::slow, &N::cut,
       &N::held, &N::to_nobody, &N::of_the_dead, &N::dropped_of_the_dead},
      other.network, &network);
  AddAll<C>({&C::answers,         &C::gated,          &C::pushes,
             &C::updates,         &C::joins,          &C::advances,
             &C::partial_sums,    &C::moves_ordered,  &C::moves_done,
             &C::moves_cancelled, &C::splits,         &C::take_overs,
             &C::take_overs_held, &C::parts_compared, &C::waiting,
             &C::relocations,     &C::dropped_server, &C::changes_opened,
             &C::changes_dropped, &C::phases_entered, &C::states_taken,
             &C::steps_reduced,   &C::steps_repeated, &C::groups,
             &C::groups_apart,    &C::installs,       &C::installs_again,
             &C::dropped,         &C::without_some,   &C::beyond_low,
             &C::parked},
            other.checker, &checker);
  AddAll<R>({&R::runs,
             &R::events,
             &R::finished,
             &R::failed,
             &R::coordinator_lost,
             &R::bsp,
             &R::ssp,
             &R::asp,
             &R::allreduce,
             &R::dssp,
             &R::backup,
             &R::cuts,
             &R::crashes,
             &R::server_crashes,
             &R::restarts,
             &R::fenced,
             &R::gave_up,
             &R::servers_added,
             &R::servers_drained,
             &R::gos,
             &R::records_resent,
             &R::lost_on_the_way,
             &R::lingered},
            other, this);
  workers.Add(other.workers);
  user.Add(other.user);
  for (int i = 0; i < kMoveSteps; ++i) {
    steps[i] += other.steps[i];
    step_faults[i] += other.step_faults[i];
    step_crashes[i] += other.step_crashes[i];
  }
  for (int i = 0; i < kPhaseSteps; ++i) {
    phase_steps[i] += other.phase_steps[i];
    phase_faults[i] += other.phase_faults[i];
    phase_crashes[i] += other.phase_crashes[i];
  }
}

std::string RunCounts::ToString() const {
  std::string by_step;
  for (int i = 0; i < kMoveSteps; ++i) {
    absl::StrAppend(&by_step, i == 0 ? "" : ", ",
                    MoveStepName(static_cast<MoveStep>(i)), " ", steps[i], "/",
                    step_faults[i], "/", step_crashes[i]);
  }
  std::string by_phase_step;
  for (int i = 0; i < kPhaseSteps; ++i) {
    absl::StrAppend(&by_phase_step, i == 0 ? "" : ", ",
                    PhaseStepName(static_cast<PhaseStep>(i)), " ",
                    phase_steps[i], "/", phase_faults[i], "/",
                    phase_crashes[i]);
  }
  return absl::StrCat(
      runs, " runs (", bsp, " bsp, ", ssp, " ssp, ", asp, " asp, ", allreduce,
      " all-reduce, ", dssp, " dssp, ", backup, " backup), ", events,
      " events: ", finished, " finished, ", failed, " failed, ",
      coordinator_lost, " lost the coordinator\n  ", cuts, " partitions, ",
      crashes, " worker and ", server_crashes, " server crashes, ", restarts,
      " restarts, ", fenced, " lives fenced, ", gave_up, " gave up\n  ",
      network.delivered, " messages delivered, ", network.lost, " lost, ",
      network.repeated, " repeated, ", network.reordered, " reordered, ",
      network.slow, " slow, ", network.cut, " cut, ", network.held, " held, ",
      network.of_the_dead, " of the dead, ", network.dropped_of_the_dead,
      " of the dead dropped\n  ", workers.steps, " steps, ", workers.retries,
      " retries, ", workers.pulls_ahead, " pulls ahead, ", workers.late_starts,
      " late starts, ", workers.uneven_starts, " uneven, ", workers.final_pulls,
      " final pulls\n  ", checker.answers, " answers checked, ", checker.gated,
      " of them gated, ", checker.pushes, " pushes taken over, ",
      checker.updates, " updates, ", checker.dropped, " late and dropped, ",
      checker.without_some, " clocks complete without somebody, ",
      workers.skips, " skips (", workers.uneven_skips, " uneven), ",
      checker.beyond_low, " answers beyond the smallest bound, ",
      checker.parked, " parked pulls looked at, ", checker.joins,
      " late joins, ", checker.advances, " advances, ", checker.partial_sums,
      " partial sums\n  ", user.asked, " wishes, ", user.accepted,
      " accepted, ", user.refused, " refused; ", checker.moves_ordered,
      " moves ordered, ", gos, " gone, ", checker.moves_done, " done, ",
      checker.moves_cancelled, " cancelled, ", lost_on_the_way, " jobs lost, ",
      checker.splits, " splits\n  ", servers_added, " servers added, ",
      user.drains, " drains, ", servers_drained, " servers drained, ",
      checker.dropped_server, " views without a server, ", lingered,
      " lingered; ", checker.take_overs, " shards compared (",
      checker.take_overs_held, " with held gradients), ",
      checker.parts_compared, " parts, ", checker.waiting, " requests waited, ",
      checker.relocations, " relocations, ", records_resent,
      " records sent again\n  steps seen/faults/crashes: ", by_step, "\n  ",
      user.modes, " modes set, ", user.modes_refused, " refused, ",
      checker.changes_opened, " changes opened, ", user.modes_after_moves,
      " modes set while shards moved, ", checker.changes_dropped, " dropped, ",
      checker.phases_entered, " phases entered; ", workers.states_taken,
      " states taken (", checker.states_taken, " compared), ",
      workers.states_given, " given, ", checker.installs, " installs, ",
      checker.installs_again, " again, ", workers.shares_again,
      " shares again\n  ", workers.reduced, " steps by all-reduce, ",
      checker.steps_reduced, " in the model, ", checker.steps_repeated,
      " repeated, ", checker.groups, " groups, ", checker.groups_apart,
      " apart, ", workers.connects, " connects, ", workers.regroups,
      " regroups, ", workers.helped, " helped, ", workers.group_joins,
      " joined by all-reduce\n  phase steps seen/faults/crashes: ",
      by_phase_step);
}

SimWorld::SimWorld(const Scenario& scenario, bool keep_log)
    : context_(scenario, keep_log),
      servers_(scenario.servers),
      workers_(scenario.workers),
      restart_pending_(scenario.workers, false),
      fault_seen_(scenario.placement.faults.size(), 0),
      phase_fault_seen_(scenario.modes.faults.size(), 0) {
  context_.on_phase_step = [this](PhaseStep step, Rank rank) {
    WatchPhase(step, static_cast<int>(rank), std::nullopt);
  };
  context_.network.watch = [this](const PeerId& from, const PeerId& to,
                                  const Message& message, bool arrives) {
    return Watch(from, to, message, arrives);
  };
}

void SimWorld::StartServer(int index) {
  if (index == 0) coordinator_ = std::make_unique<SimCoordinator>(&context_);
  context_.Log("server ", index, " starts");
  servers_[index] =
      std::make_unique<SimServer>(&context_, index, context_.rng.Next());
  if (on_server_started) on_server_started(servers_[index].get());
}

bool SimWorld::AddServer(int32_t index) {
  const int start = context_.scenario.servers;
  if (index < start || index >= start + kServersAddedMax) return false;
  if (static_cast<size_t>(index) >= servers_.size()) servers_.resize(index + 1);
  if (servers_[index] != nullptr) return false;
  StartServer(index);
  return true;
}

Node SimWorld::NodeCount() const {
  return context_.scenario.UserNode() + 1 + kServersAddedMax;
}

SimServer* SimWorld::ServerAt(Node node) const {
  const int index = context_.scenario.ServerOn(node);
  return index < 0 || static_cast<size_t>(index) >= servers_.size()
             ? nullptr
             : servers_[index].get();
}

void SimWorld::StartWorker(int rank) {
  restart_pending_[rank] = false;
  if (workers_[rank] != nullptr) {
    if (workers_[rank]->end().kind == ProcessEnd::Kind::kAlive) return;
    const SimWorker::Counts past = workers_[rank]->counts();
    counts_.workers.Add(past);
    ++counts_.restarts;
  }
  context_.Log("worker ", rank, " starts");
  workers_[rank] =
      std::make_unique<SimWorker>(&context_, Rank{rank}, context_.rng.Next());
  if (on_worker_started) on_worker_started(workers_[rank].get());
}

void SimWorld::Inject(const FaultEvent& fault) {
  const absl::Time now = context_.queue.now();
  const Scenario& scenario = context_.scenario;
  switch (fault.kind) {
    case FaultEvent::Kind::kIsolate:
      ++counts_.cuts;
      context_.Log("node ", fault.node, " is cut off for ",
                   absl::FormatDuration(fault.duration),
                   fault.held ? ", messages are held" : ", messages are lost");
      for (Node other = 0; other < NodeCount(); ++other) {
        context_.network.Cut(fault.node, other, now + fault.duration,
                             fault.held);
        if (!fault.one_way) {
          context_.network.Cut(other, fault.node, now + fault.duration,
                               fault.held);
        }
      }
      return;
    case FaultEvent::Kind::kCutLink:
      ++counts_.cuts;
      context_.Log("the link from node ", fault.node, " to ", fault.peer,
                   " is cut for ", absl::FormatDuration(fault.duration),
                   fault.held ? ", messages are held" : ", messages are lost");
      context_.network.Cut(fault.node, fault.peer, now + fault.duration,
                           fault.held);
      if (!fault.one_way) {
        context_.network.Cut(fault.peer, fault.node, now + fault.duration,
                             fault.held);
      }
      return;
    case FaultEvent::Kind::kCrash:
      break;
  }
  if (scenario.ServerOn(fault.node) >= 0) {
    SimServer* const server = ServerAt(fault.node);
    if (server == nullptr || server->end().kind != ProcessEnd::Kind::kAlive)
      return;
    ++counts_.server_crashes;
    server->Crash(fault.drop_sent);
    if (fault.node == 0) {
      coordinator_crashed_ = true;
      coordinator_->Crash();
    }
    return;
  }
  const int rank = scenario.WorkerOn(fault.node);
  SimWorker* const worker = workers_[rank].get();
  if (worker == nullptr || worker->end().kind != ProcessEnd::Kind::kAlive)
    return;
  ++counts_.crashes;
  worker->Crash(fault.drop_sent);
  if (!fault.restart) return;
  restart_pending_[rank] = true;
  context_.queue.After(fault.duration, [this, rank] { StartWorker(rank); });
}

std::optional<SimWorld::Seen> SimWorld::StepOf(const PeerId& from,
                                               const PeerId& to,
                                               const Message& message) const {
  const Checker& checker = context_.checker;
  switch (message.header.body_case()) {
    case wire::Header::kHandOver: {
      const wire::HandOver& hand_over = message.header.hand_over();
      MoveStep step = MoveStep::kRecord;
      if (hand_over.position() == 1) step = MoveStep::kSnapshot;
      for (const wire::HandOverRecord& record : hand_over.record()) {
        if (record.has_push()) step = MoveStep::kPush;
        if (record.go()) step = MoveStep::kGo;
      }
      return Seen{step, from.index, to.index};
    }
    case wire::Header::kHandOverReply:
      return Seen{message.header.hand_over_reply().owned()
                      ? MoveStep::kOwned
                      : MoveStep::kConfirmed,
                  to.index, from.index};
    case wire::Header::kHeartbeat: {
      const wire::Heartbeat& heartbeat = message.header.heartbeat();
      for (const run::HandOverState& state : heartbeat.server().hand_over()) {
        const auto move = checker.moves().find({state.shard(), state.move()});
        if (state.state() != run::HandOverState::DONE ||
            move == checker.moves().end()) {
          continue;
        }
        return Seen{MoveStep::kDone, from.index, move->second.target.server};
      }
      return std::nullopt;
    }
    case wire::Header::kView: {
      const wire::View& view = message.header.view();
      if (const Checker::Move* const done = checker.DoneIn(view.number())) {
        return Seen{MoveStep::kPublished, done->source.server,
                    done->target.server};
      }
      if (to.kind != PeerId::Kind::kServer) return std::nullopt;
      for (const wire::Move& move : view.move()) {
        const int32_t source = view.owner_server(move.shard());
        if (source == to.index)
          return Seen{MoveStep::kOrdered, source, move.server()};
        if (move.server() == to.index)
          return Seen{MoveStep::kOrderedThere, source, move.server()};
      }
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

bool SimWorld::Watch(const PeerId& from, const PeerId& to,
                     const Message& message, bool arrives) {
  if (const auto seen = PhaseStepOf(from, to, message); seen.has_value()) {
    if (!WatchPhase(seen->first, seen->second, arrives)) return false;
  }
  const std::optional<Seen> seen = StepOf(from, to, message);
  if (!seen.has_value()) return true;
  if (!arrives) ++counts_.steps[static_cast<int>(seen->step)];
  if (!arrives && message.header.has_hand_over()) {
    const wire::HandOver& hand_over = message.header.hand_over();
    uint64_t& sent = sent_up_to_[{hand_over.shard(), hand_over.move()}];
    if (hand_over.position() <= sent) ++counts_.records_resent;
    sent =
        std::max(sent, hand_over.position() +
                           static_cast<uint64_t>(hand_over.record_size()) - 1);
    if (seen->step == MoveStep::kGo &&
        gone_.insert({hand_over.shard(), hand_over.move()}).second) {
      ++counts_.gos;
      context_.checker.OnGo(hand_over.shard(), hand_over.move());
    }
  }
  if (healed_) return true;
  bool passes = true;
  const std::vector<MoveFault>& faults = context_.scenario.placement.faults;
  for (size_t i = 0; i < faults.size(); ++i) {
    const MoveFault& fault = faults[i];
    if (fault.step != seen->step || fault.on_arrival != arrives ||
        fault_seen_[i]++ != fault.occurrence) {
      continue;
    }
    ++counts_.step_faults[static_cast<int>(fault.step)];
    context_.Log("a fault at '", MoveStepName(fault.step), "' of a move from ",
                 seen->source, " to ", seen->target,
                 fault.before ? ", which is lost" : "");
    context_.queue.After(absl::ZeroDuration(), [this, i, seen = *seen] {
      Inject(context_.scenario.placement.faults[i], seen);
    });
    passes = passes && !fault.before;
  }
  return passes;
}

void SimWorld::Inject(const MoveFault& fault, const Seen& seen) {
  const Scenario& scenario = context_.scenario;
  FaultEvent event;
  event.duration = fault.duration;
  event.held = fault.held;
  event.one_way = fault.one_way;
  event.drop_sent = fault.drop_sent;
  event.restart = true;
  switch (fault.victim) {
    case MoveFault::Victim::kSource:
      event.node = scenario.ServerNode(seen.source);
      break;
    case MoveFault::Victim::kTarget:
      event.node = scenario.ServerNode(seen.target);
      break;
    case MoveFault::Victim::kCoordinator:
    case MoveFault::Victim::kServer0:
      break;
    case MoveFault::Victim::kWorker:
      event.node = scenario.WorkerNode(fault.occurrence % scenario.workers);
      break;
  }
  switch (fault.kind) {
    case MoveFault::Kind::kCrash:
      event.kind = FaultEvent::Kind::kCrash;
      ++counts_.step_crashes[static_cast<int>(fault.step)];
      if (fault.victim == MoveFault::Victim::kCoordinator) {
        context_.Log("the coordinator alone ends");
        coordinator_crashed_ = true;
        coordinator_->Crash();
        return;
      }
      break;
    case MoveFault::Kind::kIsolate:
      event.kind = FaultEvent::Kind::kIsolate;
      break;
    case MoveFault::Kind::kCutEnds:
      event.kind = FaultEvent::Kind::kCutLink;
      event.node = scenario.ServerNode(seen.source);
      event.peer = scenario.ServerNode(seen.target);
      break;
    case MoveFault::Kind::kCutFromCoordinator:
      event.kind = FaultEvent::Kind::kCutLink;
      event.peer = 0;
      break;
  }
  if (event.kind == FaultEvent::Kind::kCutLink && event.node == event.peer)
    event.kind = FaultEvent::Kind::kIsolate;
  Inject(event);
}

std::optional<std::pair<PhaseStep, int>> SimWorld::PhaseStepOf(
    const PeerId& from, const PeerId& to, const Message& message) const {
  using Seen = std::pair<PhaseStep, int>;
  if (!context_.scenario.modes.changes) return std::nullopt;
  const bool to_worker = to.kind == PeerId::Kind::kWorker;
  switch (message.header.body_case()) {
    case wire::Header::kView: {
      const wire::View& view = message.header.view();
      if (!to_worker || view.state() != wire::RUNNING) return std::nullopt;
      if (view.has_change()) return Seen{PhaseStep::kAsked, to.index};
      const bool later = view.entered() + 1 < view.phase_size();
      const Clock end =
          later ? view.phase(view.entered() + 1).from() : view.steps_total();
      if (view.phase(view.entered()).mode() == wire::ALLREDUCE &&
          view.arrived() >= end) {
        return Seen{PhaseStep::kAllArrived, to.index};
      }
      if (later) return Seen{PhaseStep::kSettled, to.index};
      return std::nullopt;
    }
    case wire::Header::kCall: {
      const wire::Call& call = message.header.call();
      if (call.has_step_limit()) return Seen{PhaseStep::kPromised, from.index};
      if (call.has_regroup()) return Seen{PhaseStep::kRegroup, from.index};
      if (call.has_arrive()) return Seen{PhaseStep::kArrived, from.index};
      if (call.has_entered()) return Seen{PhaseStep::kEntered, from.index};
      return std::nullopt;
    }
    case wire::Header::kPullRequest:
      if (!message.header.pull_request().state()) return std::nullopt;
      return Seen{PhaseStep::kTaking, from.index};
    case wire::Header::kPullReply:
      if (message.header.pull_reply().hash_size() == 0) return std::nullopt;
      return Seen{PhaseStep::kTaken, to.index};
    case wire::Header::kPushRequest:
      if (!message.header.push_request().install()) return std::nullopt;
      return Seen{PhaseStep::kInstalling, from.index};
    default:
      return std::nullopt;
  }
}

bool SimWorld::WatchPhase(PhaseStep step, int rank,
                          std::optional<bool> arrives) {
  if (arrives != true) ++counts_.phase_steps[static_cast<int>(step)];
  if (healed_) return true;
  bool passes = true;
  const std::vector<PhaseFault>& faults = context_.scenario.modes.faults;
  for (size_t i = 0; i < faults.size(); ++i) {
    const PhaseFault& fault = faults[i];
    if (fault.step != step ||
        fault.on_arrival != arrives.value_or(fault.on_arrival) ||
        phase_fault_seen_[i]++ != fault.occurrence) {
      continue;
    }
    ++counts_.phase_faults[static_cast<int>(step)];
    context_.Log("a fault at '", PhaseStepName(step), "' of worker ", rank,
                 fault.before ? ", which is lost" : "");
    context_.queue.After(absl::ZeroDuration(), [this, i, rank] {
      Inject(context_.scenario.modes.faults[i], rank);
    });
    passes = passes && !fault.before;
  }
  return passes;
}

void SimWorld::Inject(const PhaseFault& fault, int rank) {
  const Scenario& scenario = context_.scenario;
  FaultEvent event;
  event.duration = fault.duration;
  event.held = fault.held;
  event.drop_sent = fault.drop_sent;
  event.restart = fault.restart;
  switch (fault.victim) {
    case PhaseFault::Victim::kItself:
      event.node = scenario.WorkerNode(rank);
      break;
    case PhaseFault::Victim::kAnother:
      event.node = scenario.WorkerNode((rank + 1) % scenario.workers);
      break;
    case PhaseFault::Victim::kServer:
      event.node = fault.occurrence % scenario.servers;
      break;
    case PhaseFault::Victim::kCoordinator:
      break;
  }
  switch (fault.kind) {
    case PhaseFault::Kind::kCrash:
      event.kind = FaultEvent::Kind::kCrash;
      ++counts_.phase_crashes[static_cast<int>(fault.step)];
      if (fault.victim == PhaseFault::Victim::kCoordinator) {
        context_.Log("the coordinator alone ends");
        coordinator_crashed_ = true;
        coordinator_->Crash();
        return;
      }
      break;
    case PhaseFault::Kind::kIsolate:
      event.kind = FaultEvent::Kind::kIsolate;
      break;
    case PhaseFault::Kind::kCutFromCoordinator:
      event.kind = event.node == 0 ? FaultEvent::Kind::kIsolate
                                   : FaultEvent::Kind::kCutLink;
      break;
  }
  Inject(event);
}

void SimWorld::CheckLinger() {
  if (context_.linger_over) return;
  const absl::Time now = context_.queue.now();
  if (coordinator_ == nullptr || coordinator_->over() ||
      coordinator_->core().state() != wire::RUNNING) {
    // Also while it forms: it may be that it never runs.
    const bool forms = coordinator_ != nullptr && !coordinator_->over() &&
                       coordinator_->core().state() == wire::FORMING;
    if (!forms) context_.linger_over = true;
  } else {
    const wire::StatusReply status = coordinator_->core().Status(now);
    std::string open;
    for (const wire::Move& move : status.view().move()) {
      if (under_way_.count({move.shard(), move.id()}) > 0)
        absl::StrAppend(&open, " shard ", move.shard(), " of move ", move.id());
    }
    const wire::View& view = status.view();
    if (view.has_change()) absl::StrAppend(&open, " a change of the mode");
    if (view.entered() + 1 < view.phase_size())
      absl::StrAppend(&open, " phase ", view.entered() + 1);
    // While the workers have the model nothing moves.
    const bool may_move = view.phase(view.entered()).mode() != wire::ALLREDUCE;
    for (const wire::ServerMember& server : view.server()) {
      if (may_move && user_->drained().count(server.index()) > 0)
        absl::StrAppend(&open, " server ", server.index(), " to leave");
    }
    const bool automatic =
        context_.scenario.placement.rebalance.mode() == config::Rebalance::AUTO;
    if (may_move && !automatic && status.plan().move_size() > 0)
      absl::StrAppend(&open, " ", status.plan().move_size(), " planned moves");
    if (!user_->idle()) absl::StrAppend(&open, " a user");
    if (open.empty()) {
      context_.linger_over = true;
      ++counts_.lingered;
    } else if (now >
               absl::UnixEpoch() + context_.scenario.heal_at + kLingerMax) {
      context_.linger_over = true;
      context_.checker.Report(
          Invariant::kLiveness,
          absl::StrCat(absl::FormatDuration(kLingerMax),
                       " after the last fault these still wait:", open, "; ",
                       StatusLines()));
    }
  }
  context_.queue.After(absl::Milliseconds(20), [this] { CheckLinger(); });
}

void SimWorld::FollowUp() {
  for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
    if (workers_[rank] == nullptr || restart_pending_[rank]) continue;
    const ProcessEnd& end = workers_[rank]->end();
    if (end.kind != ProcessEnd::Kind::kFenced) continue;
    ++counts_.fenced;
    restart_pending_[rank] = true;
    context_.queue.After(absl::Milliseconds(1),
                         [this, rank] { StartWorker(rank); });
  }
}

bool SimWorld::AllEnded() const {
  const auto ended = [&](const auto& process, Node node) {
    return process == nullptr ? NeverStarts(node)
                              : process->end().kind != ProcessEnd::Kind::kAlive;
  };
  if (coordinator_ == nullptr ? !NeverStarts(0) : !coordinator_->over())
    return false;
  for (int index = 0; index < static_cast<int>(servers_.size()); ++index) {
    const bool added = index >= context_.scenario.servers;
    if (added && servers_[index] == nullptr) continue;
    if (!ended(servers_[index], added ? 0 : index)) return false;
  }
  for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
    if (restart_pending_[rank]) return false;
    if (!ended(workers_[rank], context_.scenario.WorkerNode(rank)))
      return false;
  }
  return true;
}

bool SimWorld::NeverStarts(Node node) const {
  return context_.scenario.start_at[node] == absl::InfiniteDuration();
}

std::string SimWorld::StatusLines() const {
  std::string text =
      coordinator_ == nullptr
          ? "no coordinator"
          : absl::StrCat("coordinator: ",
                         wire::JobState_Name(coordinator_->core().state()));
  for (const auto& server : servers_) {
    if (server != nullptr) absl::StrAppend(&text, "\n  ", server->StatusLine());
  }
  for (const auto& worker : workers_) {
    if (worker != nullptr) absl::StrAppend(&text, "\n  ", worker->StatusLine());
  }
  return text;
}

void SimWorld::CheckOutcome() {
  Checker& checker = context_.checker;
  const auto check_end = [&](const std::string& who, const ProcessEnd& end) {
    // Whoever gives up has to say on whom.
    if (end.kind == ProcessEnd::Kind::kGaveUp &&
        !absl::StrContains(end.what, "coordinator") &&
        !absl::StrContains(end.what, "worker ") && end.what != "fenced" &&
        !absl::StrContains(end.what, "the job is about to end") &&
        !absl::StrContains(end.what, "the mode is just changing")) {
      checker.Report(
          Invariant::kOutcome,
          absl::StrCat(who, " gave up without naming anybody: ", end.what));
    }
  };
  for (const auto& server : servers_) {
    if (server != nullptr) check_end(server->StatusLine(), server->end());
  }
  for (const auto& worker : workers_) {
    if (worker != nullptr) check_end(worker->StatusLine(), worker->end());
  }
  const wire::JobState state = coordinator_ == nullptr
                                   ? wire::JOB_STATE_UNSPECIFIED
                                   : coordinator_->core().state();
  if (state == wire::FINISHED) {
    ++counts_.finished;
    checker.OnFinished();
    return;
  }
  if (state != wire::FAILED) {
    ++counts_.coordinator_lost;
    if (!coordinator_crashed_ && !NeverStarts(0)) {
      checker.Report(Invariant::kOutcome,
                     "the job has not ended and its coordinator has");
    }
    return;
  }
  ++counts_.failed;
  if (absl::StrContains(coordinator_->core().reason(), "just taking over"))
    ++counts_.lost_on_the_way;
  // Every removal was checked when it happened, so these reasons are true ones.
  const std::string& reason = coordinator_->core().reason();
  const bool named = absl::StrContains(reason, "server ") ||
                     absl::StrContains(reason, "worker ");
  const bool had_to = absl::StrContains(reason, "its shards are lost") ||
                      absl::StrContains(reason, "no worker is left") ||
                      absl::StrContains(reason, "did not join within");
  if (!named || !had_to) {
    checker.Report(Invariant::kOutcome,
                   absl::StrCat("the job failed without need: ", reason));
  }
}

RunReport SimWorld::Run() {
  const Scenario& scenario = context_.scenario;
  context_.Log(scenario.ToString());
  for (Node node = 0; node < static_cast<Node>(scenario.start_at.size());
       ++node) {
    if (scenario.start_at[node] == absl::InfiniteDuration()) continue;
    context_.queue.After(scenario.start_at[node], [this, node] {
      if (node < context_.scenario.servers) {
        StartServer(node);
      } else {
        StartWorker(node - context_.scenario.servers);
      }
    });
  }
  for (const FaultEvent& fault : scenario.faults) {
    context_.queue.After(fault.at, [this, fault] { Inject(fault); });
  }
  context_.queue.After(scenario.heal_at, [this] {
    context_.Log("from here on nothing goes wrong any more");
    context_.network.Heal();
    context_.groups.Heal();
    healed_ = true;
    for (const wire::Move& move : context_.checker.latest_view().move())
      under_way_.insert({move.shard(), move.id()});
    if (!context_.linger_over) CheckLinger();
  });
  user_ = std::make_unique<SimUser>(
      &context_, [this](int32_t index) { return AddServer(index); });
  context_.linger_over = !scenario.placement.linger;
  const absl::Duration slowest =
      *std::max_element(scenario.compute.begin(), scenario.compute.end());
  // Joining, leases, giving up; then the work that is left, done by one after
  // the other at worst.
  const absl::Time deadline =
      context_.queue.now() + scenario.heal_at + scenario.start_timeout * 3 +
      scenario.lease * 20 +
      (scenario.placement.linger ? kLingerMax : absl::ZeroDuration()) +
      scenario.retry_max * 20 +
      4 * static_cast<double>(scenario.steps) *
          (slowest + absl::Milliseconds(100));
  while (!context_.checker.violation().has_value() &&
         context_.queue.RunNext()) {
    FollowUp();
    if (AllEnded()) break;
    if (context_.queue.now() > deadline ||
        context_.queue.events_run() > kEventsMax) {
      context_.checker.Report(
          Invariant::kLiveness,
          absl::StrCat("not everybody has come to an end ",
                       absl::FormatDuration(deadline - absl::UnixEpoch()),
                       " after the start: ", StatusLines()));
    }
  }
  CheckOutcome();

  RunReport report;
  report.violation = context_.checker.violation();
  report.outcome =
      coordinator_ == nullptr
          ? "no coordinator"
          : absl::StrCat(wire::JobState_Name(coordinator_->core().state()),
                         ": ", coordinator_->core().reason());
  counts_.runs = 1;
  counts_.events = context_.queue.events_run();
  counts_.network = context_.network.stats();
  counts_.checker = context_.checker.stats();
  for (const auto& worker : workers_) {
    if (worker == nullptr) continue;
    counts_.workers.Add(worker->counts());
    counts_.gave_up += worker->end().kind == ProcessEnd::Kind::kGaveUp;
  }
  counts_.user = user_->counts();
  for (size_t index = 0; index < servers_.size(); ++index) {
    if (servers_[index] == nullptr) continue;
    counts_.servers_drained +=
        servers_[index]->end().kind == ProcessEnd::Kind::kDrained;
    counts_.servers_added += index >= static_cast<size_t>(scenario.servers) &&
                             servers_[index]->joined();
  }
  const wire::Mode first = scenario.sync.mode;
  counts_.bsp = first == wire::BSP;
  counts_.ssp = first == wire::SSP;
  counts_.asp = first == wire::ASP;
  counts_.allreduce = first == wire::ALLREDUCE;
  counts_.dssp = first == wire::DSSP;
  counts_.backup = first == wire::BACKUP;
  report.counts = counts_;
  report.log = std::move(context_.log);
  return report;
}

RunReport RunSeed(uint64_t seed, bool keep_log) {
  SimWorld world(Scenario::Random(seed), keep_log);
  return world.Run();
}

RunReport RunModesSeed(uint64_t seed, bool keep_log) {
  SimWorld world(Scenario::RandomModes(seed), keep_log);
  return world.Run();
}

}  // namespace slackline::sim
