#include "tests/sim/sim_server.h"

#include <algorithm>
#include <utility>

#include "common/optim/optimizer.h"
#include "common/status.h"

namespace slackline::sim {
namespace {

constexpr char kJob[] = "sim";
constexpr char kConfigHash[] = "hash";

ShardCore MakeShardCore(const Scenario& scenario, Owner self) {
  return ShardCore({.self = self,
                    .seed = scenario.seed,
                    .trace = true,
                    .hand_over = scenario.placement.hand_over,
                    .waiting_max = scenario.placement.waiting_max},
                   scenario.MakeOptimizer(), config::LearningRateSchedule());
}

// `Config` is config::Sync or config::Phase.
template <typename Config>
void SetMode(const SyncMode& mode, Config* config) {
  const auto staleness = static_cast<int32_t>(mode.staleness);
  switch (mode.mode) {
    case wire::SSP:
      return config->mutable_ssp()->set_staleness(staleness);
    case wire::DSSP:
      config->mutable_dssp()->set_min_staleness(staleness);
      config->mutable_dssp()->set_max_staleness(
          static_cast<int32_t>(mode.staleness_max));
      return;
    case wire::BACKUP:
      return config->mutable_backup()->set_workers(mode.backups);
    case wire::ASP:
      config->mutable_asp();
      return;
    case wire::ALLREDUCE:
      config->mutable_allreduce();
      return;
    default:
      config->mutable_bsp();
  }
}

CoordinatorCore::Options CoordinatorOptions(const Scenario& scenario) {
  CoordinatorCore::Options options;
  options.job = kJob;
  options.config_hash = kConfigHash;
  options.servers = scenario.servers;
  options.workers = scenario.workers;
  SetMode(scenario.sync, &options.sync);
  if (!scenario.modes.later.empty()) {
    const auto end_at = [&](Clock end) {
      options.sync.mutable_phase()->rbegin()->set_until_epoch(
          static_cast<double>(end) / static_cast<double>(scenario.steps));
    };
    options.sync.clear_mode();
    SetMode(scenario.sync, options.sync.add_phase());
    for (const Modes::Phase& phase : scenario.modes.later) {
      end_at(phase.from);
      SetMode(phase.sync, options.sync.add_phase());
    }
  }
  options.shard_elements = scenario.shard_elements;
  options.lease = scenario.lease;
  options.start_timeout = scenario.start_timeout;
  options.rebalance.config = scenario.placement.rebalance;
  options.rebalance.slot_count = scenario.slot_count();
  options.rebalance.split_elements_min = 2;
  return options;
}

MemberCore::Options ServerOptions(const Scenario& scenario, int index,
                                  uint64_t token) {
  MemberCore::Options options = MemberOptions(scenario);
  options.join.set_role(wire::JoinRequest::SERVER);
  options.join.set_index(index);
  options.join.set_token(token);
  for (int t = 0; t < scenario.threads; ++t) {
    options.join.add_thread()->set_tcp(
        absl::StrCat("tcp://server", index, ":", t));
  }
  return options;
}

}  // namespace

MemberCore::Options MemberOptions(const Scenario& scenario) {
  MemberCore::Options options;
  options.join.set_job(kJob);
  options.join.set_config_hash(kConfigHash);
  options.join.set_host("host");
  options.coordinator_address = "coordinator:7700";
  options.start_timeout = scenario.start_timeout * 2;
  options.join_retry = scenario.lease / 4;
  options.call_retry = scenario.lease / 2;
  return options;
}

// ---- Coordinator ----------------------------------------------------------

SimCoordinator::SimCoordinator(SimContext* context)
    : context_(context),
      core_(CoordinatorOptions(context->scenario)),
      alarm_(&context->queue, [this] {
        if (over_) return;
        CoordinatorCore::Effects effects;
        core_.OnTick(context_->queue.now(), &effects);
        Perform(&effects);
      }) {
  core_.Start(context_->queue.now());
  context_->network.Attach(kCoordinatorPeer, /*node=*/0,
                           [this](const PeerId& from, const Message& message) {
                             OnMessage(from, message);
                           });
  alarm_.SetAt(core_.NextWakeup());
}

SimCoordinator::~SimCoordinator() {
  context_->network.Detach(kCoordinatorPeer, /*drop_sent=*/false);
}

void SimCoordinator::OnMessage(const PeerId& from, const Message& message) {
  if (over_) return;
  heard_[from] = context_->queue.now();
  if (!message.header.call().leave().failure().empty())
    gave_up_.insert(message.header.call().incarnation());
  CoordinatorCore::Effects effects;
  core_.OnMessage(from, message, context_->queue.now(), &effects);
  Perform(&effects);
}

void SimCoordinator::Perform(CoordinatorCore::Effects* effects) {
  for (const std::string& line : effects->log)
    context_->Log("coordinator: ", line);
  for (Outgoing& out : effects->sends) {
    if (out.message.header.has_join_reply() &&
        out.message.header.join_reply().code() == wire::OK) {
      joined_[out.message.header.join_reply().incarnation()] = out.to;
    }
    if (out.message.header.has_view()) {
      CheckRemovals(out.message.header.view());
      context_->checker.OnPublished(out.message.header.view());
    }
    context_->network.Send(kCoordinatorPeer, out.to, std::move(out.message));
  }
  if (core_.Over(context_->queue.now())) {
    over_ = true;
    return;
  }
  alarm_.SetAt(core_.NextWakeup());
}

void SimCoordinator::CheckRemovals(const wire::View& view) {
  std::map<Incarnation, PeerId> present;
  for (const wire::WorkerMember& worker : view.worker()) {
    present[worker.incarnation()] = joined_[worker.incarnation()];
  }
  for (const wire::ServerMember& server : view.server()) {
    present[server.incarnation()] = joined_[server.incarnation()];
  }
  for (const auto& [incarnation, peer] : members_) {
    const absl::Duration silent = context_->queue.now() - heard_[peer];
    // A server that has nothing left may go.
    bool drained = false;
    for (const wire::ServerMember& server : last_view_.server()) {
      drained |= server.incarnation() == incarnation && server.draining() &&
                 std::find(last_view_.owner_server().begin(),
                           last_view_.owner_server().end(),
                           server.index()) == last_view_.owner_server().end();
    }
    if (present.count(incarnation) == 0 && !drained &&
        gave_up_.count(incarnation) == 0 &&
        silent <= context_->scenario.lease) {
      context_->checker.Report(
          Invariant::kOutcome,
          absl::StrCat("view ", view.number(), " dropped ", peer.ToString(),
                       ", which was heard ", absl::FormatDuration(silent),
                       " before; the lease is ",
                       absl::FormatDuration(context_->scenario.lease)));
    }
  }
  members_ = std::move(present);
  last_view_ = view;
}

void SimCoordinator::Crash() {
  over_ = true;
  context_->network.Detach(kCoordinatorPeer, /*drop_sent=*/false);
}

// ---- Server ---------------------------------------------------------------

SimServer::SimServer(SimContext* context, int index, uint64_t token)
    : context_(context),
      index_(index),
      control_peer_{
          .kind = PeerId::Kind::kServer, .index = index, .instance = token},
      member_(ServerOptions(context->scenario, index, token)),
      alarm_(&context->queue, [this] {
        if (end_.kind != ProcessEnd::Kind::kAlive) return;
        MemberCore::Effects effects;
        member_.SetStats(Stats());
        member_.OnTick(context_->queue.now(), &effects);
        Perform(&effects);
      }) {
  for (int t = 0; t < context_->scenario.threads; ++t) {
    threads_.emplace_back().core = std::make_unique<ShardCore>(
        MakeShardCore(context_->scenario, {.server = index, .thread = t}));
    threads_.back().alarm =
        std::make_unique<Alarm>(&context_->queue, [this, t] {
          OnShard(t, nullptr, [](ShardCore&, ShardCore::Effects*) {});
        });
    context_->network.Attach(
        ThreadPeer(t), context_->scenario.ServerNode(index),
        [this, t](const PeerId& from, const Message& message) {
          OnShardMessage(t, from, message);
        });
  }
  context_->network.Attach(control_peer_, context_->scenario.ServerNode(index),
                           [this](const PeerId&, const Message& message) {
                             MemberCore::Effects effects;
                             member_.OnMessage(message, context_->queue.now(),
                                               &effects);
                             Perform(&effects);
                           });
  MemberCore::Effects effects;
  member_.Start(context_->queue.now(), &effects);
  Perform(&effects);
}

SimServer::~SimServer() {
  if (end_.kind == ProcessEnd::Kind::kAlive) Crash(/*drop_sent=*/false);
}

PeerId SimServer::ThreadPeer(int thread) const {
  return {.kind = PeerId::Kind::kShardThread,
          .index = index_,
          .instance = static_cast<uint64_t>(thread)};
}

void SimServer::Crash(bool drop_sent) {
  Stop({.kind = ProcessEnd::Kind::kCrashed, .what = "crashed"}, drop_sent);
}

void SimServer::Stop(ProcessEnd end, bool drop_sent) {
  if (end_.kind != ProcessEnd::Kind::kAlive) return;
  end_ = std::move(end);
  context_->Log("server ", index_, " ends: ", end_.what);
  context_->network.Detach(control_peer_, drop_sent);
  for (int t = 0; t < static_cast<int>(threads_.size()); ++t) {
    context_->network.Detach(ThreadPeer(t), drop_sent);
  }
  context_->checker.OnServerGone(index_);
}

run::ServerStats SimServer::Stats() const {
  run::ServerStats total;
  total.set_index(index_);
  for (int t = 0; t < static_cast<int>(threads_.size()); ++t) {
    const run::ServerStats stats = threads_[t].core->Stats();
    total.mutable_hand_over()->MergeFrom(stats.hand_over());
    *total.add_thread() = Load(t);
  }
  return total;
}

// Nothing takes time here, so the load is made up.
run::ThreadLoad SimServer::Load(int t) const {
  const Scenario& scenario = context_->scenario;
  const Placement& placement = scenario.placement;
  const auto uniform = [&](uint64_t a, uint64_t b) {
    return Rng(Mix64(Mix64(scenario.seed ^ a) ^ b)).Uniform();
  };
  run::ThreadLoad load;
  load.set_thread(t);
  load.set_bytes_per_busy_second(
      1000 * (1 + uniform(static_cast<uint64_t>(index_), 77)));
  const std::shared_ptr<const View>& view = member_.view();
  if (view == nullptr) return load;
  const uint64_t epoch = static_cast<uint64_t>(
      (context_->queue.now() - absl::UnixEpoch()) / placement.hot_for);
  double utilisation = 0;
  for (int32_t id = 0; id < view->shard_count(); ++id) {
    if (!threads_[t].core->Owns(ShardId{id})) continue;
    const double luck = uniform(static_cast<uint64_t>(id), epoch);
    const double elements =
        static_cast<double>(view->shard(ShardId{id}).elements());
    const double busy =
        (luck < placement.hot ? 0.1 : 0.001) * (1 + luck) * elements;
    run::ShardLoad& shard = *load.add_shard();
    shard.set_shard(id);
    shard.set_busy(static_cast<float>(busy));
    utilisation += busy;
  }
  load.set_utilisation(utilisation);
  return load;
}

bool SimServer::Drained() const {
  const std::shared_ptr<const View>& view = member_.view();
  if (view == nullptr || view->proto().state() != wire::RUNNING) return false;
  const wire::ServerMember* const server = view->FindServer(index_);
  if (server == nullptr || !server->draining()) return false;
  const wire::View& proto = view->proto();
  return std::find(proto.owner_server().begin(), proto.owner_server().end(),
                   index_) == proto.owner_server().end() &&
         std::none_of(
             proto.move().begin(), proto.move().end(),
             [&](const wire::Move& move) { return move.server() == index_; });
}

void SimServer::Perform(MemberCore::Effects* effects) {
  for (Message& message : effects->sends) {
    context_->network.Send(control_peer_, kCoordinatorPeer, std::move(message));
  }
  if (effects->view != nullptr) {
    const wire::View& view = effects->view->proto();
    context_->checker.OnMemberView(control_peer_, view);
    // A hop from thread to thread; in the order of the views.
    for (int t = 0; t < static_cast<int>(threads_.size()); ++t) {
      Thread& thread = threads_[t];
      thread.view_arrives =
          std::max(thread.view_arrives,
                   context_->queue.now() +
                       absl::Microseconds(context_->rng.Between(0, 1000)));
      context_->queue.At(thread.view_arrives,
                         lifetime_.Guard([this, t, view = effects->view] {
                           OnShardView(t, view);
                         }));
    }
    if (view.state() != wire::RUNNING) {  // The coordinator waits for this.
      MemberCore::Effects last;
      member_.SetStats(Stats());
      member_.SendHeartbeat(context_->queue.now(), &last);
      for (Message& message : last.sends) {
        context_->network.Send(control_peer_, kCoordinatorPeer,
                               std::move(message));
      }
    }
    if (view.state() == wire::FINISHED) {
      Stop({.kind = ProcessEnd::Kind::kJobFinished, .what = view.reason()},
           false);
    } else if (view.state() == wire::FAILED) {
      Stop({.kind = ProcessEnd::Kind::kJobFailed, .what = view.reason()},
           false);
    }
  }
  for (const MemberCore::CallResult& answer : effects->answers) {
    if (answer.call_id != leave_call_) continue;
    if (answer.reply.code() == wire::OK) {
      Stop({.kind = ProcessEnd::Kind::kDrained, .what = "drained"}, false);
    } else {
      leave_call_.reset();  // It was given a shard after all.
    }
  }
  if (effects->fenced && leave_call_.has_value()) {  // The answer was lost.
    Stop({.kind = ProcessEnd::Kind::kDrained, .what = "drained"}, false);
  } else if (effects->fenced) {
    Stop({.kind = ProcessEnd::Kind::kGaveUp, .what = "fenced"}, false);
  }
  if (!effects->failure.ok()) {
    Stop({.kind = ProcessEnd::Kind::kGaveUp,
          .what = std::string(effects->failure.message())},
         false);
  }
  if (end_.kind != ProcessEnd::Kind::kAlive) return;
  alarm_.SetAt(member_.NextWakeup());
  if (!Drained() || leave_call_.has_value()) return;
  wire::Call leave;
  leave.mutable_leave();
  MemberCore::Effects leaving;
  leave_call_ = member_.Call(leave, Payload(), context_->queue.now(), &leaving);
  Perform(&leaving);
}

void SimServer::OnShardView(int t, const std::shared_ptr<const View>& view) {
  Thread& thread = threads_[t];
  if (plant_ == Plant::kHideLosses && thread.shown != nullptr) {
    wire::View proto = view->proto();
    for (const wire::WorkerMember& worker : thread.shown->proto().worker()) {
      if (view->FindWorker(Rank{worker.rank()}) == nullptr)
        *proto.add_worker() = worker;
    }
    thread.shown = *View::Create(std::move(proto));
  } else if (plant_ == Plant::kLooseBounds) {
    wire::View proto = view->proto();
    for (wire::Phase& phase : *proto.mutable_phase()) {
      phase.set_staleness_max(phase.staleness_max() + 100);
      phase.set_backups(phase.backups() + 1);
    }
    thread.shown = *View::Create(std::move(proto));
  } else {
    thread.shown = view;
  }
  OnShard(t, view, [&](ShardCore& core, ShardCore::Effects* effects) {
    const int32_t shards = view->shard_count();
    const int32_t splits = view->proto().split_size();
    int32_t owned = 0;
    for (int32_t id = shards - splits; id < shards; ++id)
      owned += core.Owns(ShardId{id});
    core.OnView(thread.shown, effects);
    if (plant_ != Plant::kForgetSequence) return;
    for (int32_t id = shards - splits; id < shards; ++id) {
      auto* const state = const_cast<ShardState*>(core.StateOf(ShardId{id}));
      if (state == nullptr || owned-- > 0) continue;
      std::vector<StalenessGate::Participant> participants =
          state->gate.participants();
      for (StalenessGate::Participant& p : participants) p.next_seq = 1;
      state->gate.Restore(state->gate.MinClock(), participants);
    }
  });
}

std::map<ShardState*, Clock> SimServer::TurnBack(ShardCore& core,
                                                 const PeerId& from,
                                                 const Message& message) const {
  std::map<ShardState*, Clock> clocks;
  const wire::PushRequest& push = message.header.push_request();
  for (int i = 0; !push.advance() && i < push.shard_size(); ++i) {
    auto* const state =
        const_cast<ShardState*>(core.StateOf(ShardId{push.shard(i)}));
    if (state == nullptr || push.clock() >= state->bsp_clock) continue;
    const StalenessGate::Participant* const participant =
        state->gate.Find(Rank{from.index}, from.instance);
    if (participant == nullptr || participant->next_seq != push.seq(i))
      continue;
    clocks[state] = std::exchange(state->bsp_clock, push.clock());
  }
  return clocks;
}

void SimServer::ForgetInstallation(ShardCore& core, const PeerId& from,
                                   const Message& message) {
  const wire::PushRequest& push = message.header.push_request();
  for (int i = 0; push.install() && i < push.shard_size(); ++i) {
    auto* const state =
        const_cast<ShardState*>(core.StateOf(ShardId{push.shard(i)}));
    if (state == nullptr || state->bsp_clock != push.clock()) continue;
    StalenessGate::Participant* const participant =
        state->gate.Find(Rank{from.index}, from.instance);
    if (participant == nullptr || participant->clock != push.clock()) continue;
    state->bsp_clock = push.clock() - 1;
    if (participant->next_seq > push.seq(i))
      participant->next_seq = push.seq(i);
  }
}

void SimServer::OnShardMessage(int t, const PeerId& from,
                               const Message& message) {
  OnShard(t, nullptr, [&](ShardCore& core, ShardCore::Effects* effects) {
    std::unique_ptr<ShardCore> before;
    if (plant_ == Plant::kServeOn && message.header.has_hand_over_reply())
      before = std::make_unique<ShardCore>(core);
    if (plant_ == Plant::kInstallAgain) ForgetInstallation(core, from, message);
    std::map<ShardState*, Clock> clocks;
    if (plant_ == Plant::kTakeLate) clocks = TurnBack(core, from, message);
    core.OnMessage(from, message, effects);
    for (const auto& [state, clock] : clocks) state->bsp_clock = clock;
    const bool gave = std::any_of(
        effects->sends.begin(), effects->sends.end(), [](const Outgoing& out) {
          const auto& records = out.message.header.hand_over().record();
          return records.size() > 0 && records.rbegin()->go();
        });
    if (before != nullptr && gave) threads_[t].core = std::move(before);
  });
}

void SimServer::OnShard(
    int t, const std::shared_ptr<const View>& view,
    const std::function<void(ShardCore&, ShardCore::Effects*)>& event) {
  if (end_.kind != ProcessEnd::Kind::kAlive) return;
  Thread& thread = threads_[t];
  ShardCore::Effects effects;
  thread.core->OnTick(context_->queue.now(), &effects);
  event(*thread.core, &effects);
  context_->checker.OnShardEvent({index_, t}, view, *thread.core, effects);
  Send(t, &effects);
  if (effects.report) ReportSoon();
  thread.alarm->SetAt(thread.core->NextWakeup());
}

// A hop from the shard thread to the control thread, which tells at once.
void SimServer::ReportSoon() {
  if (report_pending_) return;
  report_pending_ = true;
  context_->queue.After(absl::Microseconds(context_->rng.Between(0, 1000)),
                        lifetime_.Guard([this] {
                          report_pending_ = false;
                          if (end_.kind != ProcessEnd::Kind::kAlive) return;
                          MemberCore::Effects effects;
                          member_.SetStats(Stats());
                          member_.SendHeartbeat(context_->queue.now(),
                                                &effects);
                          Perform(&effects);
                        }));
}

void SimServer::Send(int t, ShardCore::Effects* effects) {
  for (Outgoing& out : effects->sends) {
    context_->network.Send(ThreadPeer(t), out.to, std::move(out.message));
  }
  FlushSoon(t);
}

// A real thread takes what has arrived meanwhile into the same batch.
void SimServer::FlushSoon(int t) {
  if (threads_[t].flush_pending) return;
  threads_[t].flush_pending = true;
  context_->queue.After(
      absl::Microseconds(context_->rng.Between(0, 500)),
      lifetime_.Guard([this, t] {
        threads_[t].flush_pending = false;
        if (end_.kind != ProcessEnd::Kind::kAlive) return;
        ShardCore::Effects effects;
        threads_[t].core->Flush(&effects);
        context_->checker.OnShardFlush({index_, t}, *threads_[t].core);
        for (Outgoing& out : effects.sends) {
          context_->network.Send(ThreadPeer(t), out.to, std::move(out.message));
        }
      }));
}

std::string SimServer::StatusLine() const {
  int64_t parked = 0;
  for (const Thread& thread : threads_)
    parked += thread.core->Stats().pulls_parked();
  return absl::StrCat(
      "server ", index_, ": ",
      end_.kind == ProcessEnd::Kind::kAlive ? "alive" : end_.what, ", view ",
      member_.view() == nullptr ? 0 : member_.view()->number(), ", ", parked,
      " pulls parked");
}

}  // namespace slackline::sim
