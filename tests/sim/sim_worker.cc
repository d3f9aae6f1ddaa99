#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "common/program_place.h"
#include "common/status.h"
#include "common/sync/modes/mode_rule.h"
#include "common/sync/phases.h"
#include "common/view/shard_map.h"
#include "tests/sim/job/sim_rows.h"
#include "tests/sim/sim_server.h"
#include "worker/core/catch_up.h"

namespace slackline::sim {
namespace {

// Longer than any fault lasts: who waits for longer has been forgotten.
constexpr absl::Duration kWaitTimeout = absl::Minutes(3);

WorkerCore::Options WorkerOptions(const Scenario& scenario, Rank rank,
                                  uint64_t token) {
  WorkerCore::Options options;
  options.member = MemberOptions(scenario);
  wire::JoinRequest& join = options.member.join;
  join.set_role(wire::JoinRequest::WORKER);
  join.set_index(static_cast<int32_t>(rank));
  join.set_token(token);
  join.set_keeps_state(
      scenario.checkpoints.programs.count(static_cast<int32_t>(rank)) > 0);
  join.set_steps_total(scenario.steps);
  join.set_steps_per_epoch(scenario.steps);
  if (scenario.elastic.has_value()) *join.mutable_elastic() = *scenario.elastic;
  for (const wire::Table& table : scenario.Tables()) *join.add_table() = table;
  options.client.window_bytes = scenario.window_bytes;
  options.client.message_bytes = scenario.message_bytes;
  options.client.socket_message_bytes = 4 * scenario.message_bytes;
  options.client.socket_message_time = absl::Milliseconds(100);
  options.client.by_socket = [](const View&, Owner to) {
    return to.server % 2 == 0;
  };
  options.client.retry_initial = scenario.retry_initial;
  options.client.retry_max = scenario.retry_max;
  options.pull_ahead = scenario.pull_ahead;
  options.step_by_table = scenario.step_by_table;
  options.wait_timeout = kWaitTimeout;
  options.evaluate_every = 5;
  options.save_retry = scenario.lease / 2;
  options.save_timeout = scenario.lease * 20;  // Longer than any disk is full.
  *options.train.mutable_stop() = scenario.stop;
  return options;
}

}  // namespace

void SimWorker::Counts::Add(const Counts& other) {
  WorkerCore::Counts::Add(other);
  final_pulls += other.final_pulls;
  retries += other.retries;
  helped += other.helped;
  gathered += other.gathered;
  steps_lost += other.steps_lost;
  states_asked += other.states_asked;
  states_asked_in_step += other.states_asked_in_step;
  states_compared += other.states_compared;
  programs_restored += other.programs_restored;
  at_work_after += other.at_work_after;
  states_asked_after += other.states_asked_after;
}

SimWorker::SimWorker(SimContext* context, Rank rank, uint64_t token)
    : context_(context),
      machine_(&context->machines[context->scenario.WorkerNode(
          static_cast<int>(rank))]),
      rank_(rank),
      control_peer_{.kind = PeerId::Kind::kWorker,
                    .index = static_cast<int32_t>(rank),
                    .instance = token},
      core_(WorkerOptions(context->scenario, rank, token)),
      links_(context, machine_, control_peer_,
             [this](const wire::LinksTried& tried) {
               Tell([&](WorkerCore& core, absl::Time now,
                        WorkerCore::Effects* effects) {
                 core.OnLinks(tried, now, effects);
               });
             }),
      rng_(Rng(token).Fork("trainer")),
      keeping_(Rng(token).Fork("keeping")),
      after_last_(Rng(token).Fork("after last")),
      asking_(Rng(token).Fork("asking")),
      alarm_(machine_, [this] {
        Tell([](WorkerCore& core, absl::Time now,
                WorkerCore::Effects* effects) { core.OnTick(now, effects); });
        Work();
      }) {
  context_->network.Attach(control_peer_,
                           context_->scenario.WorkerNode(control_peer_.index),
                           [this](const PeerId& from, const Message& message) {
                             if (!(from == coordinator_)) return;  // Closed.
                             context_->OnCoordinatorHeard(control_peer_, from);
                             Tell([&](WorkerCore& core, absl::Time now,
                                      WorkerCore::Effects* effects) {
                               core.OnCoordinatorMessage(message, now, effects);
                             });
                             Work();
                           });
  LookAt(0);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Start(now, effects);
  });
}

void SimWorker::LookAt(int host) {
  coordinator_ = context_->CoordinatorAt(host);
  context_->network.WatchPeer(control_peer_, coordinator_, [this](bool is_up) {
    Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
      core.OnLink(is_up ? LinkState::kUp : LinkState::kGone, now);
    });
  });
}

SimWorker::~SimWorker() {
  if (alive()) Crash(/*drop_sent=*/false);
}

void SimWorker::Crash(bool drop_sent) {
  Stop({.kind = ProcessEnd::Kind::kCrashed, .what = "crashed"}, drop_sent);
}

void SimWorker::Suspend() {
  machine_->After(absl::ZeroDuration(), lifetime_.Guard([this] {
    if (!alive() || !core_.member().HearsCoordinator(now())) return;
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.Suspend("its time is over", now, effects);
    });
    Work();
  }));
}

