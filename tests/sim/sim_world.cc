#include "tests/sim/sim_world.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/match.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {
namespace {

// A run of this many events goes in circles: the largest need some 30 000.
constexpr int64_t kEventsMax = 3'000'000;
// Users start no more than this.
constexpr int kServersAddedMax = 3;
// After the last fault everything is to come to its end within this time.
constexpr absl::Duration kLingerMax = absl::Seconds(60);

}  // namespace

SimWorld::SimWorld(const Scenario& scenario, bool keep_log)
    : context_(scenario, keep_log),
      servers_(scenario.servers),
      workers_(scenario.workers),
      restart_pending_(scenario.workers, false),
      judged_(scenario.workers, false),
      fault_seen_(scenario.placement.faults.size(), 0),
      phase_fault_seen_(scenario.modes.faults.size(), 0) {
  context_.on_phase_step = [this](PhaseStep step, Rank rank) {
    WatchPhase(step, static_cast<int>(rank), std::nullopt);
  };
  context_.could_be_heard = [this](const PeerId& member) {
    return CouldBeHeard(member);
  };
  context_.network.on_send = [this](const PeerId& from,
                                    const Message& message) {
    if (!SimStranger::IsStranger(from))
      requests_.OnSent(from, message, context_.queue.now());
  };
  context_.network.watch = [this](const PeerId& from, const PeerId& to,
                                  const Message& message, bool arrives) {
    return Watch(from, to, message, arrives);
  };
}

