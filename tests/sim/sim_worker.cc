#include "tests/sim/sim_worker.h"

#include <utility>

#include "common/status.h"
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
}

void SimWorker::Counts::Add(const Counts& other) {
  steps += other.steps;
  pulls_ahead += other.pulls_ahead;
  uneven_starts += other.uneven_starts;
  late_starts += other.late_starts;
  final_pulls += other.final_pulls;
  retries += other.retries;
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
  stats.set_clock(clock_);
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
  if (state_ == State::kDraining && client_->unacknowledged_bytes() == 0) {
    state_ = State::kDone;
    wire::Call leave;
    leave.mutable_leave();
    MemberCore::Effects member_effects;
    member_.Call(leave, Payload(), now(), &member_effects);
    Perform(&member_effects);
    BeChief();
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
  if (alive()) BeChief();
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
  client_ = std::make_unique<ClientCore>(options, member_.view());
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
  if (state_ == State::kComputing) {
    pulled_ahead_ =
        result;  // This step's gradients come from what it began with.
    return;
  }
  UseParameters(result);
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
      if (even || !context_->scenario.even_pull ||
          clock_ == context_->scenario.steps) {
        Perform(&effects);
        return StartStep();
      }
      // What lagging shards answered is older than the start clock allows.
      state_ = State::kEvenPull;
      pull_id_ = client_->Pull(clock_, clock_, now(), &effects);
      return Perform(&effects);
    }
    case State::kEvenPull:
    case State::kPulling:
      return StartStep();
    case State::kFinalPull: {
      context_->checker.OnFinalPull(result);
      state_ = State::kReported;
      wire::Call leave;
      leave.mutable_leave()->mutable_result()->set_steps(clock_);
      MemberCore::Effects member_effects;
      member_.Call(leave, Payload(), now(), &member_effects);
      return Perform(&member_effects);
    }
    default:
      SL_CHECK(false, "an answer in a state without a pull");
  }
}

void SimWorker::UseParameters(const ClientCore::PullResult& result) {
  versions_.clear();
  for (const ClientCore::ShardValue& value : result.shards)
    versions_.push_back(value.version);
}

void SimWorker::StartStep() {
  const Scenario& scenario = context_->scenario;
  if (clock_ >= scenario.steps) return Drain();
  if (clock_ + 1 == scenario.steps && !context_->linger_over) {
    context_->queue.After(absl::Milliseconds(20), lifetime_.Guard([this] {
      if (alive()) StartStep();
    }));
    return;
  }
  state_ = State::kComputing;
  if (scenario.pull_ahead && clock_ + 1 < scenario.steps) {
    ++counts_.pulls_ahead;
    ClientCore::Effects effects;
    pull_id_ = client_->Pull(clock_ + 1, clock_, now(), &effects);
    Perform(&effects);
    if (!alive()) return;
  }
  // Backward: the last table's gradient is complete first.
  const int tables = static_cast<int>(scenario.table_elements.size());
  const absl::Duration compute = scenario.compute[control_peer_.index] *
                                 (0.8 + 0.4 * context_->rng.Uniform());
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
  if (alive() && table == 0) EndStep();
}

void SimWorker::EndStep() {
  ++clock_;
  ++counts_.steps;
  if (clock_ >= context_->scenario.steps) return Drain();
  state_ = State::kPulling;
  if (pulled_ahead_.has_value()) {
    UseParameters(*pulled_ahead_);
    pulled_ahead_.reset();
    return StartStep();
  }
  if (pull_id_ != 0) return;  // The pull that runs ahead is still on its way.
  ClientCore::Effects effects;
  pull_id_ = client_->Pull(clock_, clock_, now(), &effects);
  Perform(&effects);
}

void SimWorker::Drain() {
  state_ = State::kDraining;
  ClientCore::Effects nothing;
  Perform(&nothing);  // Leaves at once if everything is acknowledged.
}

void SimWorker::BeChief() {
  if (state_ != State::kDone) return;
  const View& view = *member_.view();
  const wire::WorkerMember* const chief = ChiefOf(view);
  if (chief == nullptr || chief->incarnation() != member_.incarnation()) return;
  for (const wire::WorkerMember& worker : view.proto().worker()) {
    if (!worker.done()) return;
  }
  state_ = State::kFinalPull;
  ++counts_.final_pulls;
  ClientCore::Effects effects;
  pull_id_ = client_->Pull(clock_, clock_, now(), &effects);
  Perform(&effects);
}

std::string SimWorker::StatusLine() const {
  constexpr const char* kStates[] = {"joining",   "join pull",  "even pull",
                                     "computing", "pulling",    "draining",
                                     "done",      "final pull", "reported"};
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