void SimWorker::Stop(ProcessEnd end, bool drop_sent) {
  if (!alive()) return;
  end_ = std::move(end);
  context_->Log("worker ", control_peer_.index, "/", incarnation(),
                " ends: ", end_.what);
  context_->network.Detach(control_peer_, drop_sent);
  if (attached_) context_->network.Detach(data_peer_, drop_sent);
  DropGroup(/*silent=*/drop_sent);
}

SimWorker::Counts SimWorker::counts() const {
  Counts counts = counts_;
  static_cast<WorkerCore::Counts&>(counts) = core_.counts();
  if (core_.client() != nullptr)
    counts.retries = static_cast<int64_t>(core_.client()->retries());
  return counts;
}

// ---- Driving the core -------------------------------------------------------

void SimWorker::Attach() {
  if (attached_ || core_.client() == nullptr) return;
  attached_ = true;
  data_peer_ = {.kind = PeerId::Kind::kWorker,
                .index = control_peer_.index,
                .instance = incarnation()};
  context_->network.Attach(data_peer_,
                           context_->scenario.WorkerNode(control_peer_.index),
                           [this](const PeerId& from, const Message& message) {
                             OnShardMessage(from, message);
                             Work();
                           });
}

void SimWorker::OnShardMessage(const PeerId& from, const Message& message) {
  context_->checker.OnWorkerReceived(rank_, incarnation(), message);
  Message received = message;
  if (plant_ == Plant::kNeverSkip && received.header.has_pull_reply()) {
    for (wire::PullAnswer& answer :
         *received.header.mutable_pull_reply()->mutable_answer()) {
      if (!answer.has_values()) continue;
      answer.mutable_values()->set_shard_clock(
          std::min<Clock>(answer.values().shard_clock(), core_.clock()));
    }
  }
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnShardMessage({from.index, static_cast<int32_t>(from.instance)},
                        received, now, effects);
  });
}

void SimWorker::Carry(WorkerCore::Effects* effects) {
  if (effects->view != nullptr) {
    links_.End();
    context_->checker.OnMemberView(control_peer_, effects->view->ToProto());
  }
  if (effects->try_links.has_value()) links_.Begin(*effects->try_links);
  Attach();
  for (const std::vector<std::string>* lines :
       {&effects->log, &effects->warnings}) {
    for (const std::string& line : *lines) {
      context_->Log("worker ", control_peer_.index, "/", incarnation(), ": ",
                    line);
    }
  }
  if (effects->look_at.has_value()) LookAt(static_cast<int>(*effects->look_at));
  for (const WorkerCore::Parameters& pulled : effects->pulled) {
    context_->checker.OnPulled(rank_, incarnation(), *pulled);
    if (started_ || core_.has_model()) continue;
    started_ = true;
    context_->checker.OnStart(rank_, incarnation(), core_.clock());
  }
  for (Message& message : effects->to_coordinator) {
    context_->network.Send(control_peer_, coordinator_, std::move(message));
    if (!alive()) return;  // Somebody watches what leaves, and acts.
  }
  for (ClientSend& send : effects->to_shards) {
    if (send.message.header.has_pull_request()) {
      NameSomeRows(context_->scenario,
                   send.message.header.mutable_pull_request());
    }
    context_->checker.OnSent(rank_, incarnation(), send.message);
    if (send.message.header.has_pull_request()) last_pull_ = send;
    context_->network.Send(data_peer_,
                           {.kind = PeerId::Kind::kShardThread,
                            .index = send.to.server,
                            .instance = static_cast<uint64_t>(send.to.thread)},
                           std::move(send.message));
    if (!alive()) return;
  }
  for (WorkerCore::Action& action : effects->actions) {
    if (const auto* const step = std::get_if<WorkerCore::Compute>(&action)) {
      has_come_.assign(context_->scenario.table_elements.size(), false);
      for (size_t table = 0; step->parameters && table < has_come_.size();
           ++table) {
        Take(step->parameters->Of(TableId{static_cast<int32_t>(table)}));
      }
    }
    actions_.Add(std::move(action));
  }
  for (const TableValues& values : effects->tables) Take(values);
  if (effects->state != nullptr) OnState(effects->state);
  for (const MemberCore::CallResult& answer : effects->answers) {
    if (answer.call_id == gather_ && gather_ != 0) OnGathered(answer);
  }
  if (core_.ended()) {
    CheckEnd();
    const absl::Status& why = core_.ending();
    ProcessEnd end{.kind = ProcessEnd::Kind::kGaveUp,
                   .what = std::string(why.message()),
                   .code = why.code(),
                   .obstacle = core_.member().obstacle()};
    if (absl::IsOutOfRange(why)) {
      end.kind = ProcessEnd::Kind::kJobFinished;
    } else if (absl::IsAborted(why)) {
      end.kind = ProcessEnd::Kind::kFenced;
    } else if (core_.view() != nullptr &&
               core_.view()->proto().state() == wire::FAILED) {
      end.kind = ProcessEnd::Kind::kJobFailed;
    } else if (absl::IsInternal(why) || absl::IsDataLoss(why)) {
      // No fault of the network gives a server a reason to refuse anything.
      context_->checker.Report(
          Invariant::kOutcome,
          absl::StrCat("worker ", control_peer_.index, ": ", why.message()));
    }
    return Stop(std::move(end), false);
  }
  if (group_ != nullptr && !group_aborted_ &&
      !core_.WhyGroupIsOver(group_number_).ok()) {
    AbortGroup();
  }
  if (plant_ == Plant::kIgnoreFence) PullBeyondTheFence();
  if (!alive()) return;
  if (core_.client() != nullptr) {
    context_->checker.OnClient(rank_, incarnation(), *core_.client(),
                               core_.member(), *core_.view());
  }
  alarm_.SetAt(core_.NextWakeup());
}