void SimWorld::StartServer(int index) {
  context_.machines[context_.scenario.ServerNode(index)].Restart();
  if (index == 0) {
    if (coordinator_ == nullptr) {
      coordinator_ = std::make_unique<SimCoordinator>(&context_);
      if (on_coordinator_started) on_coordinator_started(coordinator_.get());
    } else {
      // As long as the lease in etcd of the last one runs, the job seems to be
      // led.
      const bool seems_led = context_.scenario.takes_over &&
                             coordinator_->core().state() == wire::RUNNING &&
                             context_.rng.Chance(0.5);
      if (coordinator_->away() && !seems_led) {
        RecoverCoordinator(0, /*has_joined=*/false, /*new_process=*/true);
        // Then the process only reports how the job has ended.
        if (coordinator_->core().state() == wire::FINISHED ||
            coordinator_->core().state() == wire::FAILED) {
          only_reports_ = true;
          return;
        }
      }
    }
  }
  // As `slackline run` starts it again.
  const bool recovers = index == 0 || (index < context_.scenario.servers &&
                                       servers_[index] != nullptr);
  context_.Log("server ", index, " starts");
  context_.checker.OnServerStarts(index);
  servers_[index] = std::make_unique<SimServer>(
      &context_, index, context_.rng.Next(),
      /*may_host_before_joining=*/recovers && context_.scenario.takes_over);
  if (coordinator_ != nullptr && !coordinator_->away())
    servers_[index]->SetHostsCoordinator(index == Host());
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

void SimWorld::RestartServer(int index, absl::Duration after) {
  if (!server_restart_pending_.insert(index).second) return;
  context_.queue.After(after, [this, index] {
    server_restart_pending_.erase(index);
    // Nobody starts one for a job that is over. Whether it is when server 0 has
    // died, is found out then.
    if (coordinator_ != nullptr &&
        (coordinator_->over() ||
         (index != 0 && coordinator_->core().state() != wire::RUNNING))) {
      return;
    }
    ++counts_.server_restarts;
    StartServer(index);
  });
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
  SimMachine& machine = context_.machines[context_.scenario.WorkerNode(rank)];
  if (machine.stands_still()) {
    return machine.Arrive([this, rank] { StartWorker(rank); });
  }
  restart_pending_[rank] = false;
  if (workers_[rank] != nullptr) {
    if (workers_[rank]->end().kind == ProcessEnd::Kind::kAlive) return;
    const SimWorker::Counts past = workers_[rank]->counts();
    counts_.workers.Add(past);
    ++counts_.restarts;
  }
  judged_[rank] = false;
  context_.Log("worker ", rank, " starts");
  workers_[rank] =
      std::make_unique<SimWorker>(&context_, Rank{rank}, context_.rng.Next());
  if (on_worker_started) on_worker_started(workers_[rank].get());
}

void SimWorld::Cut(Node from, Node to, absl::Duration duration, bool held) {
  context_.network.Cut(from, to, context_.queue.now() + duration, held);
  absl::Duration& longest = longest_cut_[{from, to}];
  longest = std::max(longest, duration);
  cut_in_all_[{from, to}] += duration;
}

void SimWorld::Inject(const FaultEvent& fault) {
  const Scenario& scenario = context_.scenario;
  switch (fault.kind) {
    case FaultEvent::Kind::kIsolate:
      ++counts_.cuts;
      context_.Log("node ", fault.node, " is cut off for ",
                   absl::FormatDuration(fault.duration),
                   fault.held ? ", messages are held" : ", messages are lost");
      for (Node other = 0; other < NodeCount(); ++other) {
        Cut(fault.node, other, fault.duration, fault.held);
        if (!fault.one_way) Cut(other, fault.node, fault.duration, fault.held);
      }
      return;
    case FaultEvent::Kind::kCutLink:
      ++counts_.cuts;
      context_.Log("the link from node ", fault.node, " to ", fault.peer,
                   " is cut for ", absl::FormatDuration(fault.duration),
                   fault.held ? ", messages are held" : ", messages are lost");
      Cut(fault.node, fault.peer, fault.duration, fault.held);
      if (!fault.one_way)
        Cut(fault.peer, fault.node, fault.duration, fault.held);
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
    context_.machines[fault.node].Restart();
    if (scenario.ServerOn(fault.node) == Host()) {
      CrashCoordinator(/*with_host=*/true, fault.duration);
    } else if (fault.restart && scenario.replicas > 0) {
      RestartServer(scenario.ServerOn(fault.node), fault.duration);
    }
    return;
  }
  const int rank = scenario.WorkerOn(fault.node);
  SimWorker* const worker = workers_[rank].get();
  if (worker == nullptr || worker->end().kind != ProcessEnd::Kind::kAlive)
    return;
  ++counts_.crashes;
  worker->Crash(fault.drop_sent);
  context_.machines[fault.node].Restart();
  if (!fault.restart) return;
  restart_pending_[rank] = true;
  context_.queue.After(fault.duration, [this, rank] { StartWorker(rank); });
}

void SimWorld::CrashCoordinator(bool with_host, absl::Duration away) {
  if (!with_host) context_.Log("the coordinator alone ends");
  const bool is_new = !coordinator_->away() && !coordinator_->over();
  const int host = Host();
  coordinator_->Crash();
  if (servers_[host] != nullptr) servers_[host]->SetHostsCoordinator(false);
  if (!context_.scenario.recovers) {
    coordinator_crashed_ = true;
    return;
  }
  if (is_new) {
    const wire::View& view = coordinator_->core().view();
    counts_.recovered_in_move += view.move_size() > 0;
    counts_.recovered_in_change +=
        view.has_change() || view.entered() + 1 < view.phase_size();
  }
  if (with_host) RestartServer(host, away);
  if (!is_new) return;
  if (context_.scenario.takes_over) return TakeOverLater();
  if (with_host) return;
  const auto host_has_crashed = [this, host] {
    const SimServer* const server = servers_[host].get();
    return server != nullptr &&
           server->end().kind == ProcessEnd::Kind::kCrashed;
  };
  // In a job that is over it may be there without its server.
  const bool was_alone = host_has_crashed();
  context_.queue.After(away, [this, host, host_has_crashed, was_alone] {
    context_.machines[HostNode()].Arrive([this, host, host_has_crashed,
                                          was_alone] {
      const SimServer* const server = servers_[host].get();
      // If its process has died since, too, the next one goes on with it.
      if (coordinator_->away() && (was_alone || !host_has_crashed())) {
        RecoverCoordinator(host,
                           !was_alone && server != nullptr && server->joined(),
                           /*new_process=*/false);
      }
    });
  });
}

bool SimWorld::IsAlive(int server) const {
  const SimServer* const found = servers_[server].get();
  return found != nullptr && found->end().kind == ProcessEnd::Kind::kAlive;
}

bool SimWorld::CouldBeHeard(const PeerId& member) const {
  // A heartbeat or two may be lost.
  constexpr double kLossMax = 0.02;
  const Scenario& scenario = context_.scenario;
  // What the last coordinator sent and the network repeats later is a sign of
  // it.
  if (scenario.network.loss > kLossMax || scenario.network.duplicate > 0 ||
      scenario.links.queue_max > 0 || !longest_cut_.empty() ||
      counts_.inner_cuts > 0 ||
      counts_.stopped + counts_.stopped_long + counts_.suspended > 0 ||
      context_.misled.count(member) > 0) {
    return false;
  }
  const auto index = static_cast<size_t>(member.index);
  if (member.kind == PeerId::Kind::kServer) {
    return IsAlive(member.index) && servers_[index]->control_peer() == member;
  }
  const SimWorker* const worker =
      index < workers_.size() ? workers_[index].get() : nullptr;
  return worker != nullptr && worker->end().kind == ProcessEnd::Kind::kAlive &&
         worker->control_peer() == member;
}

void SimWorld::TakeOverLater() {
  // The lease was renewed not long ago.
  const int64_t lease = absl::ToInt64Milliseconds(context_.scenario.lease);
  context_.queue.After(
      absl::Milliseconds(context_.rng.Between(lease * 2 / 3, lease * 2)),
      [this] { TakeOver(); });
}

void SimWorld::TakeOver() {
  if (!coordinator_->away()) return;
  const Scenario& scenario = context_.scenario;
  std::vector<int> may;
  std::vector<int> may_last;  // They are to leave: CoordinatorSeat.
  for (int server = 0; server < scenario.servers; ++server) {
    if (!IsAlive(server) ||
        context_.machines[scenario.ServerNode(server)].stands_still()) {
      continue;
    }
    const ServerCore::Candidacy candidacy = servers_[server]->Candidacy();
    if (candidacy.may_host)
      (candidacy.leaves ? may_last : may).push_back(server);
  }
  if (may.empty()) may = may_last;
  if (may.empty()) {
    // Whoever runs the job starts server 0 again.
    if (!IsAlive(0)) RestartServer(0, scenario.lease);
    context_.queue.After(scenario.lease / 2, [this] { TakeOver(); });
    return;
  }
  const int host = may[context_.rng.Below(may.size())];
  const bool moves = host != Host();
  counts_.taken_over += moves;
  counts_.taken_over_still +=
      moves && context_.machines[HostNode()].stands_still();
  RecoverCoordinator(host, servers_[host]->has_run(), /*new_process=*/false);
}

void SimWorld::RecoverCoordinator(int host, bool has_joined, bool new_process) {
  ++counts_.recovered;
  coordinator_->Recover(host, has_joined, new_process);
  if (servers_[host] != nullptr) servers_[host]->SetHostsCoordinator(true);
  // From here on they get answers again.
  if (!healed_) return;
  calm_since_ = healed_at_ = context_.queue.now();
}

void SimWorld::Inject(const CoordinatorFault& fault) {
  if (coordinator_ == nullptr || coordinator_->over() || coordinator_->away())
    return;
  const auto crash = [this, fault] {
    if (!fault.with_host)
      return CrashCoordinator(/*with_host=*/false, fault.duration);
    FaultEvent event;
    event.kind = FaultEvent::Kind::kCrash;
    event.node = HostNode();
    event.duration = fault.duration;
    event.restart = true;
    Inject(event);
    // Its server has ended by itself already.
    if (!coordinator_->away())
      CrashCoordinator(/*with_host=*/false, fault.duration);
  };
  switch (fault.moment) {
    case CoordinatorFault::Moment::kAtOnce:
      return crash();
    case CoordinatorFault::Moment::kBeforeItIsKept:
      return coordinator_->CrashInEvent(fault.moment, [this, crash] {
        ++counts_.recovered_unkept;
        crash();
      });
    case CoordinatorFault::Moment::kBeforeItIsTold:
      return coordinator_->CrashInEvent(fault.moment, [this, crash] {
        ++counts_.recovered_untold;
        crash();
      });
  }
}

void SimWorld::Inject(const StandStillFault& fault) {
  const bool long_one = fault.duration >= context_.scenario.lease;
  ++(fault.suspend ? counts_.suspended
     : long_one    ? counts_.stopped_long
                   : counts_.stopped);
  counts_.server_0_still += fault.node == HostNode();
  context_.Log("node ", fault.node,
               fault.suspend ? " is suspended for " : " is stopped for ",
               absl::FormatDuration(fault.duration));
  context_.machines[fault.node].StandStill(fault.duration, fault);
  const bool hosts = coordinator_ != nullptr && fault.node == HostNode() &&
                     !coordinator_->away() && !coordinator_->over();
  // Its lease in etcd may run out, too.
  if (!context_.scenario.takes_over || !long_one || !hosts ||
      !context_.rng.Chance(0.5)) {
    return;
  }
  context_.Log("the coordinator does not lead any more");
  coordinator_->LoseLead();
  servers_[Host()]->SetHostsCoordinator(false);
  TakeOverLater();
}

void SimWorld::Inject(const ShardStall& stall) {
  SimServer* const server = servers_[static_cast<size_t>(stall.server)].get();
  if (server == nullptr || server->end().kind != ProcessEnd::Kind::kAlive)
    return;
  ++counts_.shard_stalls;
  context_.Log("thread ", stall.thread, " of server ", stall.server,
               " stands still for ", absl::FormatDuration(stall.duration));
  server->Stall(stall.thread, stall.duration);
}

void SimWorld::Inject(const InnerCut& cut) {
  SimServer* const server = servers_[static_cast<size_t>(cut.server)].get();
  if (server == nullptr || server->end().kind != ProcessEnd::Kind::kAlive)
    return;
  ++counts_.inner_cuts;
  const bool shards = cut.kind == InnerCut::Kind::kShardsFromControl;
  context_.Log(
      shards ? "the shard threads of server " : "the control thread of server ",
      cut.server, shards ? " are" : " is", " cut off for ",
      absl::FormatDuration(cut.duration));
  if (shards) return server->CutShardsFromControl(cut.duration);
  const absl::Time until = context_.queue.now() + cut.duration;
  const PeerId coordinator = context_.CoordinatorAt(Host());
  context_.network.CutPeers(server->control_peer(), coordinator, until,
                            cut.held);
  context_.network.CutPeers(coordinator, server->control_peer(), until,
                            cut.held);
}

void SimWorld::ScheduleReality() {
  const Scenario& scenario = context_.scenario;
  const auto schedule = [&](const auto& faults) {
    for (const auto& fault : faults) {
      context_.queue.After(fault.at, [this, fault] { Inject(fault); });
    }
  };
  schedule(scenario.stand_still);
  schedule(scenario.shard_stalls);
  schedule(scenario.inner_cuts);
  schedule(scenario.coordinator_faults);
  counts_.clocks_apart = scenario.reality.clocks;
  counts_.replicas = scenario.replicas > 0;
  counts_.rows = scenario.HasRows();
  counts_.recovers = scenario.recovers;
  counts_.bounds = scenario.gradient_bound.has_value();
  counts_.bounded_links = scenario.links.queue_max > 0;
  counts_.schedules = !scenario.schedule.SerializeAsString().empty();
  counts_.own_optimizers = !scenario.own_optimizers.empty();
  counts_.rate_factors = scenario.rate_factors;
  counts_.skips_tables = scenario.skips_tables;
  counts_.tries_links = scenario.tries_links;
  counts_.stale_rules =
      scenario.stale.rule_case() != config::StaleGradients::RULE_NOT_SET;
  stranger_ = std::make_unique<SimStranger>(&context_);
}

std::optional<SimWorld::Seen> SimWorld::StepOf(const PeerId& from,
                                               const PeerId& to,
                                               const Message& message) const {
  const Checker& checker = context_.checker;
  switch (message.header.body_case()) {
    case wire::Header::kHandOver: {
      const wire::HandOver& hand_over = message.header.hand_over();
      const bool moves = hand_over.feed().has_move();
      MoveStep step = moves ? MoveStep::kRecord : MoveStep::kFollowed;
      if (hand_over.position() == 1)
        step = moves ? MoveStep::kSnapshot : MoveStep::kCopied;
      for (const wire::HandOverRecord& record : hand_over.record()) {
        const bool push =
            record.record().has_gradient() || record.record().has_advance();
        if (moves && push) step = MoveStep::kPush;
        if (record.has_resume()) step = MoveStep::kResumed;
        if (record.has_go()) step = moves ? MoveStep::kGo : MoveStep::kSwapGo;
      }
      return Seen{step, from.index, to.index};
    }
    case wire::Header::kHandOverReply: {
      const wire::HandOverReply& reply = message.header.hand_over_reply();
      MoveStep step = MoveStep::kHas;
      if (reply.feed().has_move()) {
        step = reply.owned() ? MoveStep::kOwned : MoveStep::kConfirmed;
      } else if (reply.owned()) {
        step = MoveStep::kSwapOwned;
      } else if (reply.lacks()) {
        step = MoveStep::kLacks;
      }
      return Seen{step, to.index, from.index};
    }
    case wire::Header::kHeartbeat: {
      const wire::Heartbeat& heartbeat = message.header.heartbeat();
      for (const run::FollowerState& state : heartbeat.server().follower()) {
        if (state.in_sync())
          return Seen{MoveStep::kInSync, from.index, state.server()};
      }
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
    case wire::Header::kView:
    case wire::Header::kViewChange: {
      const std::optional<wire::View> seen = checker.ViewIn(message.header);
      if (!seen.has_value()) return std::nullopt;
      const wire::View& view = *seen;
      if (const TwinMove* const done = checker.DoneIn(view.number())) {
        return Seen{MoveStep::kPublished, done->source.server,
                    done->target.server};
      }
      if (to.kind != PeerId::Kind::kServer) return std::nullopt;
      if (const auto failover = checker.FailoverIn(view.number())) {
        return Seen{failover->target.server == to.index
                        ? MoveStep::kPromoted
                        : MoveStep::kPromotedThere,
                    failover->source.server, failover->target.server};
      }
      for (const wire::Follower& follower : view.follower()) {
        if (follower.in_sync()) continue;
        const int32_t source = view.owner_server(follower.shard());
        if (source == to.index)
          return Seen{MoveStep::kFollowerNew, source, follower.server()};
        if (follower.server() == to.index)
          return Seen{MoveStep::kFollowerNewThere, source, follower.server()};
      }
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
  if (SimStranger::IsStranger(from) || SimStranger::IsStranger(to)) return true;
  if (arrives) requests_.OnReached(to, message, context_.queue.now());
  if (!arrives) context_.feeds.OnSent(from, to, message);
  if (const auto seen = PhaseStepOf(from, to, message); seen.has_value()) {
    if (!WatchPhase(seen->first, seen->second, arrives)) return false;
  }
  const std::optional<Seen> seen = StepOf(from, to, message);
  if (!seen.has_value()) return true;
  if (!arrives) ++counts_.steps[static_cast<int>(seen->step)];
  if (!arrives && message.header.has_hand_over()) {
    const wire::HandOver& hand_over = message.header.hand_over();
    uint64_t& sent =
        sent_up_to_[{hand_over.shard(), hand_over.feed().SerializeAsString()}];
    if (hand_over.position() <= sent) ++counts_.records_resent;
    sent =
        std::max(sent, hand_over.position() +
                           static_cast<uint64_t>(hand_over.record_size()) - 1);
    for (const wire::HandOverRecord& record : hand_over.record()) {
      if (!record.has_go() ||
          !gone_.insert({hand_over.shard(), record.go().move()}).second) {
        continue;
      }
      ++counts_.gos;
      context_.checker.OnGo(hand_over.shard(), record.go().move());
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
      event.node = HostNode();
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
        return CrashCoordinator(/*with_host=*/false, fault.duration);
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
      event.peer = HostNode();
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
    case wire::Header::kView:
    case wire::Header::kViewChange: {
      const std::optional<wire::View> seen =
          context_.checker.ViewIn(message.header);
      if (!seen.has_value()) return std::nullopt;
      const wire::View& view = *seen;
      if (!to_worker || view.state() != wire::RUNNING) return std::nullopt;
      if (view.has_change()) return Seen{PhaseStep::kAsked, to.index};
      const bool later = view.entered() + 1 < view.phase_size();
      const Clock end =
          later ? view.phase(view.entered() + 1).from() : EndOf(view);
      if (view.phase(view.entered()).mode().has_allreduce() &&
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
      if (!message.header.pull_request().pull(0).has_state())
        return std::nullopt;
      return Seen{PhaseStep::kTaking, from.index};
    case wire::Header::kPullReply:
      if (!std::any_of(message.header.pull_reply().answer().begin(),
                       message.header.pull_reply().answer().end(),
                       [](const auto& a) { return a.has_state(); })) {
        return std::nullopt;
      }
      return Seen{PhaseStep::kTaken, to.index};
    case wire::Header::kPushRequest:
      if (!std::any_of(message.header.push_request().push().begin(),
                       message.header.push_request().push().end(),
                       [](const auto& p) { return p.has_installation(); })) {
        return std::nullopt;
      }
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
      event.node = HostNode();
      break;
  }
  switch (fault.kind) {
    case PhaseFault::Kind::kCrash:
      event.kind = FaultEvent::Kind::kCrash;
      ++counts_.phase_crashes[static_cast<int>(fault.step)];
      if (fault.victim == PhaseFault::Victim::kCoordinator) {
        return CrashCoordinator(/*with_host=*/false, fault.duration);
      }
      break;
    case PhaseFault::Kind::kIsolate:
      event.kind = FaultEvent::Kind::kIsolate;
      break;
    case PhaseFault::Kind::kCutFromCoordinator:
      event.peer = HostNode();
      event.kind = event.node == event.peer ? FaultEvent::Kind::kIsolate
                                            : FaultEvent::Kind::kCutLink;
      break;
  }
  Inject(event);
}

void SimWorld::CheckLinger() {
  if (context_.linger_over) return;
  const absl::Time now = context_.queue.now();
  if (coordinator_ != nullptr && coordinator_->away()) {
    // What is open then is not known.
  } else if (coordinator_ == nullptr || coordinator_->over() ||
             coordinator_->core().state() != wire::RUNNING) {
    // Also while it forms: it may be that it never runs.
    const bool forms = coordinator_ != nullptr && !coordinator_->over() &&
                       coordinator_->core().state() == wire::FORMING;
    if (!forms) context_.linger_over = true;
  } else {
    const wire::StatusReply status = coordinator_->core().Status(now);
    std::string open;
    // In a job that goes on from a checkpoint some may have no step left: who
    // waits with the last one would hold them up.
    const auto is_done = [](const auto& worker) { return worker.done(); };
    if (absl::c_any_of(status.view().worker(), is_done)) {
      context_.linger_over = true;
      return;
    }
    for (const wire::Move& move : status.view().move()) {
      if (under_way_.count({move.shard(), move.id()}) > 0)
        absl::StrAppend(&open, " shard ", move.shard(), " of move ", move.id());
    }
    const wire::View& view = status.view();
    if (view.has_change()) absl::StrAppend(&open, " a change of the mode");
    if (view.entered() + 1 < view.phase_size())
      absl::StrAppend(&open, " phase ", view.entered() + 1);
    // While the workers have the model nothing moves.
    const bool may_move = !view.phase(view.entered()).mode().has_allreduce();
    const std::set<int32_t>& drained = user_->drained();
    const auto is_drained = [&](const wire::ServerMember& server) {
      return server.draining() && drained.count(server.index()) > 0;
    };
    // When the last of the others has gone, nobody can take the shards.
    const bool can_leave =
        !std::all_of(view.server().begin(), view.server().end(), is_drained);
    for (const wire::ServerMember& server : view.server()) {
      if (may_move && can_leave && is_drained(server))
        absl::StrAppend(&open, " server ", server.index(), " to leave");
    }
    const bool automatic =
        context_.scenario.placement.rebalance.mode() == config::Rebalance::AUTO;
    if (may_move && !automatic && status.plan().move_size() > 0)
      absl::StrAppend(&open, " ", status.plan().move_size(), " planned moves");
    absl::StrAppend(&open, context_.checker.MissingCopies());
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

void SimWorld::CheckRequests() {
  constexpr absl::Duration kLookEvery = absl::Milliseconds(50);
  const absl::Time now = context_.queue.now();
  if (!healed_ || now < last_look_ + kLookEvery) return;
  last_look_ = now;
  if (!context_.linger_over) calm_since_ = now;  // The last step waits.
  if (coordinator_ == nullptr || coordinator_->over() || coordinator_crashed_ ||
      coordinator_->away() || coordinator_->core().state() != wire::RUNNING) {
    return;
  }
  const Scenario& scenario = context_.scenario;
  const absl::Duration retry = scenario.retry_max + scenario.lease;
  // Messages that are held arrive, those who have died are removed, and the
  // coordinator answers at once; a repetition or two may be needed.
  // On a link that is full, the question waits, and the answer.
  const absl::Duration soon =
      4 * scenario.lease + 2 * retry + 2 * context_.network.longest_queue();
  // Whoever waits for others waits for the slowest one's steps, at worst for
  // all that are left, and for who has died meanwhile.
  const absl::Duration slowest =
      *std::max_element(scenario.compute.begin(), scenario.compute.end());
  absl::Duration late = soon + 4 * retry +
                        static_cast<double>(scenario.StepsMax()) *
                            (slowest * 1.2 + absl::Milliseconds(60));
  for (const TrainerStall& stall : scenario.trainer_stalls) {
    late += stall.duration == absl::InfiniteDuration() ? 20 * scenario.lease
                                                       : stall.duration;
  }
  late += scenario.after_last_max;
  // The checkpoint that is under way, and the next one.
  if (scenario.checkpoints.wanted) late += 4 * scenario.checkpoints.slow_max;
  for (const bool is_soon : {true, false}) {
    const absl::Duration bound = is_soon ? soon : late;
    const std::optional<OpenRequests::Waiting> oldest =
        requests_.Oldest(is_soon, now - bound);
    // The coordinator answers also while the last step waits.
    const absl::Time calm_since = is_soon ? healed_at_ : calm_since_;
    if (!oldest.has_value() || now - calm_since <= bound) continue;
    if (!context_.network.attached(oldest->who)) {
      requests_.OnGone(oldest->who);
      continue;
    }
    context_.checker.Report(
        Invariant::kLiveness,
        absl::StrCat(oldest->who.ToString(), " waits for an answer to its ",
                     OpenRequests::KindName(oldest->kind), " ", oldest->what,
                     " for ", absl::FormatDuration(now - oldest->since),
                     "; nothing goes wrong since ",
                     absl::FormatDuration(now - calm_since),
                     " and the bound is ", absl::FormatDuration(bound), "; ",
                     StatusLines()));
  }
}

void SimWorld::JudgeWhoGaveUp(int rank) {
  const ProcessEnd& end = workers_[rank]->end();
  if (judged_[rank] || end.kind != ProcessEnd::Kind::kGaveUp) return;
  judged_[rank] = true;
  if (ExcuseOf(rank, end) != nullptr) {
    ++counts_.gave_up_with_reason;
    return;
  }
  context_.checker.Report(
      Invariant::kGaveUp,
      absl::StrCat("worker ", rank,
                   " gave up though no fault explains it: ", end.what));
}

void SimWorld::JudgeRemovals() {
  if (coordinator_ == nullptr) return;
  const std::vector<int>& removed = coordinator_->removed();
  for (; removals_judged_ < removed.size(); ++removals_judged_) {
    const int rank = removed[removals_judged_];
    if (StoodStill(rank)) {
      ++counts_.removed_with_reason;
    } else {
      context_.checker.Report(
          Invariant::kGaveUp,
          absl::StrCat("worker ", rank,
                       " was removed for holding others up though no fault "
                       "explains that it did"));
    }
  }
}

bool SimWorld::StoodStill(int rank) const {
  const Scenario& scenario = context_.scenario;
  const Node node = scenario.WorkerNode(rank);
  for (const TrainerStall& stall : scenario.trainer_stalls) {
    if (stall.rank == Rank{rank}) return true;
  }
  // It or a server was away, or they did not reach each other.
  const auto server_on = [&](Node at) {
    for (int server = 0; server < static_cast<int>(servers_.size()); ++server) {
      if (scenario.ServerNode(server) == at) return true;
    }
    return false;
  };
  for (const StandStillFault& fault : scenario.stand_still) {
    if (fault.node == node || server_on(fault.node)) return true;
  }
  if (!scenario.shard_stalls.empty()) return true;
  for (const auto& [ends, duration] : longest_cut_) {
    if (ends.first == node || ends.second == node || server_on(ends.first) ||
        server_on(ends.second)) {
      return true;
    }
  }
  return false;
}

const char* SimWorld::ExcuseOf(int rank, const ProcessEnd& end) const {
  const Scenario& scenario = context_.scenario;
  const Node node = scenario.WorkerNode(rank);
  const auto cut_for = [&](Node from, Node to) {
    const auto found = longest_cut_.find({from, to});
    return found == longest_cut_.end() ? absl::ZeroDuration() : found->second;
  };
  // Who never heard that the job was over finds nobody there.
  if (coordinator_crashed_ || coordinator_ == nullptr || coordinator_->over())
    return "the coordinator is not there";
  if (end.code == absl::StatusCode::kUnavailable) {  // It was silent.
    // A stopped coordinator, or a stopped worker, is no reason.
    absl::Duration longest;
    for (int host = 0; host < scenario.servers; ++host) {
      if (host > 0 && !scenario.takes_over) break;
      const Node there = scenario.ServerNode(host);
      longest = std::max({longest, cut_for(node, there), cut_for(there, node)});
    }
    if (longest >= scenario.lease) return "it was cut off from the coordinator";
    return nullptr;
  }
  if (end.obstacle == wire::JoinReply::NOT_NOW ||
      end.obstacle == wire::JoinReply::JOB_ENDED) {
    return "there was no place for it any more";
  }
  if (end.code == absl::StatusCode::kResourceExhausted ||
      end.code == absl::StatusCode::kNotFound) {
    // It could not connect to the other workers, or none of them knew the
    // parameters.
    if (scenario.modes.group_faults.connect > 0) return "connections failed";
    for (const auto& [ends, duration] : longest_cut_) {
      if (duration > absl::ZeroDuration()) return "workers were cut off";
    }
    if (counts_.crashes > 0) return "a worker has died";
    return nullptr;
  }
  if (end.obstacle == wire::JoinReply::PLACE_HELD) {
    for (const absl::Duration start : scenario.start_at) {
      if (start == absl::InfiniteDuration()) return "somebody never starts";
    }
    // A life before this one still held its place, or ended with all done.
    if (counts_.crashes + counts_.restarts > 0) return "a life before this one";
  }
  return nullptr;
}

void SimWorld::CheckLinks() {
  const wire::View& view = coordinator_->core().view();
  const auto check = [&](const PeerId& member, bool is_connected) {
    if (is_connected) return;
    context_.checker.Report(
        Invariant::kOutcome,
        absl::StrCat("the job begins, and ", member.ToString(),
                     " has not been connected with all servers"));
  };
  for (const wire::WorkerMember& listed : view.worker()) {
    const SimWorker* const worker = workers_[listed.rank()].get();
    if (worker->incarnation() == listed.incarnation())
      check(worker->control_peer(), worker->links().complete());
  }
  if (context_.scenario.replicas == 0) return;
  for (const wire::ServerMember& listed : view.server()) {
    const SimServer* const server = servers_[listed.index()].get();
    if (server->incarnation() == listed.incarnation())
      check(server->control_peer(), server->links().complete());
  }
}

void SimWorld::FollowUp() {
  if (!has_begun_ && coordinator_ != nullptr &&
      coordinator_->core().state() != wire::FORMING) {
    has_begun_ = true;
    if (context_.scenario.tries_links &&
        coordinator_->core().state() == wire::RUNNING) {
      CheckLinks();
    }
  }
  JudgeRemovals();
  for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
    if (workers_[rank] == nullptr || restart_pending_[rank]) continue;
    JudgeWhoGaveUp(rank);
    const ProcessEnd& end = workers_[rank]->end();
    if (end.kind != ProcessEnd::Kind::kFenced || judged_[rank]) continue;
    judged_[rank] = true;
    ++counts_.fenced;
    // Its process cannot begin anew before its trainer runs again.
    const absl::Duration stalls = workers_[rank]->stalls_for();
    if (stalls == absl::InfiniteDuration()) continue;
    restart_pending_[rank] = true;
    context_.queue.After(absl::Milliseconds(1) + stalls,
                         [this, rank] { StartWorker(rank); });
  }
  // A coordinator whose server cannot go on leaves the job to another one.
  if (context_.scenario.takes_over && coordinator_ != nullptr &&
      !coordinator_->over() && !coordinator_->away() && !only_reports_ &&
      servers_[Host()] != nullptr &&
      servers_[Host()]->end().kind == ProcessEnd::Kind::kGaveUp) {
    CrashCoordinator(/*with_host=*/false, absl::ZeroDuration());
  }
  // Whoever runs the job starts a server again that was given up.
  const bool restarts = context_.scenario.replicas > 0 &&
                        coordinator_ != nullptr && !coordinator_->over() &&
                        !coordinator_->away() &&
                        coordinator_->core().state() == wire::RUNNING;
  for (int index = context_.scenario.takes_over ? 0 : 1;
       restarts && index < static_cast<int>(servers_.size()); ++index) {
    const SimServer* const server = servers_[index].get();
    if (server != nullptr && server->given_up())
      RestartServer(index, absl::Milliseconds(1));
  }
  EndWhoIsStuckAlone();
}

void SimWorld::EndWhoIsStuckAlone() {
  if (context_.trainer_stalls_for_ever == 0 || !healed_) return;
  const Scenario& scenario = context_.scenario;
  const absl::Duration since_start = context_.queue.now() - absl::UnixEpoch();
  if (since_start < scenario.heal_at + 2 * scenario.stall_timeout()) return;
  for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
    if (workers_[rank] == nullptr || !workers_[rank]->IsStuckAlone()) continue;
    ++counts_.stuck_alone;
    context_.Log("a user ends worker ", rank);
    FaultEvent fault;
    fault.kind = FaultEvent::Kind::kCrash;
    fault.node = scenario.WorkerNode(rank);
    fault.restart = true;
    Inject(fault);
  }
}

bool SimWorld::AllEnded() const {
  const auto ended = [&](const auto& process, Node node) {
    return process == nullptr ? NeverStarts(node)
                              : process->end().kind != ProcessEnd::Kind::kAlive;
  };
  if (coordinator_ == nullptr ? !NeverStarts(0) : !coordinator_->over())
    return false;
  if (!server_restart_pending_.empty()) return false;
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

bool SimWorld::StoppedByBound(const wire::JobEnd& end) const {
  const auto& bound = context_.scenario.gradient_bound;
  return end.cause() == wire::JobEnd::DIVERGED && bound.has_value() &&
         bound->policy() == config::GradientBound::STOP &&
         absl::c_all_of(end.worker(), [&](const int32_t rank) {
           return context_.checker.IsOversized(rank);
         });
}

bool SimWorld::ServersWereAway(const wire::JobEnd& end) const {
  const Scenario& scenario = context_.scenario;
  if (end.cause() != wire::JobEnd::SERVERS_SILENT) return false;
  // A request may have been lost just before, and is sent again some time after
  // it could be answered.
  const absl::Duration enough = std::max(
      scenario.stall_timeout() - 2 * scenario.lease - 2 * scenario.retry_max,
      scenario.lease);
  const auto was_away = [&](int32_t server) {
    absl::Duration away;
    for (const ShardStall& stall : scenario.shard_stalls) {
      if (stall.server == server) away += stall.duration;
    }
    const Node node = scenario.ServerNode(server);
    for (const StandStillFault& fault : scenario.stand_still) {
      if (fault.node == node) away += fault.duration;
    }
    for (const auto& [ends, duration] : cut_in_all_) {
      if (ends.first == node || ends.second == node) away += duration;
    }
    return away >= enough;
  };
  // Or the other server of a move was: a shard lets requests wait where its
  // target is far behind, and both are named.
  const wire::View& view = coordinator_->core().view();
  const auto moves_with_one_that_was = [&](int32_t server) {
    return std::any_of(view.move().begin(), view.move().end(),
                       [&](const wire::Move& move) {
                         const int32_t source = view.owner_server(move.shard());
                         return (server == source && was_away(move.server())) ||
                                (server == move.server() && was_away(source));
                       });
  };
  // Or one that has copies of its shards: its answers wait for that.
  const auto waits_for_one_that_was = [&](int32_t server) {
    return std::any_of(view.follower().begin(), view.follower().end(),
                       [&](const wire::Follower& follower) {
                         return view.owner_server(follower.shard()) == server &&
                                was_away(follower.server());
                       });
  };
  return std::all_of(
      end.server().begin(), end.server().end(), [&](int32_t server) {
        return was_away(server) || moves_with_one_that_was(server) ||
               waits_for_one_that_was(server);
      });
}

void SimWorld::CheckOutcome() {
  Checker& checker = context_.checker;
  const auto check_end = [&](const std::string& who, const ProcessEnd& end) {
    // Whoever gives up has to say why.
    if (end.kind == ProcessEnd::Kind::kGaveUp &&
        (end.code == absl::StatusCode::kOk || end.what.empty())) {
      checker.Report(Invariant::kOutcome,
                     absl::StrCat(who, " gave up without a reason"));
    }
  };
  for (const auto& server : servers_) {
    if (server != nullptr) check_end(server->StatusLine(), server->end());
  }
  for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
    const auto& worker = workers_[static_cast<size_t>(rank)];
    if (worker == nullptr) continue;
    check_end(worker->StatusLine(), worker->end());
  }
  const wire::JobState state = coordinator_ == nullptr
                                   ? wire::JOB_STATE_UNSPECIFIED
                                   : coordinator_->core().state();
  if (state == wire::FINISHED) {
    ++counts_.finished;
    // Whoever has started it hears from the coordinator's server how the job
    // has ended, unless it was cut off from its own coordinator.
    const int host = Host();
    absl::Duration cut_off = cut_in_all_[{HostNode(), HostNode()}];
    for (const InnerCut& cut : context_.scenario.inner_cuts) {
      if (cut.server == host && cut.kind != InnerCut::Kind::kShardsFromControl)
        cut_off += cut.duration;
    }
    // The last heartbeat before that may be as old as they are apart.
    const absl::Duration lease = context_.scenario.lease;
    if (servers_[host] != nullptr &&
        cut_off < lease - lease / Membership::kHeartbeatsPerLease &&
        !servers_[host]->given_up() &&
        servers_[host]->end().kind == ProcessEnd::Kind::kGaveUp) {
      checker.Report(Invariant::kOutcome,
                     absl::StrCat("the job has finished, and server ", host,
                                  ", with the coordinator, failed: ",
                                  servers_[host]->end().what));
    }
    const bool stopped =
        coordinator_->core().view().end().cause() == wire::JobEnd::STOP_RULE;
    counts_.stop_rules += stopped;
    if (!stopped) {  // Else steps are under way.
      checker.OnFinished();
      checker.CheckExamplesDone(coordinator_->core().Summary().examples_done());
    }
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
  const wire::JobEnd& end = coordinator_->core().view().end();
  counts_.lost_on_the_way += end.cause() == wire::JobEnd::SHARD_LOST;
  counts_.suspensions += end.cause() == wire::JobEnd::SUSPENDED;
  counts_.stopped_by_bound += StoppedByBound(end);
  if (end.cause() == wire::JobEnd::SUSPENDED ||
      end.cause() == wire::JobEnd::STOPPED) {
    return checker.OnSuspended(end);
  }
  // Every removal was checked when it happened, so these reasons are true ones.
  const bool named = end.server_size() + end.worker_size() > 0;
  const bool had_to = end.cause() == wire::JobEnd::SERVER_LOST ||
                      end.cause() == wire::JobEnd::SHARD_LOST ||
                      end.cause() == wire::JobEnd::NO_WORKER_LEFT ||
                      end.cause() == wire::JobEnd::WORKER_LOST ||
                      end.cause() == wire::JobEnd::NOT_FORMED ||
                      StoppedByBound(end) || ServersWereAway(end);
  if (!named || !had_to) {
    checker.Report(Invariant::kOutcome,
                   absl::StrCat("the job failed without need: ", end.reason()));
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
  if (const auto& notice = scenario.checkpoints.notice; notice.has_value()) {
    context_.queue.After(notice->at, [this, rank = notice->rank] {
      if (SimWorker* const worker = workers_[static_cast<size_t>(rank)].get();
          worker != nullptr) {
        worker->Suspend();
      }
    });
  }
  if (const auto& told = scenario.checkpoints.server_notice; told.has_value()) {
    context_.queue.After(told->at, [this, server = told->server] {
      SimServer* const there = servers_[static_cast<size_t>(server)].get();
      if (there != nullptr) there->Retire();
    });
  }
  for (const FaultEvent& fault : scenario.faults) {
    context_.queue.After(fault.at, [this, fault] { Inject(fault); });
  }
  ScheduleReality();
  context_.queue.After(scenario.heal_at, [this] {
    context_.Log("from here on nothing goes wrong any more");
    context_.network.Heal();
    context_.groups.Heal();
    if (coordinator_ != nullptr) coordinator_->CrashInNoEvent();
    healed_ = true;
    calm_since_ = healed_at_ = context_.queue.now();
    for (const wire::Move& move : context_.checker.latest_view().move())
      under_way_.insert({move.shard(), move.id()});
    if (!context_.linger_over) CheckLinger();
  });
  user_ = std::make_unique<SimUser>(
      &context_, [this](int32_t index) { return AddServer(index); });
  // Nobody is removed for whom nobody waits, so nobody waits on purpose then.
  bool never_ends = false;
  for (const TrainerStall& stall : scenario.trainer_stalls)
    never_ends |= stall.duration == absl::InfiniteDuration();
  // With elastic sampling nobody knows which step is the last.
  context_.linger_over =
      !scenario.placement.linger || never_ends || scenario.elastic.has_value();
  const absl::Duration slowest =
      *std::max_element(scenario.compute.begin(), scenario.compute.end());
  // Joining, leases, giving up; then the work that is left, done by one after
  // the other at worst.
  absl::Duration stalls;
  for (const TrainerStall& stall : scenario.trainer_stalls) {
    // Removed, or ended by a user if it is alone; and then everything again.
    stalls += stall.duration == absl::InfiniteDuration()
                  ? 4 * scenario.stall_timeout()
                  : stall.duration;
  }
  stalls += scenario.after_last_max;
  if (scenario.checkpoints.wanted) stalls += scenario.checkpoints.slow_max;
  const absl::Time deadline =
      context_.queue.now() + stalls + scenario.heal_at +
      scenario.start_timeout * 3 + scenario.lease * 20 +
      (scenario.placement.linger ? kLingerMax : absl::ZeroDuration()) +
      scenario.retry_max * 20 +
      4 * static_cast<double>(scenario.StepsMax()) *
          (slowest + absl::Milliseconds(100));
  while (!context_.checker.violation().has_value() &&
         !context_.checker.judges_no_more() && context_.queue.RunNext()) {
    FollowUp();
    CheckRequests();
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
  if (!context_.checker.judges_no_more()) CheckOutcome();

  RunReport report;
  report.violation = context_.checker.violation();
  report.outcome =
      coordinator_ == nullptr
          ? "no coordinator"
          : absl::StrCat(wire::JobState_Name(coordinator_->core().state()),
                         ": ", coordinator_->core().reason());
  counts_.runs = 1;
  counts_.links_missed = context_.links_missed;
  counts_.not_judged = context_.checker.judges_no_more();
  counts_.events = context_.queue.events_run();
  counts_.network = context_.network.stats();
  counts_.checker = context_.checker.stats();
  for (const auto& worker : workers_) {
    if (worker == nullptr) continue;
    counts_.workers.Add(worker->counts());
    counts_.gave_up += worker->end().kind == ProcessEnd::Kind::kGaveUp;
  }
  counts_.user = user_->counts();
  counts_.garbage = stranger_->counts();
  counts_.requests_answered = requests_.answered();
  counts_.trainer_stalls = context_.trainer_stalls;
  counts_.trainer_stalls_for_ever = context_.trainer_stalls_for_ever;
  counts_.disk_errors = context_.disk_errors;
  counts_.slow_files = context_.slow_files;
  counts_.torn_logs = context_.torn_logs;
  counts_.lane_operations = context_.groups.lanes().operations;
  counts_.lane_without_server = context_.groups.lanes().without_server;
  counts_.lane_held = context_.groups.lanes().held;
  for (size_t index = 0; index < servers_.size(); ++index) {
    if (servers_[index] == nullptr) continue;
    counts_.servers_drained +=
        servers_[index]->end().kind == ProcessEnd::Kind::kDrained;
    counts_.servers_retired += servers_[index]->retired();
    counts_.servers_added += index >= static_cast<size_t>(scenario.servers) &&
                             servers_[index]->joined();
  }
  counts_.bsp = scenario.mode.has_bsp();
  counts_.ssp = scenario.mode.has_ssp();
  counts_.asp = scenario.mode.has_asp();
  counts_.allreduce = scenario.mode.has_allreduce();
  counts_.dssp = scenario.mode.has_dssp();
  counts_.backup = scenario.mode.has_backup();
  counts_.delays = scenario.mode.has_delays();
  if (scenario.mode.has_delays()) {
    counts_.given_moves = counts_.checker.moves_done;
    counts_.given_splits = counts_.checker.splits;
    counts_.given_failovers = counts_.checker.failovers;
  }
  report.counts = counts_;
  report.log = std::move(context_.log);
  report.checkpoints = context_.folder.completed();
  report.model = context_.checker.final_model();
  return report;
}

RunReport RunSeed(uint64_t seed, bool keep_log, const Reality& reality) {
  Scenario scenario = Scenario::Random(seed);
  scenario.Widen(reality);
  return SimWorld(scenario, keep_log).Run();
}

RunReport RunModesSeed(uint64_t seed, bool keep_log, const Reality& reality) {
  Scenario scenario = Scenario::RandomModes(seed);
  scenario.Widen(reality);
  return SimWorld(scenario, keep_log).Run();
}

namespace {

// What a seed draws for a job that leaves a checkpoint, or begins with one.
Scenario OneOrOther(uint64_t seed, bool modes) {
  Scenario scenario =
      modes ? Scenario::RandomModes(seed) : Scenario::Random(seed);
  scenario.elastic.reset();
  return scenario;
}

// Nothing goes wrong, and the model depends on the steps alone.
void MakePlain(Scenario* scenario, uint64_t gradient_seed, Rng& rng) {
  scenario->RemoveFaults();
  scenario->gradient_seed = gradient_seed;
  scenario->gradient_code = {};    // By all-reduce they are whole.
  scenario->skips_tables = false;  // By all-reduce all are summed.
  scenario->pull_ahead = false;
  const auto draw = [&](sync::Mode* mode) {
    if (rng.Chance(0.6)) {
      mode->mutable_bsp();
    } else {
      mode->mutable_allreduce();
    }
  };
  draw(&scenario->mode);
  for (Modes::Phase& phase : scenario->modes.later) draw(&phase.mode);
  std::erase_if(scenario->placement.user, [](const UserAction& action) {
    return action.kind == UserAction::Kind::kSetMode;
  });
}

void CompareModels(const RunReport& first, RunReport* second) {
  if (first.counts.finished == 0 || second->violation.has_value()) return;
  ++second->counts.resumed_same;
  bool same = first.model.size() == second->model.size();
  for (size_t t = 0; same && t < first.model.size(); ++t)
    same = SameBits(first.model[t], second->model[t]);
  if (same) return;
  second->violation =
      Violation{.invariant = Invariant::kCheckpoint,
                .what = "the job that went on has another model in the end"};
}

}  // namespace

RunReport RunResumeSeed(uint64_t seed, bool keep_log, const Reality& reality) {
  Rng rng = Rng(seed).Fork("resume");
  Reality without_delays = reality;
  without_delays.given_delays = false;
  const bool plain = rng.Chance(0.3);
  const bool same_length = plain || rng.Chance(0.5);
  Scenario first = OneOrOther(seed, rng.Chance(0.5));
  first.checkpoints.wanted = true;
  first.checkpoints.config.Clear();
  first.checkpoints.config.set_every_steps(rng.Between(1, 6));
  if (plain) {
    MakePlain(&first, seed, rng);
  } else {
    first.given_delays_chance = 0.5;
    first.Widen(reality);
    if (first.mode.has_delays()) {
      // It ends with its last step only, and has the same model then.
      first.gradient_seed = seed;
      first.stop.Clear();
    }
  }
  RunReport before = SimWorld(first, keep_log).Run();
  if (before.violation.has_value() || before.checkpoints.empty()) return before;
  const auto& checkpoint =
      before.checkpoints[rng.Below(before.checkpoints.size())];

  // A job with given delays is the same one all the time.
  const bool given = first.mode.has_delays();
  Scenario second;
  do {
    // One after the other, so that all compilers draw the same.
    const uint64_t of_second = rng.Next();
    const bool modes = rng.Chance(0.5) && !given && !first.HasRows();
    second = OneOrOther(of_second, modes);
  } while ((same_length || given) && second.workers != first.workers);
  second.Resume(checkpoint);
  if (same_length) second.steps = first.steps;
  if (given) second.TakeDelaysOf(first);
  second.row_widths = first.row_widths;
  second.rate_factors = first.rate_factors;
  second.skips_tables = first.skips_tables;
  second.tries_links = first.tries_links;
  if (plain) {
    MakePlain(&second, seed, rng);
  } else {
    second.Widen(without_delays);
    if (given) second.TakeDelaysOf(first);
  }
  RunReport report = SimWorld(second, keep_log).Run();
  report.counts.resumed = 1;
  report.counts.resumed_given = given;
  // What goes wrong may end a job, and never changes what given delays make.
  if (plain) CompareModels(before, &report);
  if (given && report.counts.finished > 0 && before.counts.finished > 0 &&
      !report.violation.has_value()) {
    CompareModels(before, &report);
    ++report.counts.resumed_given_same;
  }
  report.log.insert(report.log.begin(), before.log.begin(), before.log.end());
  return report;
}

}  // namespace slackline::sim
