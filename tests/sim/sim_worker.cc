#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "common/view/shard_map.h"
#include "tests/sim/sim_server.h"

namespace slackline::sim {
namespace {

MemberCore::Options WorkerOptions(const Scenario& scenario, Rank rank,
                                  uint64_t token) {
  MemberCore::Options options = MemberOptions(scenario);
  options.join.set_role(wire::JoinRequest::WORKER);
  options.join.set_index(static_cast<int32_t>(rank));
  options.join.set_token(token);
  options.join.set_steps_total(scenario.steps);
  options.join.set_steps_per_epoch(scenario.steps);
  for (const wire::Table& table : scenario.Tables())
    *options.join.add_table() = table;
  return options;
}

}  // namespace

SimWorker::SimWorker(SimContext* context, Rank rank, uint64_t token)
    : context_(context),
      rank_(rank),
      control_peer_{.kind = PeerId::Kind::kWorker,
                    .index = static_cast<int32_t>(rank),
                    .instance = token},
      member_(WorkerOptions(context->scenario, rank, token)),
      rng_(Rng(token).Fork("trainer")),
      alarm_(&context->queue, [this] { OnTick(); }) {
  context_->network.Attach(control_peer_,
                           context_->scenario.WorkerNode(control_peer_.index),
                           [this](const PeerId&, const Message& message) {
                             MemberCore::Effects effects;
                             member_.OnMessage(message, now(), &effects);
                             Perform(&effects);
                           });
  MemberCore::Effects effects;
  member_.Start(now(), &effects);
  Perform(&effects);
}

SimWorker::~SimWorker() {
  if (alive()) Crash(/*drop_sent=*/false);
}

void SimWorker::Crash(bool drop_sent) {
  Stop({.kind = ProcessEnd::Kind::kCrashed, .what = "crashed"}, drop_sent);
}

void SimWorker::Stop(ProcessEnd end, bool drop_sent) {
  if (!alive()) return;
  end_ = std::move(end);
  context_->Log("worker ", control_peer_.index, "/", member_.incarnation(),
                " ends: ", end_.what);
  context_->network.Detach(control_peer_, drop_sent);
  if (client_ != nullptr) context_->network.Detach(data_peer_, drop_sent);
  DropGroup(/*silent=*/drop_sent);
}

void SimWorker::Counts::Add(const Counts& other) {
  steps += other.steps;
  pulls_ahead += other.pulls_ahead;
  uneven_starts += other.uneven_starts;
  late_starts += other.late_starts;
  final_pulls += other.final_pulls;
  retries += other.retries;
  reduced += other.reduced;
  connects += other.connects;
  regroups += other.regroups;
  helped += other.helped;
  group_joins += other.group_joins;
  states_taken += other.states_taken;
  states_given += other.states_given;
  shares_again += other.shares_again;
  skips += other.skips;
  uneven_skips += other.uneven_skips;
  skipped += other.skipped;
}

SimWorker::Counts SimWorker::counts() const {
  Counts counts = counts_;
  if (client_ != nullptr)
    counts.retries = static_cast<int64_t>(client_->retries());
  return counts;
}

void SimWorker::OnTick() {
  if (!alive()) return;
  run::WorkerStats stats;
  stats.set_clock(std::max<Clock>(clock_, 0));
  member_.SetStats(stats);
  MemberCore::Effects member_effects;
  if (member_.NextWakeup() <= now()) member_.OnTick(now(), &member_effects);
  Perform(&member_effects);
  if (!alive() || client_ == nullptr) return;
  ClientCore::Effects client_effects;
  if (client_->NextWakeup() <= now()) client_->OnTick(now(), &client_effects);
  Perform(&client_effects);
}

void SimWorker::Perform(MemberCore::Effects* effects) {
  for (Message& message : effects->sends) {
    context_->network.Send(control_peer_, kCoordinatorPeer, std::move(message));
  }
  if (!alive()) return;
  if (effects->fenced) {
    return Stop({.kind = ProcessEnd::Kind::kFenced,
                 .what = "fenced by the coordinator"},
                false);
  }
  if (!effects->failure.ok()) {
    return Stop({.kind = ProcessEnd::Kind::kGaveUp,
                 .what = std::string(effects->failure.message())},
                false);
  }
  if (effects->view != nullptr) OnView(effects->view);
  if (alive()) alarm_.SetAt(member_.NextWakeup());
}

void SimWorker::Perform(ClientCore::Effects* effects) {
  for (ClientCore::Send& send : effects->sends) {
    context_->checker.OnSent(rank_, member_.incarnation(), send.message);
    context_->network.Send(data_peer_,
                           {.kind = PeerId::Kind::kShardThread,
                            .index = send.to.server,
                            .instance = static_cast<uint64_t>(send.to.thread)},
                           std::move(send.message));
  }
  if (!alive()) return;
  if (effects->fenced) {
    return Stop(
        {.kind = ProcessEnd::Kind::kFenced, .what = "fenced by a server"},
        false);
  }
  if (!effects->failure.ok()) {
    // No fault of the network gives a server a reason to refuse anything.
    context_->checker.Report(
        Invariant::kOutcome,
        absl::StrCat("worker ", control_peer_.index, ": ",
                     std::string(effects->failure.message())));
    return Stop({.kind = ProcessEnd::Kind::kGaveUp,
                 .what = std::string(effects->failure.message())},
                false);
  }
  for (const ClientCore::PullResult& result : effects->pulled) OnPulled(result);
  if (client_->unacknowledged_bytes() == 0) {
    if (state_ == State::kDraining) Leave();
    if (state_ == State::kPushed) TakeState();
  }
  if (alive()) alarm_.SetAt(client_->NextWakeup());
}

void SimWorker::OnView(const std::shared_ptr<const View>& view) {
  context_->checker.OnMemberView(control_peer_, view->proto());
  if (view->proto().state() !=
      wire::RUNNING) {  // The coordinator waits for this.
    MemberCore::Effects last;
    member_.SendHeartbeat(now(), &last);
    for (Message& message : last.sends) {
      context_->network.Send(control_peer_, kCoordinatorPeer,
                             std::move(message));
    }
  }
  switch (view->proto().state()) {
    case wire::FINISHED:
      return Stop({.kind = ProcessEnd::Kind::kJobFinished,
                   .what = view->proto().reason()},
                  false);
    case wire::FAILED:
      return Stop({.kind = ProcessEnd::Kind::kJobFailed,
                   .what = view->proto().reason()},
                  false);
    default:
      break;
  }
  if (client_ == nullptr) return StartClient();
  ClientCore::Effects effects;
  client_->OnView(view, now(), &effects);
  Perform(&effects);
  if (!alive()) return;
  if (group_ != nullptr && view->proto().group() != group_number_) AbortGroup();
  switch (state_) {
    case State::kPulling:
    case State::kCatchingUp:
    case State::kReducing:
      return Notify(follower_->Promise(*view));
    case State::kWaiting:
      if (view->number() > waited_view_) Decide();
      break;
    case State::kGiving:  // Who was to install the rest may have died.
      GiveState(*view);
      break;
    default:
      BeChief();
  }
}

void SimWorker::StartClient() {
  data_peer_ = {.kind = PeerId::Kind::kWorker,
                .index = control_peer_.index,
                .instance = member_.incarnation()};
  context_->network.Attach(
      data_peer_, context_->scenario.WorkerNode(control_peer_.index),
      [this](const PeerId& from, const Message& message) {
        context_->checker.OnWorkerReceived(rank_, member_.incarnation(),
                                           message);
        ClientCore::Effects effects;
        client_->OnMessage({from.index, static_cast<int32_t>(from.instance)},
                           message, now(), &effects);
        Perform(&effects);
      });
  ClientCore::Options options;
  options.rank = rank_;
  options.incarnation = member_.incarnation();
  options.window_bytes = context_->scenario.window_bytes;
  options.message_bytes = context_->scenario.message_bytes;
  options.retry_initial = context_->scenario.retry_initial;
  options.retry_max = context_->scenario.retry_max;
  options.slot_count = context_->scenario.slot_count();
  client_ = std::make_unique<ClientCore>(options, member_.view());
  const wire::WorkerMember* const self = member_.view()->FindWorker(rank_);
  const bool founder = self == nullptr || self->founder();
  const bool by_all_reduce = founder
                                 ? PhaseAt(view(), 0).mode() == wire::ALLREDUCE
                                 : JoinsByAllReduce(*member_.view());
  follower_.emplace(
      PhaseFollower::Options{.rank = rank_,
                             .steps_total = context_->scenario.steps},
      by_all_reduce);
  if (by_all_reduce) {
    replica_ = SimReplica::Initial(context_->scenario, member_.view());
    clock_ = founder ? 0 : -1;
    counts_.group_joins += !founder;
    if (founder) {
      context_->checker.OnInitial(rank_, member_.incarnation(), *replica_);
      context_->checker.OnStart(rank_, member_.incarnation(), 0);
    }
    return Decide();
  }
  state_ = State::kJoinPull;
  ClientCore::Effects effects;
  pull_id_ = client_->JoinPull(now(), &effects);
  Perform(&effects);
}

void SimWorker::OnPulled(const ClientCore::PullResult& result) {
  SL_CHECK(result.pull_id == pull_id_,
           "an answer to a pull that was not asked for");
  context_->checker.OnPulled(rank_, member_.incarnation(), result);
  pull_id_ = 0;
  ClientCore::Effects effects;
  switch (state_) {
    case State::kJoinPull: {
      clock_ = client_->StartAt(result, now(), &effects);
      context_->checker.OnStart(rank_, member_.incarnation(), clock_);
      counts_.late_starts += clock_ > 0;
      bool even = true;
      for (const ClientCore::ShardValue& value : result.shards)
        even &= value.shard_clock == clock_;
      counts_.uneven_starts += !even;
      // What lagging shards answered is older than the start clock allows.
      const bool usable = clock_ == 0 || !context_->scenario.modes.changes;
      if (usable && (even || !context_->scenario.even_pull)) {
        parameters_ = result;
      }
      Perform(&effects);
      return Decide();
    }
    case State::kTaking:
      replica_ = SimReplica::Of(result);
      ++counts_.states_taken;
      context_->checker.OnTookState(rank_, member_.incarnation(), clock_,
                                    *replica_);
      model_hash_ = replica_->Hash(*result.view);
      follower_->TookState();
      return Decide();
    case State::kGiving:
      parameters_ = result;
      replica_.reset();
      follower_->GaveState();
      return Decide();
    case State::kFinalPull:
      context_->checker.OnFinalPull(result);
      return Report();
    case State::kPulling:
      parameters_ = result;
      return StepOverServers();
    default:
      // It ran ahead: this step's gradients come from what it began with.
      parameters_ = result;
  }
}

// ---- What next ------------------------------------------------------------

void SimWorker::Decide() {
  if (!alive() || view().state() != wire::RUNNING) return;
  const std::shared_ptr<const View> view = member_.view();
  PhaseFollower::Decision decision = follower_->Next(*view, clock_);
  if (plant_ == Plant::kIgnoreFence && decision.what == Do::kWait &&
      absl::StartsWith(decision.waiting_for, "the clock from which")) {
    decision.what = follower_->by_all_reduce() ? Do::kStepByAllReduce
                                               : Do::kStepOverServers;
  }
  Notify(std::move(decision.calls));
  if (!alive()) return;
  const bool steps = decision.what == Do::kStepOverServers ||
                     decision.what == Do::kStepByAllReduce;
  if (steps) model_hash_ = 0;
  state_ = State::kDeciding;
  if (steps && context_->scenario.modes.changes && Lingers()) {
    context_->queue.After(absl::Milliseconds(20),
                          lifetime_.Guard([this] { Decide(); }));
    return;
  }
  // The trainer and the client are threads: views come in between.
  if (!context_->scenario.modes.changes || !rng_.Chance(0.3)) {
    return Act(view, decision.what);
  }
  context_->queue.After(
      absl::Microseconds(rng_.Between(0, 2000)),
      lifetime_.Guard([this, view, what = decision.what] { Act(view, what); }));
}

void SimWorker::Act(const std::shared_ptr<const View>& view, Do what) {
  if (!alive()) return;
  switch (what) {
    case Do::kStepOverServers:
      return StepOverServers();
    case Do::kStepByAllReduce:
      return StartReduce();
    case Do::kWait:
      state_ = State::kWaiting;
      waited_view_ = view->number();
      if (member_.view()->number() > waited_view_) Decide();
      return;
    case Do::kTakeState:
      parameters_.reset();
      state_ = State::kPushed;
      if (client_->unacknowledged_bytes() == 0) TakeState();
      return;
    case Do::kConnect:
      return Connect(*view);
    case Do::kGiveState:
      DropGroup();
      ++counts_.states_given;
      state_ = State::kGiving;
      model_hash_ = replica_->Hash(*member_.view());
      return GiveState(*member_.view());
    case Do::kFinish:
      if (follower_->by_all_reduce()) {
        DropGroup();
        return Leave();
      }
      state_ = State::kDraining;
      if (client_->unacknowledged_bytes() == 0) Leave();
      return;
  }
}

void SimWorker::Notify(std::vector<wire::Call> calls) {
  for (wire::Call& call : calls) {
    if (call.has_entered()) call.mutable_entered()->set_model_hash(model_hash_);
    MemberCore::Effects effects;
    member_.Call(std::move(call), Payload(), now(), &effects);
    Perform(&effects);
  }
}

bool SimWorker::Lingers() const {
  return clock_ + 1 == context_->scenario.steps && !context_->linger_over;
}

absl::Duration SimWorker::ComputeTime() {
  return context_->scenario.compute[control_peer_.index] *
         (0.8 + 0.4 * context_->rng.Uniform());
}

void SimWorker::At(PhaseStep step) {
  if (context_->on_phase_step) context_->on_phase_step(step, rank_);
}

// ---- Over servers ---------------------------------------------------------

bool SimWorker::SkipToTheOthers() {
  if (skipped_ || plant_ == Plant::kNeverSkip ||
      PhaseAt(view(), clock_).mode() != wire::BACKUP) {
    return false;
  }
  const auto [smallest, largest] = parameters_->ShardClocks();
  if (largest <= clock_) return false;
  ++counts_.skips;
  counts_.uneven_skips += smallest < largest;
  counts_.skipped += largest - clock_;
  ClientCore::Effects effects;
  client_->SkipTo(largest, now(), &effects);
  if (smallest < largest) parameters_.reset();
  clock_ = largest;
  skipped_ = true;
  Perform(&effects);
  return true;
}

void SimWorker::StepOverServers() {
  if (parameters_.has_value()) {
    if (SkipToTheOthers()) return Decide();
    versions_.clear();
    for (const ClientCore::ShardValue& value : parameters_->shards)
      versions_.push_back(value.version);
    parameters_.reset();
    return StartStep();
  }
  state_ = State::kPulling;
  if (pull_id_ != 0) return;  // The pull that runs ahead is still on its way.
  ClientCore::Effects effects;
  pull_id_ = client_->Pull(clock_, clock_, now(), &effects);
  Perform(&effects);
}

void SimWorker::StartStep() {
  if (!alive()) return;
  const Scenario& scenario = context_->scenario;
  state_ = State::kComputing;
  if (!scenario.modes.changes && Lingers()) {
    context_->queue.After(absl::Milliseconds(20),
                          lifetime_.Guard([this] { StartStep(); }));
    return;
  }
  context_->checker.OnStepBegun(rank_, member_.incarnation(), clock_,
                                /*by_all_reduce=*/false);
  const Clock next = clock_ + 1;
  if (scenario.pull_ahead && next < scenario.steps) {
    const wire::Phase& phase = PhaseAt(view(), next);
    PhaseFollower::Decision decision = follower_->Next(*member_.view(), next);
    Notify(std::move(decision.calls));
    if (!alive()) return;
    if (decision.what == Do::kStepOverServers &&
        (phase.mode() == wire::ASP || phase.staleness() >= 1)) {
      ++counts_.pulls_ahead;
      ClientCore::Effects effects;
      pull_id_ = client_->Pull(next, clock_, now(), &effects);
      Perform(&effects);
      if (!alive()) return;
    }
  }
  // Backward: the last table's gradient is complete first.
  const int tables = static_cast<int>(scenario.table_elements.size());
  const absl::Duration compute = ComputeTime();
  for (int table = tables - 1; table >= 0; --table) {
    const double part = static_cast<double>(tables - table) / tables;
    context_->queue.After(compute * (0.3 + 0.7 * part),
                          lifetime_.Guard([this, table] { PushTable(table); }));
  }
}

void SimWorker::PushTable(int table) {
  if (!alive()) return;
  const int64_t elements = context_->scenario.table_elements[table];
  const std::vector<float> gradient = context_->scenario.Gradient(
      rank_, member_.incarnation(), clock_, TableId{table}, 0, elements);
  ClientCore::Effects effects;
  const absl::Status pushed = client_->Push(
      clock_, TableId{table},
      Payload::Copy(gradient.data(), gradient.size() * sizeof(float)),
      versions_, now(), &effects);
  SL_CHECK(pushed.ok(), pushed.message());
  Perform(&effects);
  if (!alive() || table != 0) return;
  ++clock_;
  ++counts_.steps;
  skipped_ = false;
  Decide();
}

// ---- By all-reduce --------------------------------------------------------

void SimWorker::TakeState() {
  state_ = State::kTaking;
  ClientCore::Effects effects;
  pull_id_ = client_->PullState(clock_, now(), &effects);
  Perform(&effects);
}

SimGroup::Share SimWorker::ShareOf() const {
  return {.rank = rank_,
          .incarnation = member_.incarnation(),
          .clock = clock_,
          .state = nullptr,
          .gradients = {}};
}

void SimWorker::Connect(const View& view) {
  DropGroup();
  group_number_ = view.proto().group();
  group_ = context_->groups.Of(view);
  group_aborted_ = false;
  state_ = State::kConnecting;
  if (group_->HasLeft(rank_)) {
    // The addresses of the first time are in the coordinator's store for good.
    context_->checker.Report(
        Invariant::kReplica,
        absl::StrCat("worker ", control_peer_.index, " connects to group ",
                     group_number_, " a second time"));
    group_ = nullptr;
    return;
  }
  At(PhaseStep::kConnecting);
  group_->Begin(rank_, ShareOf(),
                lifetime_.Guard([this, number = group_number_](
                                    const std::vector<SimGroup::Share>* all) {
                  OnConnected(number, all != nullptr);
                }));
  // The view may be an old one already.
  if (member_.view()->proto().group() != group_number_) AbortGroup();
}

void SimWorker::OnConnected(uint64_t number, bool connected) {
  constexpr int kFailedConnectsMax = 5;
  if (!alive()) return;
  if (!connected) {
    if (view().group() != number) {
      DropGroup();
      return Decide();  // A newer view says whom to connect to.
    }
    if (++failed_connects_ == kFailedConnectsMax) {
      return Fail(absl::StrCat("worker ", control_peer_.index,
                               " cannot connect to the others"));
    }
    return LoseConnection();
  }
  follower_->Connected(number);
  At(PhaseStep::kConnected);
  state_ = State::kCatchingUp;
  if (view().group() != number) AbortGroup();
  SimGroup::Share share = ShareOf();
  share.state = std::make_shared<const SimReplica>(*replica_);
  context_->checker.OnShared(rank_, member_.incarnation(), group_number_);
  group_->Begin(
      rank_, std::move(share),
      lifetime_.Guard([this](const std::vector<SimGroup::Share>* shares) {
        OnCaughtUp(shares);
      }));
}

void SimWorker::OnCaughtUp(const std::vector<SimGroup::Share>* shares) {
  if (!alive()) return;
  if (shares == nullptr) return LoseConnection();
  context_->checker.OnExchange(group_number_, *shares);
  const auto ahead = std::max_element(
      shares->begin(), shares->end(),
      [](const auto& a, const auto& b) { return a.clock < b.clock; });
  if (ahead->clock < 0)
    return Fail("no worker of the group knows the job's parameters");
  if (clock_ < ahead->clock && plant_ != Plant::kTakeNoHelp) {
    ++counts_.helped;
    replica_ = *ahead->state;
    if (clock_ < 0) {
      context_->checker.OnStart(rank_, member_.incarnation(), ahead->clock);
    }
  }
  clock_ = ahead->clock;
  failed_connects_ = 0;
  ++counts_.connects;
  At(PhaseStep::kCaughtUp);
  context_->Log("worker ", control_peer_.index, "/", member_.incarnation(),
                " is at clock ", clock_, " of group ", group_number_);
  context_->checker.OnCaughtUp(rank_, member_.incarnation(), group_number_,
                               clock_, *replica_);
  Decide();
}

void SimWorker::StartReduce() {
  if (!alive()) return;
  state_ = State::kReducing;
  context_->checker.OnStepBegun(rank_, member_.incarnation(), clock_,
                                /*by_all_reduce=*/true);
  context_->queue.After(ComputeTime(), lifetime_.Guard([this] { Reduce(); }));
}

void SimWorker::Reduce() {
  if (!alive()) return;
  At(PhaseStep::kReducing);
  if (!alive()) return;
  if (group_aborted_) return OnReduced(nullptr);
  const Scenario& scenario = context_->scenario;
  SimGroup::Share share = ShareOf();
  for (size_t t = 0; t < scenario.table_elements.size(); ++t) {
    share.gradients.push_back(scenario.Gradient(
        rank_, member_.incarnation(), clock_, TableId{static_cast<int32_t>(t)},
        0, scenario.table_elements[t]));
  }
  group_->Begin(
      rank_, std::move(share),
      lifetime_.Guard([this](const std::vector<SimGroup::Share>* shares) {
        OnReduced(shares);
      }));
}

void SimWorker::OnReduced(const std::vector<SimGroup::Share>* shares) {
  if (!alive()) return;
  const Scenario& scenario = context_->scenario;
  if (shares == nullptr &&
      (plant_ == Plant::kKeepFailedStep || plant_ == Plant::kStepAlone)) {
    std::vector<SimReplica::Tensor> own;
    for (size_t t = 0; t < scenario.table_elements.size(); ++t) {
      own.push_back(scenario.Gradient(rank_, member_.incarnation(), clock_,
                                      TableId{static_cast<int32_t>(t)}, 0,
                                      scenario.table_elements[t]));
    }
    replica_->Apply(scenario, own, 1);
    if (plant_ == Plant::kStepAlone) ++clock_;
  }
  if (shares == nullptr) return LoseConnection();
  std::vector<SimReplica::Tensor> sum = shares->front().gradients;
  for (size_t r = 1; r < shares->size(); ++r) {
    for (size_t t = 0; t < sum.size(); ++t) {
      for (size_t e = 0; e < sum[t].size(); ++e)
        sum[t][e] += (*shares)[r].gradients[t][e];
    }
  }
  replica_->Apply(scenario, sum, static_cast<int>(shares->size()));
  ++clock_;
  ++counts_.steps;
  ++counts_.reduced;
  At(PhaseStep::kReduced);
  context_->Log("worker ", control_peer_.index, "/", member_.incarnation(),
                " is at clock ", clock_, " by all-reduce");
  context_->checker.OnReduced(rank_, member_.incarnation(), group_number_,
                              *shares, clock_, *replica_);
  Decide();
}

void SimWorker::LoseConnection() {
  context_->Log("worker ", control_peer_.index, "/", member_.incarnation(),
                " at clock ", clock_, " has lost group ", group_number_);
  const uint64_t lost =
      follower_->group() == 0 ? view().group() : follower_->group();
  DropGroup();
  ++counts_.regroups;
  std::vector<wire::Call> calls;
  calls.push_back(follower_->ConnectionLost(lost));
  Notify(std::move(calls));
  Decide();
}

void SimWorker::AbortGroup() {
  group_aborted_ = true;
  context_->queue.After(absl::Microseconds(rng_.Between(0, 1000)),
                        lifetime_.Guard([this, number = group_number_] {
                          if (!alive() || group_ == nullptr ||
                              group_number_ != number || !group_->Busy(rank_)) {
                            return;
                          }
                          if (state_ == State::kConnecting)
                            return OnConnected(number, false);
                          if (state_ == State::kCatchingUp)
                            return OnCaughtUp(nullptr);
                          if (state_ == State::kReducing)
                            return OnReduced(nullptr);
                        }));
}

void SimWorker::DropGroup(bool silent) {
  if (group_ != nullptr) group_->Leave(rank_, silent);
  group_ = nullptr;
}

void SimWorker::GiveState(const View& view) {
  std::vector<ClientCore::InstalledShard> share;
  for (const ShardId shard : follower_->Share(view))
    share.push_back({.shard = shard, .state = replica_->Give(view, shard)});
  counts_.shares_again += pull_id_ != 0 && !share.empty();
  ClientCore::Effects effects;
  client_->Install(clock_, std::move(share), now(), &effects);
  Perform(&effects);
  if (!alive() || pull_id_ != 0) return;
  ClientCore::Effects asking;
  pull_id_ = client_->Pull(clock_, clock_, now(), &asking);
  Perform(&asking);
}

// ---- The end --------------------------------------------------------------

void SimWorker::Leave() {
  state_ = State::kDone;
  wire::Call leave;
  leave.mutable_leave();
  MemberCore::Effects effects;
  member_.Call(leave, Payload(), now(), &effects);
  Perform(&effects);
  BeChief();
}

void SimWorker::Report() {
  state_ = State::kReported;
  wire::Call leave;
  leave.mutable_leave()->mutable_result()->set_steps(clock_);
  MemberCore::Effects effects;
  member_.Call(leave, Payload(), now(), &effects);
  Perform(&effects);
}

void SimWorker::Fail(const std::string& why) {
  wire::Call leave;
  leave.mutable_leave()->set_failure(why);
  MemberCore::Effects effects;
  member_.Call(leave, Payload(), now(), &effects);
  Perform(&effects);
  Stop({.kind = ProcessEnd::Kind::kGaveUp, .what = why}, false);
}

void SimWorker::BeChief() {
  if (!alive() || state_ != State::kDone) return;
  const View& view = *member_.view();
  const wire::WorkerMember* const chief = ChiefOf(view);
  if (chief == nullptr || chief->incarnation() != member_.incarnation()) return;
  for (const wire::WorkerMember& worker : view.proto().worker()) {
    if (!worker.done()) return;
  }
  ++counts_.final_pulls;
  if (follower_->by_all_reduce()) {
    context_->checker.OnFinalReplica(rank_, member_.incarnation(), *replica_);
    return Report();
  }
  state_ = State::kFinalPull;
  ClientCore::Effects effects;
  pull_id_ = client_->Pull(clock_, clock_, now(), &effects);
  Perform(&effects);
}

std::string SimWorker::StatusLine() const {
  constexpr const char* kStates[] = {
      "joining",    "join pull",   "deciding",   "pulling",
      "computing",  "waiting",     "pushed",     "taking the state",
      "connecting", "catching up", "reducing",   "giving the state",
      "draining",   "done",        "final pull", "reported"};
  return absl::StrCat(
      "worker ", control_peer_.index, "/", member_.incarnation(), ": ",
      alive() ? kStates[static_cast<int>(state_)] : end_.what, " at clock ",
      clock_, ", view ",
      member_.view() == nullptr ? 0 : member_.view()->number(),
      client_ == nullptr
          ? ""
          : absl::StrCat(", waits for ", client_->WaitingFor(now()), ", ",
                         client_->unacknowledged_bytes(),
                         " bytes unacknowledged"));
}

}  // namespace slackline::sim