void SimWorker::CheckEnd() {
  if (!after_last_at_work_) return;
  const wire::View& view = core_.view()->proto();
  const bool by_itself = view.end().cause() == wire::JobEnd::COMPLETED ||
                         view.end().cause() == wire::JobEnd::FINISHED_EARLY;
  if (!by_itself || core_.view()->FindWorker(rank_, incarnation()) == nullptr) {
    return;
  }
  context_->checker.Report(
      Invariant::kOutcome,
      absl::StrCat("the job has ended while the script of worker ",
                   control_peer_.index, " was at work after its last step"));
}

void SimWorker::Take(const TableValues& values) {
  if (plant_ != Plant::kComputeAtOnce || held_.empty()) {
    context_->checker.OnParameters(rank_, incarnation(), core_.clock(), values);
  }
  has_come_[static_cast<size_t>(values.table)] = true;
  if (held_.empty()) return;
  // The trainer is another thread.
  machine_->After(absl::Microseconds(rng_.Between(0, 100)),
                  lifetime_.Guard([this] { ComputeHeld(); }));
}

void SimWorker::PullBeyondTheFence() {
  if (!last_pull_.has_value() || core_.has_model() ||
      !core_.view()->proto().has_change() ||
      core_.Progress(now()).activity() !=
          run::WorkerProgress::WAITING_FOR_WORKERS) {
    return;
  }
  wire::Pull& pull =
      *last_pull_->message.header.mutable_pull_request()->mutable_pull(0);
  if (pull.step().clock() >= core_.clock()) return;
  pull.mutable_step()->set_clock(core_.clock());
  pull.mutable_step()->set_own_clock(core_.clock());
  pull.set_id(pull.id() + 1'000'000);
  context_->checker.OnSent(rank_, incarnation(), last_pull_->message);
}

void SimWorker::Work() {
  if (working_) return;
  working_ = true;
  if (!busy_ && !gathering_) {
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnAsked(now, effects);
    });
  }
  while (alive() && !busy_ && !actions_.empty()) {
    if (!gathering_ && AsksState()) {
      busy_ = true;
      AskState();
      break;
    }
    BeginProgram();
    const std::unique_ptr<const WorkerCore::Action> next =
        gathering_ ? NextAtGather() : actions_.Take();
    if (next == nullptr) break;
    const WorkerCore::Action action = *next;
    // The trainer and the communication are threads: things come in between.
    if (context_->scenario.modes.changes &&
        !std::holds_alternative<WorkerCore::KeepProgram>(action) &&
        rng_.Chance(0.3)) {
      busy_ = true;
      machine_->After(absl::Microseconds(rng_.Between(0, 2000)),
                      lifetime_.Guard([this, action] {
                        if (!alive()) return;
                        busy_ = std::visit(
                            [this](const auto& what) { return Perform(what); },
                            action);
                        Work();
                      }));
      break;
    }
    busy_ =
        std::visit([this](const auto& what) { return Perform(what); }, action);
  }
  working_ = false;
}

bool SimWorker::GathersFirst(Clock clock, std::function<void()> next) {
  if (!context_->scenario.GathersAt(clock) || gathered_ == clock) return false;
  gathered_ = clock;
  Gather(PlaceInStep(clock), std::move(next));
  return true;
}

void SimWorker::LeaveStep() {
  if (!alive() || !script_step_.has_value()) return;
  const Clock after = *std::exchange(script_step_, std::nullopt) + 1;
  actions_.OnStepOver();
  // Not after the last step: others may have left the job by then.
  if (after < context_->scenario.steps && context_->scenario.GathersAt(-after))
    Gather(PlaceAfterSteps(after), [this] { Work(); });
  if (after >= EndOf(core_.view()->proto())) WorkAfterLast();
}

void SimWorker::WorkAfterLast() {
  const absl::Duration most = context_->scenario.after_last_max;
  if (!alive() || busy_ || gathering_ || most == absl::ZeroDuration()) return;
  busy_ = after_last_at_work_ = true;
  ++counts_.at_work_after;
  context_->checker.OnWorkAfterLast(rank_, incarnation());
  machine_->After(after_last_.Uniform() * most, lifetime_.Guard([this] {
    if (!alive()) return;
    if (after_last_.Chance(0.5) && !replica_.has_value() &&
        !context_->scenario.HasRows() && core_.ending().ok()) {
      ++counts_.states_asked_after;
      return AskState(after_last_.Chance(0.5) ? StateParts::kValues
                                              : StateParts::kAll);
    }
    busy_ = after_last_at_work_ = false;
    Work();
  }));
}

