#include "tests/sim/sim_server.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/optim/optimizer.h"
#include "common/rng.h"
#include "common/status.h"
#include "common/view/member_lists.h"
#include "server/coordinator/state/state_batch.h"
#include "server/coordinator/state/state_log.h"
#include "tests/sim/job/sim_rows.h"

namespace slackline::sim {
namespace {

constexpr char kJob[] = "sim";
constexpr char kConfigHash[] = "hash";
constexpr char kFolder[] = "checkpoints";

// nullptr: none are given.
std::shared_ptr<const DelaySource> DelaysOf(const Scenario& scenario) {
  if (!scenario.mode.has_delays()) return nullptr;
  return std::make_shared<const DelaySource>(
      DelaySource::OfTrace(scenario.planted_delays.value_or(scenario.delays)));
}

// nullptr: the job begins anew.
std::shared_ptr<const StoredShards> StoredOf(const Scenario& scenario) {
  if (scenario.resume == nullptr) return nullptr;
  return std::make_shared<const SimStoredShards>(scenario.resume);
}

GradientBound BoundOf(const Scenario& scenario) {
  if (!scenario.planted_loose_bound) return scenario.MakeGradientBound();
  config::GradientBound loose;
  loose.set_rms(1e30);
  return GradientBound(loose);
}

ShardCore MakeShardCore(const Scenario& scenario, Owner self) {
  LogFeedOptions feed = scenario.placement.feed;
  if (scenario.planted_no_budget) feed.link = {};
  return ShardCore({.self = self,
                    .seed = scenario.seed,
                    .trace = true,
                    .store_of = StoresOf(scenario),
                    .feed = feed,
                    .stale = scenario.MakeStaleRules(),
                    .delays = DelaysOf(scenario),
                    .workers = scenario.workers,
                    .stored = StoredOf(scenario),
                    .gradient_bound = BoundOf(scenario),
                    .waiting_max = scenario.placement.waiting_max},
                   scenario.schedule);
}

void LetNothingWait(ShardState* shard) {
  if (!shard->turns.has_value()) return;
  std::vector<Payload>& tensors = shard->turns->tensors;
  tensors.erase(tensors.begin(),
                tensors.begin() + shard->turns->turns.waiting_size());
  shard->turns->turns.clear_waiting();
}

// Changes a shard behind its core's back.
void Falsify(const ShardMachine* shard,
             const std::function<void(ShardSnapshot&)>& change) {
  auto* const machine = const_cast<ShardMachine*>(shard);
  ShardSnapshot snapshot = machine->Snapshot();
  change(snapshot);
  *machine = ShardMachine::Create(machine->rule(), machine->shard().range(),
                                  std::move(snapshot))
                 .value();
}

void Falsify(const ShardCore& core, ShardId shard,
             const std::function<void(ShardSnapshot&)>& change) {
  Falsify(core.MachineOf(shard), change);
}

int32_t Milliseconds(absl::Duration duration) {
  return static_cast<int32_t>(absl::ToInt64Milliseconds(duration));
}

CoordinatorCore::Options CoordinatorOptions(const Scenario& scenario,
                                            int host = 0,
                                            bool host_has_joined = false) {
  CoordinatorCore::Options options;
  options.job = kJob;
  options.run = scenario.seed | 1;
  options.config_hash = kConfigHash;
  options.servers = scenario.servers;
  options.workers = scenario.workers;
  PutConfiguredMode(scenario.mode, options.config.mutable_sync());
  if (!scenario.modes.later.empty()) {
    const auto end_at = [&](Clock end) {
      options.config.mutable_sync()->mutable_phase()->rbegin()->set_until_epoch(
          static_cast<double>(end) / static_cast<double>(scenario.steps));
    };
    options.config.mutable_sync()->clear_mode();
    PutConfiguredMode(scenario.mode,
                      options.config.mutable_sync()->add_phase());
    for (const Modes::Phase& phase : scenario.modes.later) {
      end_at(phase.from);
      PutConfiguredMode(phase.mode, options.config.mutable_sync()->add_phase());
    }
  }
  options.shard_elements = scenario.shard_elements;
  *options.config.mutable_optimizer() = scenario.optimizer;
  options.config.mutable_limits()->set_lease_ms(Milliseconds(scenario.lease));
  options.config.mutable_limits()->set_start_timeout_ms(
      Milliseconds(scenario.start_timeout));
  options.try_links = scenario.tries_links;
  *options.config.mutable_rebalance() = scenario.placement.rebalance;
  options.split_elements_min = 2;
  options.config.set_replicas(scenario.replicas);
  *options.config.mutable_train()->mutable_stop() = scenario.stop;
  if (scenario.gradient_bound.has_value()) {
    *options.config.mutable_train()->mutable_gradient_bound() =
        *scenario.gradient_bound;
  }
  options.config.mutable_limits()->set_stall_timeout_ms(
      Milliseconds(scenario.stall_timeout()));
  options.delays = scenario.planted_cut_delays.has_value()
                       ? std::make_shared<const DelaySource>(
                             DelaySource::OfTrace(*scenario.planted_cut_delays))
                       : DelaysOf(scenario);
  // Given delays are those of one seed.
  options.config.mutable_train()->set_seed(
      scenario.resume != nullptr && scenario.mode.has_delays()
          ? scenario.resume->manifest.seed()
          : static_cast<int64_t>(scenario.seed));
  options.config.mutable_limits()->set_save_timeout_ms(
      Milliseconds(scenario.lease * scenario.save_leases));
  if (!scenario.RefusesCheckpoints())
    *options.config.mutable_checkpoint() = scenario.checkpoints.config;
  options.checkpoint_root = kFolder;
  options.mode = ModeText(scenario.mode);
  options.coordinator_may_return = scenario.recovers;
  options.host_server = host;
  options.host_has_joined = host_has_joined;
  if (!scenario.planted_no_patience) {
    options.found_within = CoordinatorWatch::FoundWithin(
        scenario.takes_over ? static_cast<size_t>(scenario.servers) : 1,
        scenario.lease);
  }
  if (scenario.resume != nullptr) {
    options.resume =
        std::make_shared<const checkpoint::Manifest>(scenario.resume->manifest);
    options.resume_sha256 = scenario.resume->Name();
    options.resume_folder = kFolder;
  }
  return options;
}

ServerCore::Options ServerOptions(const Scenario& scenario, int index,
                                  uint64_t token,
                                  bool may_host_before_joining) {
  ServerCore::Options options;
  options.member = MemberOptions(scenario);
  wire::JoinRequest& join = options.member.join;
  join.set_role(wire::JoinRequest::SERVER);
  join.set_index(index);
  join.set_token(token);
  // Two of them on a host, so that not everywhere is a good place for a copy.
  if (scenario.replicas > 0) join.set_host(absl::StrCat("host", index / 2));
  if (scenario.resume != nullptr)
    join.set_checkpoint_sha256(scenario.resume->Name());
  for (int t = 0; t < scenario.threads; ++t) {
    join.add_thread()->add_endpoint(
        absl::StrCat("tcp://server", index, ":", 1 + t));
  }
  options.threads = scenario.threads;
  options.stats_interval = scenario.lease / 5;
  options.last_stats_max = scenario.lease / 5;
  options.may_host_before_joining = may_host_before_joining;
  return options;
}

}  // namespace

MemberCore::Options MemberOptions(const Scenario& scenario) {
  MemberCore::Options options;
  options.join.set_job(kJob);
  options.join.set_config_hash(kConfigHash);
  options.join.set_host("host");
  const int coordinators = scenario.takes_over && !scenario.planted_one_address
                               ? scenario.servers
                               : 1;
  for (int host = 0; host < coordinators; ++host)
    options.coordinators.push_back(absl::StrCat("server", host, ":7700"));
  options.start_timeout = scenario.start_timeout * 2;
  options.lease = scenario.lease;
  // Longer than any is away; and one at another address has to be found.
  options.coordinator_timeout = scenario.lease * 10;
  if (scenario.address_moves)
    options.coordinator_timeout +=
        CoordinatorWatch::FoundWithin(1, scenario.lease);
  options.join_retry = scenario.lease / 4;
  options.call_retry = scenario.lease / 2;
  return options;
}

// ---- Coordinator ----------------------------------------------------------

SimCoordinator::SimCoordinator(SimContext* context)
    : context_(context),
      machine_(&context->machines[context->scenario.ServerNode(0)]),
      core_([&] {
        CoordinatorCore::Options options =
            CoordinatorOptions(context->scenario);
        options.clock = ClockOf(0);
        return std::make_unique<CoordinatorCore>(options);
      }()) {
  core_->Start(machine_->now());
  Attach();
}

CoordinatorClock SimCoordinator::ClockOf(int host) const {
  const Node node = context_->scenario.ServerNode(host);
  const Node named = context_->scenario.planted_one_clock ? 0 : node;
  return {.name = absl::StrCat("machine ", named),
          .to_wall = context_->queue.now() - context_->machines[node].now()};
}

void SimCoordinator::Attach() {
  const PeerId self = context_->CoordinatorAt(host_);
  context_->network.Attach(self, context_->scenario.ServerNode(host_),
                           [this](const PeerId& from, const Message& message) {
                             OnMessage(from, message);
                           });
  context_->network.OnReached(
      self, [this](const PeerId& from) { heard_[from] = machine_->now(); });
  alarm_ = std::make_unique<Alarm>(machine_, [this] { OnAlarm(); });
  alarm_->SetAt(core_->NextWakeup());
}

SimCoordinator::~SimCoordinator() {
  context_->network.Detach(context_->CoordinatorAt(host_), /*drop_sent=*/false);
}

void SimCoordinator::OnAlarm() {
  if (over_ || away_) return;
  CoordinatorCore::Effects effects;
  core_->OnTick(machine_->now(), &effects);
  Perform(&effects);
}

void SimCoordinator::OnMessage(const PeerId& from, const Message& message) {
  if (over_ || away_) return;
  if (!message.header.call().leave().failure().empty())
    gave_up_.insert(message.header.call().incarnation());
  CoordinatorCore::Effects effects;
  core_->OnMessage(from, message, machine_->now(), &effects);
  Perform(&effects);
}

bool SimCoordinator::CrashesAt(CoordinatorFault::Moment moment,
                               const CoordinatorCore::Effects& effects) {
  if (crash_at_ != moment || effects.state.empty()) return false;
  crash_at_.reset();
  has_unkept_ = true;
  std::exchange(crash_, nullptr)();
  if (away_) LeaveTorn(effects.state);
  return away_ || over_;
}

void SimCoordinator::LeaveTorn(const std::vector<StateChange>& changes) {
  const std::string batch = *EncodeBatch(changes);
  Rng rng = Rng(context_->scenario.seed).Fork(absl::StrCat("torn ", life_));
  std::string left = batch.substr(0, rng.Below(batch.size()));
  if (rng.Chance(0.2)) left.clear();
  // The file was made longer before its blocks were written.
  if (rng.Chance(0.5)) left.resize(batch.size());
  ++context_->torn_logs;
  log_ += left;
}

void SimCoordinator::RewriteLog() {
  const std::string batch = *EncodeBatch(state_);
  log_ = StateLogHeader(batch.size()) + batch;
}

void SimCoordinator::Commit(CoordinatorCore::Effects* effects) {
  if (tamper_state) tamper_state(&effects->state);
  if (context_->scenario.recovers && !effects->state.empty()) {
    if (log_.empty()) RewriteLog();
    log_ += *EncodeBatch(effects->state);
  }
  for (StateChange& change : effects->state) {
    if (change.value.has_value()) {
      state_[change.key] = *std::move(change.value);
    } else {
      state_.erase(change.key);
    }
  }
  for (const Incarnation incarnation : effects->removed) {
    gave_up_.insert(incarnation);
    removed_.push_back(joined_[incarnation].index);
  }
  for (const Outgoing& out : effects->sends) {
    const wire::JoinReply& reply = out.message.header.join_reply();
    if (!out.message.header.has_join_reply() || reply.code() != wire::OK)
      continue;
    joined_[reply.incarnation()] = out.to;
    context_->checker.OnJoined(out.to.kind == PeerId::Kind::kServer,
                               out.to.index);
  }
  // From now on it holds, whether anybody hears of it or not.
  // One that died may not have kept that a checkpoint was whole.
  if (const std::optional<int32_t> cut = effects->give_up;
      cut.has_value() &&
      (lost_cuts_.count(*cut) == 0 || made_cuts_.count(*cut) == 0)) {
    context_->checker.OnGivenUp(*cut, ExcuseOf(*cut));
  }
  if (core_->state() != wire::FORMING &&
      core_->view().number() != last_view_.number()) {
    CheckRemovals(core_->view());
    context_->checker.OnPublished(core_->view());
  }
}

void SimCoordinator::Perform(CoordinatorCore::Effects* effects) {
  if (CrashesAt(CoordinatorFault::Moment::kBeforeItIsKept, *effects)) return;
  const bool tells_nothing =
      crash_at_ == CoordinatorFault::Moment::kBeforeItIsTold &&
      !effects->state.empty();
  Commit(effects);
  if (tells_nothing) {
    crash_at_.reset();
    return std::exchange(crash_, nullptr)();
  }
  for (const std::string& line : effects->warnings)
    context_->Log("coordinator: ", line);
  for (const std::string& line : effects->log)
    context_->Log("coordinator: ", line);
  if (const int32_t cut = core_->view().cut().number(); cut > 0) {
    const auto& owners = core_->view().owner_server();
    cuts_.try_emplace(cut, CutBegun{.at = machine_->now(),
                                    .members = members_,
                                    .owners = {owners.begin(), owners.end()}});
  }
  if (effects->give_up.has_value()) context_->folder.Remove(*effects->give_up);
  for (Outgoing& out : effects->sends)
    context_->network.Send(context_->CoordinatorAt(host_), out.to,
                           std::move(out.message));
  if (effects->complete.has_value()) {
    Complete(effects->complete->cut, std::move(effects->complete->manifest));
  }
  CoordinatorCore::Sizes sizes = core_->sizes();
  if (context_->tamper_sizes) context_->tamper_sizes(&sizes);
  context_->checker.OnCoordinator(sizes);
  if (core_->Over(machine_->now())) {
    over_ = true;  // Its process ends; what it has sent still arrives.
    context_->network.Detach(context_->CoordinatorAt(host_),
                             /*drop_sent=*/false);
    return;
  }
  alarm_->SetAt(core_->NextWakeup());
}

void SimCoordinator::Complete(int32_t cut, checkpoint::Manifest manifest) {
  if (context_->tamper_manifest) context_->tamper_manifest(&manifest);
  if (context_->completes_without_files) {
    return machine_->After(absl::ZeroDuration(), lifetime_.Guard([this, cut] {
      if (over_ || away_) return;
      CoordinatorCore::Effects effects;
      core_->OnCheckpoint(cut, std::string(kFolder), machine_->now(), &effects);
      Perform(&effects);
    }));
  }
  // A thread of its own writes it, which dies with it.
  const int life = life_;
  machine_->After(context_->WriteTime(), lifetime_.Guard([=, this] {
    if (over_ || life != life_) return;
    absl::StatusOr<std::string> folder = absl::ResourceExhaustedError(
        "the manifest cannot be written: the disk is full");
    if (context_->CanWrite(DiskFault::File::kManifest)) {
      const auto made = context_->folder.Complete(cut, manifest);
      context_->checker.OnCheckpoint(cut, made);
      if (made.ok()) made_cuts_.insert(cut);
      if (made.ok()) folder = absl::StrCat(kFolder, "/", manifest.clock());
    } else {
      context_->failed_cuts.insert(cut);
      context_->checker.OnCheckpoint(cut, folder.status());
    }
    CoordinatorCore::Effects effects;
    core_->OnCheckpoint(cut, folder, machine_->now(), &effects);
    Perform(&effects);
  }));
}

const char* SimCoordinator::ExcuseOf(int32_t cut) const {
  if (core_->state() != wire::RUNNING) return "the job has ended";
  if (context_->failed_cuts.count(cut) > 0) return "a file was not written";
  if (lost_cuts_.count(cut) > 0) return "the coordinator has died";
  const auto begun = cuts_.find(cut);
  if (begun == cuts_.end()) return nullptr;
  for (const auto& [incarnation, peer] : begun->second.members) {
    const auto is_it = [life = incarnation](const auto& member) {
      return member.incarnation() == life;
    };
    const wire::View& view = core_->view();
    if (std::none_of(view.worker().begin(), view.worker().end(), is_it) &&
        std::none_of(view.server().begin(), view.server().end(), is_it)) {
      return "a member is gone";
    }
  }
  const wire::View& view = core_->view();
  // Nothing moves meanwhile.
  if (!std::equal(begun->second.owners.begin(), begun->second.owners.end(),
                  view.owner_server().begin(), view.owner_server().end())) {
    return "a shard was lost to a server that had died before";
  }
  // Who joins with a lower rank becomes the chief.
  if (view.cut().by_worker() && view.worker_size() > 0 &&
      begun->second.members.count(view.worker(0).incarnation()) == 0) {
    return "another worker is the chief";
  }
  const Scenario& scenario = context_->scenario;
  const bool faulty =
      !scenario.trainer_stalls.empty() || !scenario.stand_still.empty() ||
      !scenario.shard_stalls.empty() || !scenario.faults.empty();
  if (faulty && machine_->now() - begun->second.at >= scenario.stall_timeout())
    return "its parts did not come";
  return nullptr;
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
    const auto heard = heard_.find(peer);
    const absl::Duration silent = heard == heard_.end()
                                      ? absl::InfiniteDuration()
                                      : machine_->now() - heard->second;
    // A server that has nothing left may go.
    bool drained = false;
    for (const wire::ServerMember& server : last_view_.server()) {
      drained |= server.incarnation() == incarnation && server.draining() &&
                 std::find(last_view_.owner_server().begin(),
                           last_view_.owner_server().end(),
                           server.index()) == last_view_.owner_server().end();
    }
    if (present.count(incarnation) > 0 || drained ||
        gave_up_.count(incarnation) > 0) {
      continue;
    }
    if (heard_.count(peer) == 0 && context_->could_be_heard(peer)) {
      context_->checker.Report(
          Invariant::kOutcome,
          absl::StrCat("view ", view.number(), " dropped ", peer.ToString(),
                       ", which lives and did not find the coordinator in "
                       "server ",
                       host_));
    }
    if (heard_.count(peer) > 0 && silent <= context_->scenario.lease) {
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

void SimCoordinator::Leave() {
  ++life_;
  away_ = context_->scenario.recovers;
  over_ = !away_;
  lost_cuts_.insert(core_->view().cut().number());
}

void SimCoordinator::Crash() {
  if (over_ || away_) return;
  Leave();
  const PeerId self = context_->CoordinatorAt(host_);
  if (!context_->scenario.host_vanishes)
    return context_->network.Detach(self, /*drop_sent=*/false);
  // Nobody is told that a connection has ended.
  context_->network.Attach(self, context_->scenario.ServerNode(host_),
                           [](const PeerId&, const Message&) {});
}

void SimCoordinator::LoseLead() {
  if (over_ || away_) return;
  Leave();
  const PeerId self = context_->CoordinatorAt(host_);
  context_->network.Attach(self, context_->scenario.ServerNode(host_),
                           [](const PeerId&, const Message&) {});
  machine_->Arrive(lifetime_.Guard([this, self, life = life_] {
    // It may be here again.
    if (life == life_ || !(self == context_->CoordinatorAt(host_)))
      context_->network.Detach(self, /*drop_sent=*/false);
  }));
}

void SimCoordinator::Recover(int host, bool has_joined, bool new_process) {
  context_->Log("another coordinator goes on with the job, in server ", host);
  away_ = false;
  const bool moves = std::exchange(host_, host) != host;
  // A process that goes on is where it was.
  const bool at_another = context_->scenario.address_moves && new_process;
  if (at_another) ++context_->server_0_address;
  // Each machine has its own clock.
  if (moves || at_another) {
    heard_.clear();
    context_->misled.clear();
  }
  const absl::Time was_now = machine_->now();  // By the clock of the last one.
  machine_ = &context_->machines[context_->scenario.ServerNode(host)];
  CoordinatorCore::Options options =
      CoordinatorOptions(context_->scenario, host, has_joined);
  options.clock = ClockOf(host);
  // As the command of server 0 that is given again.
  FoundRun found = {
      .kind = state_.empty() ? FoundRun::Kind::kNone : FoundRun::Kind::kLives,
      .place = kFolder};
  const absl::StatusOr<Beginning> how = HowToBegin(
      found, {.new_run = context_->scenario.planted_new_run,
              .from_checkpoint = context_->scenario.resume != nullptr});
  const bool begins = how.ok() && *how == Beginning::kNewRun;
  if (begins && !state_.empty()) options.run += 2;
  const auto before =
      std::exchange(core_, std::make_unique<CoordinatorCore>(options));
  if (begins) {  // Nobody had joined.
    state_.clear();
    RewriteLog();
    core_->Start(machine_->now());
    return Attach();
  }
  if (tamper_log) tamper_log(&log_);
  const absl::StatusOr<CoordinatorState> kept = ReadStateLog("state", log_);
  if (!kept.ok() || *kept != state_) {
    return context_->checker.Report(
        Invariant::kCoordinator,
        absl::StrCat("the log of the coordinator's state does not hold it: ",
                     kept.status().ToString()));
  }
  RewriteLog();
  CoordinatorCore::Effects effects;
  const absl::Status recovered =
      core_->Recover(*kept, machine_->now(), &effects);
  if (!recovered.ok()) {
    return context_->checker.Report(
        Invariant::kCoordinator,
        absl::StrCat("the coordinator cannot go on: ", recovered.ToString()));
  }
  if (!std::exchange(has_unkept_, false)) CheckCounts(*before, was_now);
  Attach();
  Perform(&effects);
}

void SimCoordinator::CheckCounts(const CoordinatorCore& before,
                                 absl::Time was_now) const {
  // But for what members say all the time. It may end the job at once.
  const bool ended = before.view().has_end();
  const auto counts = [&](const CoordinatorCore& core) {
    const run::Summary summary = core.Summary();
    const wire::StatusReply status = core.Status(machine_->now());
    run::Summary of;
    for (const run::MetricRecord& record : status.latest())
      of.add_about(record.ShortDebugString());
    for (const run::MoveRecord& record : status.moved())
      of.add_about(record.ShortDebugString());
    for (const run::ModeRecord& record : status.mode_changed())
      of.add_about(record.ShortDebugString());
    of.set_shards_moved(summary.shards_moved());
    of.set_bytes_moved(summary.bytes_moved());
    of.set_mode_changes(summary.mode_changes());
    of.set_checkpoints(summary.checkpoints());
    *of.mutable_last_checkpoint() = summary.last_checkpoint();
    *of.mutable_best_checkpoint() = summary.best_checkpoint();
    of.set_examples_done(summary.examples_done());
    of.set_examples_given_again(summary.examples_given_again());
    of.set_copies_made(summary.copies_made());
    of.set_shards_taken_over(summary.shards_taken_over());
    *of.mutable_servers_lost() = summary.servers_lost();
    *of.mutable_workers_lost() = summary.workers_lost();
    *of.mutable_traceback() = summary.traceback();
    *of.mutable_program() = summary.program();
    of.set_data(summary.data());
    if (!ended) return of.ShortDebugString();
    of.set_test_accuracy(summary.test_accuracy());
    of.set_model_sha256(summary.model_sha256());
    of.set_stopped(summary.stopped());
    of.set_state(summary.state());
    of.set_reason(summary.reason());
    return of.ShortDebugString();
  };
  const std::string was = counts(before);
  const std::string is = counts(*core_);
  const double gained = core_->Status(machine_->now()).run_seconds() -
                        before.Status(was_now).run_seconds();
  // It is kept in whole microseconds. No two machines' clocks are equally fast,
  // and that of one that is suspended stands still.
  const Scenario& scenario = context_->scenario;
  absl::Duration bound = absl::Microseconds(1);
  if (scenario.takes_over) bound = scenario.lease;
  for (const StandStillFault& fault : scenario.stand_still)
    if (scenario.takes_over && fault.suspend) bound += fault.duration;
  if (!ended && std::abs(gained) > absl::ToDoubleSeconds(bound)) {
    context_->checker.Report(
        Invariant::kCoordinator,
        absl::StrCat("the job has run for ", gained,
                     " s longer since another coordinator has gone on"));
  }
  if (was == is) return;
  context_->checker.Report(Invariant::kCoordinator,
                           absl::StrCat("a coordinator counts ", is,
                                        " where the one before it had ", was));
}

// ---- Server ---------------------------------------------------------------

SimServer::SimServer(SimContext* context, int index, uint64_t token,
                     bool may_host_before_joining)
    : context_(context),
      machine_(&context->machines[context->scenario.ServerNode(index)]),
      index_(index),
      control_peer_{
          .kind = PeerId::Kind::kServer, .index = index, .instance = token},
      core_(ServerOptions(context->scenario, index, token,
                          may_host_before_joining)),
      links_(context, machine_, control_peer_,
             [this](const wire::LinksTried& tried) {
               if (end_.kind != ProcessEnd::Kind::kAlive) return;
               ServerCore::Effects effects;
               core_.OnLinks(tried, machine_->now(), &effects);
               Perform(&effects);
             }),
      alarm_(machine_, [this] {
        if (end_.kind != ProcessEnd::Kind::kAlive) return;
        ServerCore::Effects effects;
        core_.OnTick(machine_->now(), &effects);
        Perform(&effects);
      }) {
  for (int t = 0; t < context_->scenario.threads; ++t) {
    threads_.emplace_back().core = std::make_unique<ShardCore>(
        MakeShardCore(context_->scenario, {.server = index, .thread = t}));
    threads_.back().alarm = std::make_unique<Alarm>(machine_, [this, t] {
      OnThread(t, [this, t] {
        OnShard(t, nullptr, [](ShardCore&, ShardCore::Effects*) {});
      });
    });
    // What was sent to the life before, after its end, is under way to nobody.
    context_->feeds.OnGone(ThreadPeer(t));
    context_->network.Attach(
        ThreadPeer(t), context_->scenario.ServerNode(index),
        [this, t](const PeerId& from, const Message& message) {
          OnThread(t, [this, t, from, message] {
            OnShardMessage(t, from, message);
          });
        });
  }
  context_->network.Attach(control_peer_, context_->scenario.ServerNode(index),
                           [this](const PeerId& from, const Message& message) {
                             if (!(from == coordinator_)) return;  // Closed.
                             context_->OnCoordinatorHeard(control_peer_, from);
                             ServerCore::Effects effects;
                             core_.OnMessage(message, machine_->now(),
                                             &effects);
                             Perform(&effects);
                           });
  LookAt(0);
  ServerCore::Effects effects;
  core_.Start(machine_->now(), &effects);
  Perform(&effects);
}

void SimServer::LookAt(int host) {
  coordinator_ = context_->CoordinatorAt(host);
  context_->network.WatchPeer(control_peer_, coordinator_, [this](bool is_up) {
    core_.OnLink(is_up ? LinkState::kUp : LinkState::kGone, machine_->now());
  });
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

void SimServer::Retire() {
  machine_->After(absl::ZeroDuration(), lifetime_.Guard([this] {
    // Else it would stop the job, which is another matter.
    if (end_.kind != ProcessEnd::Kind::kAlive || !joined() ||
        !core_.HearsCoordinator(machine_->now())) {
      return;
    }
    told_to_retire_ = true;
    context_->Log("server ", index_, "/", incarnation(),
                  " is told that its time is over");
    ServerCore::Effects effects;
    core_.Retire("its time is over", machine_->now(), &effects);
    Perform(&effects);
  }));
}

void SimServer::Stop(ProcessEnd end, bool drop_sent) {
  if (end_.kind != ProcessEnd::Kind::kAlive) return;
  end_ = std::move(end);
  context_->Log("server ", index_, " ends: ", end_.what);
  context_->network.Detach(control_peer_, drop_sent);
  for (int t = 0; t < static_cast<int>(threads_.size()); ++t) {
    context_->network.Detach(ThreadPeer(t), drop_sent);
    context_->feeds.OnGone(ThreadPeer(t));
  }
  context_->checker.OnServerGone(index_);
}

bool SimServer::given_up() const {
  return end_.kind == ProcessEnd::Kind::kGaveUp &&
         end_.code == absl::StatusCode::kAborted;
}

run::ServerStats SimServer::Stats(int t) const {
  run::ServerStats stats = threads_[t].core->Stats();
  if (plant_ == Plant::kMiscount) stats.clear_missed_updates();
  // One that stands still has not done yet what the checker saw come.
  if (threads_[t].waiting.empty())
    context_->checker.OnShardStats({index_, t}, stats);
  *stats.add_thread() = Load(t);
  return stats;
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
  const std::shared_ptr<const View>& view = core_.view();
  if (view == nullptr) return load;
  const uint64_t epoch = static_cast<uint64_t>(
      (context_->queue.now() - absl::UnixEpoch()) / placement.hot_for);
  double utilisation = 0;
  for (int32_t id = 0; id < view->shard_count(); ++id) {
    if (!threads_[t].core->Owns(ShardId{id})) continue;
    const double luck = uniform(static_cast<uint64_t>(id), epoch);
    const double elements =
        static_cast<double>(view->shard(ShardId{id}).region.size());
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

void SimServer::Perform(ServerCore::Effects* effects) {
  if (effects->view != nullptr) links_.End();
  if (effects->try_links.has_value()) links_.Begin(*effects->try_links);
  if (effects->look_at.has_value()) LookAt(static_cast<int>(*effects->look_at));
  for (Message& message : effects->sends) {
    context_->network.Send(control_peer_, coordinator_, std::move(message));
  }
  if (effects->view != nullptr) {
    context_->checker.OnMemberView(control_peer_, effects->view->ToProto());
    // A hop from thread to thread; in the order of the views. A thread that
    // stands still takes the last one when it goes on.
    for (int t = 0; t < static_cast<int>(threads_.size()); ++t) {
      Thread& thread = threads_[t];
      thread.view_arrives = std::max(
          thread.view_arrives,
          machine_->now() + absl::Microseconds(context_->rng.Between(0, 1000)));
      thread.view_arrives = std::max(thread.view_arrives, inner_cut_until_);
      machine_->At(thread.view_arrives,
                   lifetime_.Guard([this, t, view = effects->view] {
                     threads_[t].offered = view;
                     OnThread(t, [this, t] { TakeView(t); });
                   }));
    }
  }
  if (effects->ask_stats) {
    // Behind the view, as in a socket; the thread answers then.
    for (int t = 0; t < static_cast<int>(threads_.size()); ++t) {
      machine_->At(std::max(threads_[t].view_arrives, machine_->now()),
                   lifetime_.Guard(
                       [this, t] { OnThread(t, [this, t] { Report(t); }); }));
    }
  }
  if (effects->end.has_value()) {
    const absl::Status& status = effects->end->status;
    const std::string what(status.message());
    switch (effects->end->kind) {
      case ServerCore::End::Kind::kFinished:
        return Stop(
            {.kind = ProcessEnd::Kind::kJobFinished, .what = "finished"},
            false);
      case ServerCore::End::Kind::kFailed:
        return Stop({.kind = ProcessEnd::Kind::kJobFailed, .what = what},
                    false);
      case ServerCore::End::Kind::kLeft:
        return Stop({.kind = ProcessEnd::Kind::kDrained, .what = "drained"},
                    false);
      case ServerCore::End::Kind::kGaveUp:
        return Stop({.kind = ProcessEnd::Kind::kGaveUp,
                     .what = what,
                     .code = status.code()},
                    false);
    }
  }
  if (end_.kind == ProcessEnd::Kind::kAlive) alarm_.SetAt(core_.NextWakeup());
}

void SimServer::TakeView(int t) {
  const std::shared_ptr<const View> view =
      std::exchange(threads_[t].offered, nullptr);
  if (view != nullptr) OnShardView(t, view);
}

void SimServer::OnShardView(int t, const std::shared_ptr<const View>& view) {
  Thread& thread = threads_[t];
  const std::shared_ptr<const View> before = thread.shown;
  if (plant_ == Plant::kHideLosses && thread.shown != nullptr) {
    wire::View proto = view->ToProto();
    for (const wire::WorkerMember& worker : thread.shown->workers()) {
      if (view->FindWorker(Rank{worker.rank()}) == nullptr)
        PutMember(worker, proto.mutable_worker());
    }
    thread.shown = *View::Create(std::move(proto));
  } else if (plant_ == Plant::kLooseBounds) {
    wire::View proto = view->ToProto();
    for (wire::Phase& phase : *proto.mutable_phase()) {
      sync::Mode& mode = *phase.mutable_mode();
      if (mode.has_dssp()) {
        mode.mutable_dssp()->set_max_staleness(mode.dssp().max_staleness() +
                                               100);
      } else if (mode.has_backup()) {
        mode.mutable_backup()->set_workers(mode.backup().workers() + 1);
      }
    }
    thread.shown = *View::Create(std::move(proto));
  } else if (plant_ == Plant::kBeginLate) {
    wire::View proto = view->ToProto();
    wire::WorkerMember& worker = *proto.mutable_worker()->begin();
    worker.set_begins_at(worker.begins_at() + 1);
    thread.shown = *View::Create(std::move(proto));
  } else {
    thread.shown = view;
  }
  const bool cut =
      plant_ == Plant::kCutTooEarly && before != nullptr &&
      view->proto().cut().number() > before->proto().cut().number();
  OnShard(t, view, [&](ShardCore& core, ShardCore::Effects* effects) {
    const int32_t shards = view->shard_count();
    const int32_t splits = view->proto().split_size();
    int32_t owned = 0;
    for (int32_t id = shards - splits; id < shards; ++id)
      owned += core.Owns(ShardId{id});
    if (cut) thread.at_cut = ShardsOf(t);
    core.OnView(thread.shown, effects);
    thread.view_number = view->number();
    if (plant_ != Plant::kForgetSequence) return;
    for (int32_t id = shards - splits; id < shards; ++id) {
      if (!core.Owns(ShardId{id}) || owned-- > 0) continue;
      Falsify(core, ShardId{id}, [](ShardSnapshot& snapshot) {
        for (Participant& who : snapshot.participants) who.next_seq = 1;
      });
    }
  });
}

std::map<ShardId, Clock> SimServer::TurnBack(ShardCore& core,
                                             const PeerId& from,
                                             const Message& message) const {
  std::map<ShardId, Clock> clocks;
  for (const wire::Push& push : message.header.push_request().push()) {
    if (push.has_advance()) continue;
    const ShardId shard{push.shard()};
    const ShardMachine* const machine = core.MachineOf(shard);
    if (machine == nullptr || push.clock() >= machine->complete_clock())
      continue;
    const Participant* const participant =
        machine->participants().Find(Rank{from.index}, from.instance);
    if (participant == nullptr || participant->next_seq != push.seq()) continue;
    clocks[shard] = machine->complete_clock();
    Falsify(core, shard, [&](ShardSnapshot& snapshot) {
      snapshot.complete_clock = push.clock();
    });
  }
  return clocks;
}

void SimServer::ForgetInstallation(ShardCore& core, const PeerId& from,
                                   const Message& message) {
  for (const wire::Push& push : message.header.push_request().push()) {
    if (!push.has_installation()) continue;
    const ShardId shard{push.shard()};
    const ShardMachine* const machine = core.MachineOf(shard);
    if (machine == nullptr || machine->complete_clock() != push.clock())
      continue;
    const Participant* const participant =
        machine->participants().Find(Rank{from.index}, from.instance);
    if (participant == nullptr || participant->clock != push.clock()) continue;
    Falsify(core, shard, [&](ShardSnapshot& snapshot) {
      snapshot.complete_clock = push.clock() - 1;
      for (Participant& who : snapshot.participants) {
        if (who.rank == Rank{from.index} && who.next_seq > push.seq())
          who.next_seq = push.seq();
      }
    });
  }
}

void SimServer::ForgetInCopies(ShardCore& core) const {
  const std::shared_ptr<const View>& view = core_.view();
  for (int32_t id = 0; view != nullptr && id < view->shard_count(); ++id) {
    const ShardMachine* const copy = core.CopyOf(ShardId{id});
    if (copy == nullptr || copy->position().index < 10) continue;
    Falsify(copy, [](ShardSnapshot& snapshot) {
      for (Participant& who : snapshot.participants) who.next_seq = 1;
    });
  }
}

void SimServer::OnShardMessage(int t, const PeerId& from,
                               const Message& message) {
  OnShard(t, nullptr, [&](ShardCore& core, ShardCore::Effects* effects) {
    std::unique_ptr<ShardCore> before;
    if (plant_ == Plant::kServeOn && message.header.has_hand_over_reply())
      before = std::make_unique<ShardCore>(core);
    if (plant_ == Plant::kInstallAgain) ForgetInstallation(core, from, message);
    std::map<ShardId, Clock> clocks;
    if (plant_ == Plant::kTakeLate) clocks = TurnBack(core, from, message);
    context_->feeds.OnRead(ThreadPeer(t), from, message);
    core.OnMessage(from, message, effects);
    for (const auto& [shard, clock] : clocks) {
      if (!core.Owns(shard)) continue;
      Falsify(core, shard, [&, now = clock](ShardSnapshot& snapshot) {
        snapshot.complete_clock = now;
      });
    }
    const bool gave = std::any_of(
        effects->sends.begin(), effects->sends.end(), [](const Outgoing& out) {
          const auto& records = out.message.header.hand_over().record();
          return records.size() > 0 && records.rbegin()->has_go();
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
  thread.core->OnTick(machine_->now(), &effects);
  event(*thread.core, &effects);
  if (plant_ == Plant::kForgetInCopies) ForgetInCopies(*thread.core);
  if (effects.cut.has_value() && plant_ == Plant::kCutTooLate)
    effects.cut->shards = ShardsOf(t);
  if (effects.cut.has_value() && plant_ == Plant::kCutTooEarly &&
      effects.cut->shards.size() == thread.at_cut.size())
    effects.cut->shards = thread.at_cut;
  context_->checker.OnShardEvent({index_, t}, view, *thread.core, effects);
  Send(t, &effects);
  if (!effects.failure.ok()) {
    context_->checker.Report(Invariant::kCheckpoint,
                             absl::StrCat("server ", index_, " thread ", t,
                                          ": ", effects.failure.message()));
  }
  if (effects.cut.has_value()) WritePart(t, *std::move(effects.cut));
  if (effects.report) Report(t);
  thread.alarm->SetAt(thread.core->NextWakeup());
}

// A hop from the shard thread to the control thread, which tells at once.
void SimServer::Report(int t) {
  if (end_.kind != ProcessEnd::Kind::kAlive || threads_[t].report_pending)
    return;
  threads_[t].report_pending = true;
  const absl::Time soon =
      machine_->now() + absl::Microseconds(context_->rng.Between(0, 1000));
  machine_->At(std::max(soon, inner_cut_until_), lifetime_.Guard([this, t] {
    threads_[t].report_pending = false;
    if (end_.kind != ProcessEnd::Kind::kAlive) return;
    ServerCore::Effects effects;
    core_.OnStats(t, threads_[t].view_number, Stats(t), machine_->now(),
                  &effects);
    Perform(&effects);
  }));
}

void SimServer::Send(int t, ShardCore::Effects* effects) {
  context_->checker.OnShardSends({index_, t}, effects->sends);
  for (Outgoing& out : effects->sends) {
    context_->network.Send(ThreadPeer(t), out.to, std::move(out.message));
  }
  FlushSoon(t);
}

std::vector<ShardState> SimServer::ShardsOf(int t) const {
  const ShardCore& core = *threads_[t].core;
  const View& view = *threads_[t].shown;
  std::vector<ShardState> shards;
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    const ShardMachine* const machine = core.MachineOf(ShardId{id});
    if (machine == nullptr) continue;
    const ShardRange& range = machine->shard().range();
    shards.push_back({.table = view.table(range.table).name(),
                      .region = range.region,
                      .version = machine->shard().version(),
                      .values = machine->shard().values(),
                      .slots = machine->shard().slots()});
  }
  return shards;
}

void SimServer::WritePart(int t, ShardCore::CutState state) {
  context_->Log("thread ", t, " of server ", index_, " has ",
                state.shards.size(), " shards of cut ", state.number);
  if (plant_ == Plant::kOldPart && state.number > 1 && !state.shards.empty()) {
    // Counted without having been written.
    checkpoint::Part part;
    part.set_file("server.safetensors");
    part.set_bytes(1);
    part.set_shards(static_cast<int32_t>(state.shards.size()));
    return Tell(t, state.number, part, "");
  }
  machine_->After(context_->WriteTime(), lifetime_.Guard([this, t, state] {
    if (end_.kind == ProcessEnd::Kind::kAlive) OnWritten(t, state);
  }));
}

void SimServer::OnWritten(int t, const ShardCore::CutState& state) {
  std::string error = state.error;
  checkpoint::Part part;
  if (error.empty() && !context_->CanWrite(DiskFault::File::kPart))
    error = "the disk is full";
  if (error.empty()) {
    ShardCore::CutState written = state;
    if (plant_ == Plant::kWriteLater) {
      const std::vector<ShardState> later = ShardsOf(t);
      if (later.size() == written.shards.size()) written.shards = later;
    }
    context_->checker.OnPartWritten({index_, t}, written);
    if (plant_ == Plant::kNothingWaits) {
      for (ShardState& shard : written.shards) LetNothingWait(&shard);
    }
    part = context_->folder.Write(
        state.number,
        absl::StrCat("server-", index_, "-thread-", t, ".safetensors"),
        written.shards);
  } else {
    context_->failed_cuts.insert(state.number);
  }
  Tell(t, state.number, part, error);
}

void SimServer::Tell(int t, int32_t cut, const checkpoint::Part& part,
                     const std::string& error) {
  wire::CutPart said;
  said.set_cut(cut);
  said.set_thread(t);
  if (error.empty()) {
    *said.mutable_part() = part;
  } else {
    said.set_error(error);
  }
  // A hop from thread to thread.
  machine_->After(context_->WriteHop(), lifetime_.Guard([this, said] {
    if (end_.kind != ProcessEnd::Kind::kAlive) return;
    ServerCore::Effects effects;
    core_.OnCutPart(said, machine_->now(), &effects);
    Perform(&effects);
  }));
}

// A real thread takes what has arrived meanwhile into the same batch.
void SimServer::FlushSoon(int t) {
  if (threads_[t].flush_pending) return;
  threads_[t].flush_pending = true;
  machine_->After(
      absl::Microseconds(context_->rng.Between(0, 500)),
      lifetime_.Guard([this, t] { OnThread(t, [this, t] { Flush(t); }); }));
}

void SimServer::Flush(int t) {
  threads_[t].flush_pending = false;
  if (end_.kind != ProcessEnd::Kind::kAlive) return;
  ShardCore::Effects effects;
  threads_[t].core->Flush(&effects);
  context_->checker.OnShardFlush({index_, t}, *threads_[t].core);
  context_->checker.OnShardSends({index_, t}, effects.sends);
  for (Outgoing& out : effects.sends) {
    context_->network.Send(ThreadPeer(t), out.to, std::move(out.message));
  }
  threads_[t].alarm->SetAt(threads_[t].core->NextWakeup());
}

void SimServer::OnThread(int t, std::function<void()> run) {
  Thread& thread = threads_[t];
  if (thread.stalled_until <= machine_->now() && thread.waiting.empty()) {
    return run();
  }
  thread.waiting.push_back(std::move(run));
}

void SimServer::Stall(int t, absl::Duration duration) {
  Thread& thread = threads_[t];
  thread.stalled_until =
      std::max(thread.stalled_until, machine_->now() + duration);
  machine_->At(thread.stalled_until, lifetime_.Guard([this, t] {
    if (threads_[t].stalled_until > machine_->now()) return;
    for (auto& run : std::exchange(threads_[t].waiting, {})) run();
  }));
}

void SimServer::CutShardsFromControl(absl::Duration duration) {
  inner_cut_until_ = std::max(inner_cut_until_, machine_->now() + duration);
}

std::string SimServer::StatusLine() const {
  int64_t parked = 0;
  for (const Thread& thread : threads_)
    parked += thread.core->Stats().pulls_parked();
  return absl::StrCat(
      "server ", index_, ": ",
      end_.kind == ProcessEnd::Kind::kAlive ? "alive" : end_.what, ", view ",
      core_.view() == nullptr ? 0 : core_.view()->number(), ", ", parked,
      " pulls parked");
}

}  // namespace slackline::sim