void SimWorker::Gather(uint64_t place, std::function<void()> next) {
  gathering_ = true;
  gather_place_ = place;
  after_gather_ = std::move(next);
  wire::Call call;
  call.mutable_gather()->set_place(gather_place_);
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    gather_ =
        core.Call(std::move(call), SimGathers::Brought(rank_, gather_place_),
                  now, effects);
  });
  machine_->After(absl::Milliseconds(200),
                  lifetime_.Guard([this] { WaitForGather(); }));
}

// It stands still for others, not by its own fault, and says so now and then.
void SimWorker::WaitForGather() {
  if (!alive() || gather_ == 0) return;
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
    core.OnProgress(now);
  });
  if (script_step_.has_value()) LoseStep(actions_.NextAtGather(core_).lost);
  Work();
  if (!alive()) return;
  machine_->After(absl::Milliseconds(200),
                  lifetime_.Guard([this] { WaitForGather(); }));
}

std::unique_ptr<const WorkerCore::Action> SimWorker::NextAtGather() {
  while (alive()) {
    ActionLine::AtGather next = actions_.NextAtGather(core_);
    if (next.lost.ok()) return std::move(next.action);
    LoseStep(next.lost);
  }
  return nullptr;
}

void SimWorker::LoseStep(const absl::Status& why) {
  if (why.ok()) return;
  if (script_step_.has_value()) {
    ++counts_.steps_lost;
    script_step_.reset();
    after_gather_ = [this] {
      gathered_ = -1;  // The step comes again, with its collective.
      Work();
    };
    busy_ = false;
  }
  LoseGroup();
}

void SimWorker::OnGathered(const MemberCore::CallResult& answer) {
  gather_ = 0;
  if (answer.reply.code() != wire::OK) {
    // Who is no member any more is told so, and begins anew.
    context_->Log("worker ", control_peer_.index,
                  " was refused a collective: ", answer.reply.error());
    return;
  }
  ++counts_.gathered;
  const wire::WorkerMember* const self = core_.view()->FindWorker(rank_);
  context_->gathers.OnAnswer(rank_, gather_place_,
                             self != nullptr && self->founder() &&
                                 self->incarnation() == incarnation(),
                             answer);
  machine_->After(absl::Microseconds(asking_.Between(0, 100)),
                  lifetime_.Guard([this] {
                    if (!alive()) return;
                    gathering_ = false;
                    std::exchange(after_gather_, nullptr)();
                  }));
}

bool SimWorker::AsksState() {
  return has_stepped_ && !replica_.has_value() && core_.ending().ok() &&
         asking_.Chance(context_->scenario.asks_state);
}

void SimWorker::AskState(StateParts what) {
  asks_ = true;
  ++counts_.states_asked;
  Tell([=](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.AskState(what, now, effects);
    core.SetNeed(WorkerCore::Need::kState, now);
  });
}

void SimWorker::OnState(const WorkerCore::Parameters& state) {
  std::vector<Version> versions;
  for (const ShardValue& shard : state->shards)
    versions.push_back(shard.version);
  told_ = {core_.clock(), std::move(versions)};
  // The trainer is another thread.
  machine_->After(absl::Microseconds(rng_.Between(0, 100)),
                  lifetime_.Guard([this] {
                    if (!alive() || !asks_) return;
                    asks_ = false;
                    const auto goes_on = [](WorkerCore& core, absl::Time now,
                                            WorkerCore::Effects*) {
                      core.SetNeed(WorkerCore::Need::kNothing, now);
                    };
                    if (!std::exchange(asks_in_step_, false)) {
                      after_last_at_work_ = false;
                      return Done(goes_on);
                    }
                    Tell(goes_on);
                    ComputeHeld();
                  }));
}

void SimWorker::CompareWithState(const WorkerCore::Compute& step) {
  const wire::View& view = core_.view()->proto();
  const sync::Mode& mode = PhaseAt(view, step.clock).mode();
  if (!told_.has_value() || told_->first != step.clock ||
      step.parameters == nullptr ||
      told_->second.size() != step.parameters->shards.size() ||
      !RuleOf(mode).holds_gradients() || RuleOf(mode).spare_workers(mode) > 0) {
    return;
  }
  ++counts_.states_compared;
  for (size_t s = 0; s < told_->second.size(); ++s) {
    const Version had = step.parameters->shards[s].version;
    if (told_->second[s] == had) continue;
    context_->checker.Report(
        Invariant::kVersionOrder,
        absl::StrCat("worker ", control_peer_.index, " was told the state ",
                     told_->second[s], " of shard ", s, " at clock ",
                     step.clock, ", whose parameters are of version ", had));
  }
}

bool SimWorker::Lingers(Clock clock) const {
  if (clock + 1 != context_->scenario.steps || context_->linger_over)
    return false;
  // A checkpoint with its last step waits for that; then the others cannot
  // wait with theirs.
  const auto& limits = core_.view()->proto().cut().until();
  const bool cut = absl::c_any_of(limits, [&](const wire::Cut::Until& until) {
    return until.incarnation() == incarnation() && until.clock() > clock;
  });
  // Nor do those who had no step left when the job went on.
  const auto is_done = [](const wire::WorkerMember& worker) {
    return worker.done();
  };
  if (cut || absl::c_any_of(core_.view()->workers(), is_done))
    context_->linger_over = true;
  return !context_->linger_over;
}

absl::Duration SimWorker::ComputeTime(Clock clock) {
  const absl::Duration usual = context_->scenario.compute[control_peer_.index] *
                               (0.8 + 0.4 * context_->rng.Uniform());
  const absl::Duration stall = context_->TrainerStallOf(rank_, clock);
  if (stall > absl::ZeroDuration()) stalled_until_ = now() + stall;
  return usual + stall;
}

absl::Duration SimWorker::stalls_for() const {
  return std::max(stalled_until_ - now(), absl::ZeroDuration());
}

bool SimWorker::IsStuckAlone() const {
  return alive() && stalled_until_ == absl::InfiniteFuture() &&
         core_.view()->workers().size() == 1;
}

void SimWorker::At(PhaseStep step) {
  if (context_->on_phase_step) context_->on_phase_step(step, rank_);
}

bool SimWorker::Perform(const WorkerCore::Evaluate& action) {
  const Scenario& scenario = context_->scenario;
  if (!scenario.stop.has_test_accuracy()) return false;
  run::MetricRecord record;
  record.set_kind(run::MetricRecord::EVAL);
  record.set_step(action.clock);
  record.set_loss(1);
  record.set_accuracy(scenario.AccuracyAt(action.clock));
  core_.AddRecord(record, now());
  return false;
}

// ---- Over servers -----------------------------------------------------------

bool SimWorker::Perform(const WorkerCore::Compute& action) {
  CheckStepComes(action.clock);
  replica_.reset();
  reduced_.reset();
  examples_ = action.examples;
  has_stepped_ = true;
  CompareWithState(action);
  StartStep(action);
  return true;
}

void SimWorker::StartStep(const WorkerCore::Compute& step) {
  if (!alive()) return;
  if (Lingers(step.clock)) {
    machine_->After(absl::Milliseconds(20),
                    lifetime_.Guard([this, step] { StartStep(step); }));
    return;
  }
  script_step_ = step.clock;
  if (GathersFirst(step.clock, [this, step] { StartStep(step); })) return;
  context_->checker.OnStepBegun(rank_, incarnation(), step.clock,
                                /*by_all_reduce=*/false, examples_);
  held_.clear();
  pushed_ = 0;
  uses_all_ = !context_->scenario.step_by_table || rng_.Chance(0.7);
  // Backward: the last table's gradient is complete first.
  const int tables = static_cast<int>(context_->scenario.table_elements.size());
  const absl::Duration compute = ComputeTime(step.clock);
  for (int table = tables - 1; table >= 0; --table) {
    const double part = static_cast<double>(tables - table) / tables;
    machine_->After(compute * (0.3 + 0.7 * part),
                    lifetime_.Guard([this, table] { PushTable(table); }));
  }
}

bool SimWorker::CanCompute(int table) const {
  return uses_all_ ? absl::c_all_of(has_come_, [](bool come) { return come; })
                   : has_come_[static_cast<size_t>(table)];
}

void SimWorker::ComputeHeld() {
  if (!alive() || asks_) return;
  std::vector<int> held;
  held.swap(held_);
  if (absl::c_all_of(held, [&](int table) { return CanCompute(table); })) {
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
      core.SetNeed(WorkerCore::Need::kNothing, now);
    });
  }
  for (const int table : held) PushTable(table);
}

void SimWorker::PushTable(int table) {
  if (!alive()) return;
  if (!asks_ && pushed_ > 0 && CanCompute(table) && AsksState()) {
    ++counts_.states_asked_in_step;
    asks_in_step_ = true;
    AskState();
    if (!alive()) return;
  }
  if (asks_) return held_.push_back(table);
  if (!CanCompute(table)) {
    held_.push_back(table);
    return Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
      core.SetNeed(WorkerCore::Need::kParameters, now);
    });
  }
  const Clock clock = core_.clock();
  const Scenario& scenario = context_->scenario;
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    const absl::Status pushed =
        scenario.Skips(clock, TableId{table})
            ? core.OnSkippedTable(TableId{table}, now, effects)
            : core.OnGradient(
                  TableId{table},
                  scenario.PushOf(rank_, incarnation(), clock, TableId{table}),
                  scenario.GradientOptions(rank_, clock, TableId{table}), now,
                  effects);
    SL_CHECK(pushed.ok(), pushed.message());
  });
  if (++pushed_ < static_cast<int>(has_come_.size())) return;
  busy_ = false;
  FinishInProgram(clock);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnComputed(/*loss=*/1, now, effects);
  });
  LeaveStep();
  Work();
}

// ---- By all-reduce ----------------------------------------------------------

bool SimWorker::Perform(const WorkerCore::Initialize&) {
  replica_ = SimReplica::Initial(context_->scenario, rank_, core_.view());
  if (core_.clock() == 0) {
    context_->checker.OnInitial(rank_, incarnation(), *replica_);
    context_->checker.OnStart(rank_, incarnation(), 0);
  }
  clock_ = core_.clock();
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnInitialized(now, effects);
  });
  return false;
}

bool SimWorker::Perform(const WorkerCore::TakeState& action) {
  replica_ = SimReplica::Of(*action.state);
  clock_ = core_.clock();
  context_->checker.OnTookState(rank_, incarnation(), clock_, *replica_);
  const WorkerCore::Moved moved{
      .bytes = 0, .model_hash = replica_->Hash(*action.state->view)};
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnStateTaken(moved, now, effects);
  });
  return false;
}

bool SimWorker::Perform(const WorkerCore::ReadState& action) {
  const WorkerCore::Moved moved{.bytes = 0,
                                .model_hash = replica_->Hash(*action.view)};
  std::vector<ClientCore::InstalledShard> shards;
  for (const ShardId shard : action.shards) {
    shards.push_back(
        {.shard = shard, .state = replica_->CopyOut(*action.view, shard)});
  }
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnStateRead(std::move(shards), moved, now, effects);
  });
  return false;
}

bool SimWorker::Perform(const WorkerCore::KeepState& action) {
  context_->checker.OnKept(rank_, incarnation(), action.cut, action.clock,
                           *replica_);
  // The shards are those of the view that has the cut, not of when it took the
  // state.
  // Drawn one after the other, so that all compilers draw the same.
  const absl::Duration write = context_->WriteTime();
  machine_->After(write + context_->WriteHop(),
                  lifetime_.Guard([this, cut = action.cut, kept = *replica_,
                                   view = core_.view()] {
                    if (alive()) OnKept(cut, kept, *view);
                  }));
  return false;
}

void SimWorker::OnKept(int32_t cut, const SimReplica& kept, const View& view) {
  wire::CutPart part;
  part.set_cut(cut);
  if (context_->CanWrite(DiskFault::File::kPart)) {
    const bool later = plant_ == Plant::kKeepLater && replica_.has_value();
    const SimReplica& state = later ? *replica_ : kept;
    context_->checker.OnKeptWritten(rank_, cut, state);
    std::vector<ShardState> shards;
    for (int32_t id = 0; id < view.shard_count(); ++id) {
      const ShardRange& range = view.shard(ShardId{id});
      ShardValue value = state.CopyOut(view, ShardId{id});
      shards.push_back({.table = view.table(range.table).name(),
                        .region = range.region,
                        .version = value.version,
                        .values = std::move(value.values),
                        .slots = std::move(value.slots)});
    }
    *part.mutable_part() = context_->folder.Write(
        cut, absl::StrCat("worker-", control_peer_.index, ".safetensors"),
        shards);
  } else {
    context_->failed_cuts.insert(cut);
    part.set_error("the disk is full");
  }
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnCutPart(part, now, effects);
  });
  Work();
}

void SimWorker::BeginProgram() {
  if (std::exchange(program_begun_, true)) return;
  const std::shared_ptr<const SimCheckpoint>& resume =
      context_->scenario.resume;
  if (resume != nullptr &&
      context_->scenario.checkpoints.programs.count(control_peer_.index) > 0 &&
      core_.member().checkpoint_sha256() == resume->Name()) {
    const auto found = resume->programs.find(control_peer_.index);
    if (found != resume->programs.end()) {
      program_ = found->second;
      ++counts_.programs_restored;
    }
  }
  const wire::WorkerMember* const self = core_.view()->FindWorker(rank_);
  context_->checker.OnProgramBegins(
      rank_, incarnation(), self != nullptr && self->founder(), program_);
}

void SimWorker::FinishInProgram(Clock clock) {
  program_ = ProgramAfter(control_peer_.index, clock);
  context_->checker.OnProgramStep(rank_, incarnation(), clock);
}

bool SimWorker::Perform(const WorkerCore::KeepProgram& action) {
  kept_last_ |= action.last;
  const Checkpoints& checkpoints = context_->scenario.checkpoints;
  const double part = keeping_.Uniform();
  const absl::Duration time =
      part * (keeping_.Chance(checkpoints.slow) ? checkpoints.slow_max
                                                : absl::Milliseconds(5));
  machine_->After(time,
                  lifetime_.Guard([this, cut = action.cut, kept = program_] {
                    if (alive()) OnProgramKept(cut, kept);
                  }));
  return false;
}

void SimWorker::OnProgramKept(int32_t cut, const std::string& kept) {
  wire::CutPart part;
  part.set_cut(cut);
  if (context_->CanWrite(DiskFault::File::kPart)) {
    *part.mutable_kept() = context_->folder.WriteKept(
        cut, control_peer_.index,
        plant_ == Plant::kKeepProgramLater ? program_ : kept);
  } else {
    context_->failed_cuts.insert(cut);
    part.set_kept_error("the disk is full");
  }
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnCutPart(part, now, effects);
  });
  Work();
}

SimShare SimWorker::ShareOf() const {
  return {.rank = rank_,
          .incarnation = incarnation(),
          .standing = {.clock = clock_},
          .state = nullptr,
          .gradients = {}};
}

bool SimWorker::Perform(const WorkerCore::Connect& action) {
  DropGroup();
  group_number_ = action.group;
  group_aborted_ = false;
  // It forms of those that are in the view; a view that is newer has another.
  if (!core_.WhyGroupIsOver(group_number_).ok()) {
    LoseGroup();
    return false;
  }
  group_ = context_->groups.Of(*core_.view());
  if (group_->HasLeft(rank_)) {
    // The addresses of the first time are in the coordinator's store for good.
    context_->checker.Report(
        Invariant::kReplica,
        absl::StrCat("worker ", control_peer_.index, " connects to group ",
                     group_number_, " a second time"));
    group_ = nullptr;
    return true;
  }
  At(PhaseStep::kConnecting);
  if (!alive()) return true;
  connecting_ = true;
  group_->Begin(rank_, ShareOf(),
                lifetime_.Guard([this](const std::vector<SimShare>* all) {
                  OnConnected(all != nullptr);
                }));
  return true;
}

void SimWorker::OnConnected(bool connected) {
  if (!alive()) return;
  connecting_ = false;
  busy_ = false;
  if (connected) {
    At(PhaseStep::kConnected);
    if (!alive()) return;
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnConnected(now, effects);
    });
  } else {
    LoseGroup();
  }
  Work();
}

bool SimWorker::Perform(const WorkerCore::CatchUp& action) {
  clock_ = action.standing.clock;
  catching_up_ = true;
  SimShare share = ShareOf();
  share.standing = action.standing;
  share.state = std::make_shared<const SimReplica>(*replica_);
  context_->checker.OnShared(rank_, incarnation(), group_number_);
  group_->Begin(rank_, std::move(share),
                lifetime_.Guard([this](const std::vector<SimShare>* shares) {
                  OnCaughtUp(shares);
                }));
  if (group_aborted_) AbortGroup();
  return true;
}

void SimWorker::OnCaughtUp(const std::vector<SimShare>* shares) {
  if (!alive()) return;
  catching_up_ = false;
  busy_ = false;
  if (shares == nullptr) {
    LoseGroup();
    return Work();
  }
  context_->checker.OnExchange(group_number_, *shares);
  std::vector<Standing> standings;
  for (const SimShare& share : *shares) standings.push_back(share.standing);
  const CatchUpPlan plan = PlanCatchUp(standings);
  if (plan.clock < 0) {
    return Tell(
        [](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
          core.Fail(absl::NotFoundError(
                        "no worker of the group knows the job's parameters"),
                    now, effects);
        });
  }
  const auto self =
      std::find_if(shares->begin(), shares->end(),
                   [&](const auto& share) { return share.rank == rank_; });
  const bool takes = plan.takes[static_cast<size_t>(self - shares->begin())];
  if (takes && plant_ != Plant::kTakeNoHelp &&
      (plant_ != Plant::kBeginAlone || clock_ != plan.clock)) {
    counts_.helped += clock_ < plan.clock;
    replica_ = *(*shares)[static_cast<size_t>(plan.root)].state;
    if (clock_ < 0) context_->checker.OnStart(rank_, incarnation(), plan.clock);
  }
  clock_ = plan.clock;
  At(PhaseStep::kCaughtUp);
  if (!alive()) return;
  context_->Log("worker ", control_peer_.index, "/", incarnation(),
                " is at clock ", clock_, " of group ", group_number_);
  context_->checker.OnCaughtUp(rank_, incarnation(), group_number_, clock_,
                               *replica_);
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnCaughtUp(clock_, takes, now, effects);
  });
  Work();
}

void SimWorker::CheckStepComes(Clock clock) {
  if (!kept_last_) return;
  context_->checker.Report(
      Invariant::kCheckpoint,
      absl::StrCat("worker ", control_peer_.index, " begins step ", clock,
                   " after its program was told that no step comes"));
}

bool SimWorker::Perform(const WorkerCore::Reduce& action) {
  CheckStepComes(action.clock);
  const auto before = std::exchange(reduced_, action);
  if (before.has_value() && before->clock == action.clock - 1 &&
      !before->keeps_model) {
    context_->checker.Report(
        Invariant::kReplica,
        absl::StrCat("worker ", control_peer_.index, " goes on in step ",
                     action.clock,
                     " with the model of a step that was to keep none"));
  }
  clock_ = action.clock;
  examples_ = action.examples;
  if (action.empty) computed_at_.reset();
  if (!action.again && !action.empty) {
    StartReduce(action.clock);
    return true;
  }
  if (action.again &&
      (!computed_at_.has_value() || !computed_at_->SameBits(*replica_))) {
    context_->checker.Report(
        Invariant::kReplica,
        absl::StrCat("worker ", control_peer_.index,
                     " is to reduce gradients of step ", clock_,
                     " that it has computed at another state"));
  }
  // The action ends later, never while it is being begun.
  machine_->After(absl::ZeroDuration(),
                  lifetime_.Guard([this] { SumGradients(); }));
  return true;
}

void SimWorker::StartReduce(Clock clock) {
  if (!alive()) return;
  if (Lingers(clock)) {
    // The action ends later, never while it is being begun.
    machine_->After(absl::Milliseconds(group_aborted_ ? 0 : 20),
                    lifetime_.Guard([this, clock] {
                      if (group_aborted_) return OnReduced(nullptr);
                      StartReduce(clock);
                    }));
    return;
  }
  script_step_ = clock;
  if (GathersFirst(clock, [this, clock] { StartReduce(clock); })) return;
  context_->checker.OnStepBegun(rank_, incarnation(), clock,
                                /*by_all_reduce=*/true, examples_);
  machine_->After(ComputeTime(clock), lifetime_.Guard([this] { Reduce(); }));
}

std::vector<SimReplica::Tensor> SimWorker::Gradients() const {
  const Scenario& scenario = context_->scenario;
  std::vector<SimReplica::Tensor> gradients;
  for (size_t t = 0; t < scenario.table_elements.size(); ++t) {
    gradients.push_back(scenario.Gradient(rank_, incarnation(), clock_,
                                          TableId{static_cast<int32_t>(t)}, 0,
                                          scenario.table_elements[t]));
  }
  return gradients;
}

void SimWorker::Reduce() {
  if (!alive()) return;
  computed_at_ = replica_;
  SumGradients();
}

void SimWorker::SumGradients() {
  if (!alive()) return;
  At(PhaseStep::kReducing);
  if (!alive()) return;
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
    core.OnReducing(now);
  });
  if (group_aborted_) return OnReduced(nullptr);
  reducing_ = true;
  SimShare share = ShareOf();
  share.gradients = Gradients();
  share.counts =
      !context_->scenario.elastic.has_value() || examples_.has_value();
  if (!share.counts) {
    for (SimReplica::Tensor& gradient : share.gradients)
      std::fill(gradient.begin(), gradient.end(), 0.0f);
  }
  group_->Begin(rank_, std::move(share),
                lifetime_.Guard([this](const std::vector<SimShare>* shares) {
                  OnReduced(shares);
                }));
}

void SimWorker::OnReduced(const std::vector<SimShare>* shares) {
  if (!alive()) return;
  reducing_ = false;
  busy_ = false;
  const Scenario& scenario = context_->scenario;
  if (shares == nullptr) {
    if (plant_ == Plant::kKeepFailedStep || plant_ == Plant::kStepAlone)
      replica_->Apply(scenario, Gradients(), 1, clock_);
    if (plant_ == Plant::kStepAlone) {
      Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnReduced({.loss = 1, .nonfinite = false, .culprits = {}}, now,
                       effects);
      });
    } else {
      LoseGroup();
    }
    LeaveStep();  // A driver tries the sum again by itself.
    return Work();
  }
  std::vector<SimReplica::Tensor> sum = shares->front().gradients;
  for (size_t r = 1; r < shares->size(); ++r) {
    for (size_t t = 0; t < sum.size(); ++t) {
      for (size_t e = 0; e < sum[t].size(); ++e)
        sum[t][e] += (*shares)[r].gradients[t][e];
    }
  }
  replica_->Apply(scenario, sum,
                  static_cast<int>(std::count_if(
                      shares->begin(), shares->end(),
                      [](const SimShare& share) { return share.counts; })),
                  clock_);
  FinishInProgram(clock_);
  ++clock_;
  At(PhaseStep::kReduced);
  if (!alive()) return;
  context_->Log("worker ", control_peer_.index, "/", incarnation(),
                " is at clock ", clock_, " by all-reduce");
  context_->checker.OnReduced(rank_, incarnation(), group_number_, *shares,
                              clock_, *replica_);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnReduced({.loss = 1, .nonfinite = false, .culprits = {}}, now,
                   effects);
  });
  LeaveStep();
  Work();
}

void SimWorker::LoseGroup() {
  context_->Log("worker ", control_peer_.index, "/", incarnation(),
                " at clock ", clock_, " has lost group ", group_number_);
  DropGroup();
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnGroupLost(absl::UnavailableError("a connection was lost"), now,
                     effects);
  });
}

void SimWorker::AbortGroup() {
  group_aborted_ = true;
  machine_->After(absl::Microseconds(rng_.Between(0, 1000)),
                  lifetime_.Guard([this, number = group_number_] {
                    if (!alive() || group_ == nullptr ||
                        group_number_ != number || !group_->Busy(rank_)) {
                      return;
                    }
                    if (connecting_) return OnConnected(false);
                    if (catching_up_) return OnCaughtUp(nullptr);
                    if (reducing_) return OnReduced(nullptr);
                  }));
}

void SimWorker::DropGroup(bool silent) {
  if (group_ != nullptr) group_->Leave(rank_, silent);
  group_ = nullptr;
  connecting_ = catching_up_ = reducing_ = false;
}

bool SimWorker::Perform(const WorkerCore::LeaveGroup&) {
  DropGroup();
  return false;
}

// ---- The end ----------------------------------------------------------------

bool SimWorker::Perform(const WorkerCore::Conclude& action) {
  ++counts_.final_pulls;
  if (action.parameters != nullptr) {
    context_->checker.OnFinalPull(*action.parameters);
  } else {
    context_->checker.OnFinalReplica(rank_, incarnation(), *replica_);
  }
  return Perform(WorkerCore::Save{});
}

bool SimWorker::Perform(const WorkerCore::Save&) {
  if (!context_->CanWrite(DiskFault::File::kModel)) {
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnSaveFailed(absl::ResourceExhaustedError("the disk is full"), now,
                        effects);
    });
    return false;
  }
  run::Result result;
  result.set_steps(core_.clock());
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnConcluded(result, now, effects);
  });
  return false;
}

std::string SimWorker::StatusLine() const {
  const std::string doing = alive() ? core_.Progress(now()).what() : end_.what;
  return absl::StrCat(
      "worker ", control_peer_.index, "/", incarnation(), ": ", doing,
      " at clock ", core_.clock(), ", view ",
      core_.view() == nullptr ? 0 : core_.view()->number(),
      core_.client() == nullptr
          ? ""
          : absl::StrCat(", waits for ", core_.client()->WaitingFor(now()).text,
                         ", ", core_.client()->unacknowledged_bytes(),
                         " bytes unacknowledged"));
}

}  // namespace slackline::sim
