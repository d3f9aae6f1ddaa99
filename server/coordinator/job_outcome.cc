#include "server/coordinator/job_outcome.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/stop_rules.h"
#include "common/shortened.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "server/coordinator/job_end.h"

namespace slackline {
namespace {

constexpr size_t kStopReasonBytesMax = 1024;
constexpr int kCulpritsMax = 256;

// What a worker says of its training.
void PutDiverged(const wire::Diverged& diverged, wire::JobEnd* end) {
  end->set_clock(std::clamp<Clock>(diverged.clock(), 0, kClockMax));
  for (const int32_t worker : diverged.worker()) {
    if (worker < 0 || end->worker_size() == kCulpritsMax) continue;
    end->add_worker(worker);
  }
}

// What was not measured meets no rule.
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double TestLossOf(const run::MetricRecord& evaluation) {
  return evaluation.has_loss() ? evaluation.loss() : kNone;
}
double TestAccuracyOf(const run::MetricRecord& evaluation) {
  return evaluation.has_accuracy() ? evaluation.accuracy() : kNone;
}

// How the job has ended, and whom that is about.
void PutEnd(const wire::View& view, run::Summary* summary) {
  const wire::JobEnd& end = view.end();
  summary->set_state(wire::JobState_Name(view.state()));
  summary->set_cause(wire::JobEnd::Cause_Name(end.cause()));
  summary->set_reason(end.reason());
  if (end.cause() == wire::JobEnd::DIVERGED)
    summary->set_diverged_at_step(end.clock());
  for (const int32_t server : end.server())
    summary->add_about(absl::StrCat("server ", server));
  for (const int32_t worker : end.worker())
    summary->add_about(absl::StrCat("worker ", worker));
  for (const int32_t shard : end.shard())
    summary->add_about(absl::StrCat("shard ", shard));
}

// To a Result or a Summary.
template <typename Report>
void PutEvaluation(const run::MetricRecord& evaluation, Report* report) {
  if (evaluation.has_loss()) report->set_test_loss(evaluation.loss());
  if (evaluation.has_accuracy())
    report->set_test_accuracy(evaluation.accuracy());
}

}  // namespace

void JobOutcome::OnEnded(const Moment& moment, CoordinatorEffects*) {
  OnTrained(moment.now);
}

bool JobOutcome::Advance(const Moment& moment, CoordinatorEffects*) {
  if (!editor_->running() || !std::exchange(news_, false)) return false;
  const auto& workers = members_->workers();
  if (std::all_of(workers.begin(), workers.end(),
                  [](const auto& entry) { return entry.second->done; })) {
    OnAllDone(moment.now);
  }
  return false;
}

void JobOutcome::OnAllDone(absl::Time now) {
  const std::string& ended_early = modes_->ended_early();
  OnTrained(now);
  if (!result_.has_value()) return;
  if (ended_early.empty()) {
    return editor_->End(JobEndOf(wire::JobEnd::COMPLETED,
                                 "all workers have completed their steps"));
  }
  const wire::View& view = editor_->view();
  stopped_early_ = absl::StrCat("at step ", EndOf(view), " of ",
                                view.elastic() ? "about " : "",
                                view.steps_total(), ": ", ended_early);
  editor_->End(JobEndOf(wire::JobEnd::FINISHED_EARLY,
                        absl::StrCat("ended early, ", stopped_early_)));
}

void JobOutcome::OnRecord(run::MetricRecord record, absl::Time now,
                          CoordinatorEffects* effects) {
  // What is no age, is none.
  const absl::Time made_at =
      now - absl::Seconds(std::max(0.0, record.seconds()));
  // An age does not know how long its message was under way.
  double& last = recorded_at_[{record.rank(), record.kind()}];
  last = std::max(last, running_since_ == absl::InfiniteFuture()
                            ? 0.0
                            : std::max(seconds_before_, Seconds(made_at)));
  record.set_seconds(last);
  latest_[record.kind()] = record;
  if (record.kind() == run::MetricRecord::TRAIN && record.has_loss())
    trained_[record.rank()] = record;
  effects->records.push_back(record);
  if (record.kind() == run::MetricRecord::EVAL) StopIfRuleMet(record);
}

void JobOutcome::OnStop(const wire::Stop& stop, const Member* member) {
  const std::string why = Shortened(stop.reason(), kStopReasonBytesMax);
  const bool diverged =
      member != nullptr && member->worker_role() && stop.has_diverged();
  wire::JobEnd end =
      JobEndOf(diverged ? wire::JobEnd::DIVERGED : wire::JobEnd::STOPPED, why);
  if (diverged) {
    PutDiverged(stop.diverged(), &end);
  } else if (member != nullptr) {
    PutWho(*member, &end);
  }
  editor_->End(std::move(end));
}

// ---- Stop rules -------------------------------------------------------------

bool JobOutcome::MayStop() const {
  return editor_->running() && trained_at_ == absl::InfiniteFuture();
}

absl::Time JobOutcome::StopTime() const {
  if (!MayStop() || !stop_.has_wall_seconds()) return absl::InfiniteFuture();
  return running_since_ + absl::Seconds(stop_.wall_seconds());
}

void JobOutcome::StopIfRuleMet(const run::MetricRecord& evaluation) {
  if (!MayStop()) return;
  const std::string rule =
      StopRuleMet(stop_, TestLossOf(evaluation), TestAccuracyOf(evaluation));
  if (rule.empty()) return;
  run::Result result;
  result.set_steps(evaluation.step());
  PutEvaluation(evaluation, &result);
  result.set_model_sha256(evaluation.model_sha256());
  StopByRule(absl::StrCat(rule, " at step ", evaluation.step()),
             evaluation.seconds() - seconds_before_, result);
}

void JobOutcome::OnTime(const Moment& moment, CoordinatorEffects*) {
  if (moment.now < StopTime()) return;
  run::Result result;
  stopped_by_time_ = true;
  std::string rule = absl::StrCat("train.stop.wall_seconds ",
                                  stop_.wall_seconds(), " had passed");
  if (const auto evaluation = latest_.find(run::MetricRecord::EVAL);
      evaluation == latest_.end()) {
    absl::StrAppend(&rule, ", nothing was evaluated");
  } else {
    PutEvaluation(evaluation->second, &result);
    absl::StrAppend(&rule, ", the last evaluation was of step ",
                    evaluation->second.step());
  }
  StopByRule(rule, SecondsHere(moment.now), result);
}

void JobOutcome::StopByRule(const std::string& rule, double seconds,
                            const run::Result& result) {
  stopped_ = absl::StrFormat("%s after %.1f s", rule, seconds);
  stopped_seconds_ = seconds;
  result_ = result;
  if (const std::optional<double> loss = TrainLoss(); loss.has_value())
    result_->set_train_loss(*loss);
  editor_->End(JobEndOf(wire::JobEnd::STOP_RULE, stopped_));
}

std::optional<double> JobOutcome::TrainLoss() const {
  int64_t step = 0;
  for (const auto& [rank, record] : trained_)
    step = std::max(step, record.step());
  double sum = 0;
  int count = 0;
  for (const auto& [rank, record] : trained_) {
    if (record.step() != step) continue;
    sum += record.loss();
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

// ---- For the next coordinator -----------------------------------------------

void JobOutcome::Keep(absl::Time, KeptState* kept) {
  coordinator::OutcomeState state;
  state.set_data(data_);
  state.set_data_hash(data_hash_);
  state.set_clock(clock_.name);
  state.set_clock_to_wall(absl::ToInt64Microseconds(clock_.to_wall));
  if (running_since_ != absl::InfiniteFuture())
    state.set_running_since(absl::ToUnixMicros(running_since_));
  state.set_seconds_before(seconds_before_);
  if (trained_at_ != absl::InfiniteFuture())
    state.set_trained_at(absl::ToUnixMicros(trained_at_));
  for (const auto& [rank, record] : trained_) *state.add_latest() = record;
  for (const auto& [kind, record] : latest_) *state.add_latest() = record;
  if (result_.has_value()) *state.mutable_result() = *result_;
  state.set_stopped(stopped_);
  state.set_stopped_early(stopped_early_);
  state.set_stopped_by_time(stopped_by_time_);
  state.set_stopped_seconds(stopped_seconds_);
  kept->Put("outcome", state);
}

absl::Status JobOutcome::Load(const StateReader& reader, const Moment& moment,
                              CoordinatorEffects*) {
  coordinator::OutcomeState state;
  SL_RETURN_IF_ERROR(reader.Read("outcome", &state));
  data_ = state.data();
  data_hash_ = state.data_hash();
  // Between hosts, times go by the clock on the wall.
  const absl::Duration shift =
      state.clock() == clock_.name
          ? absl::ZeroDuration()
          : absl::Microseconds(state.clock_to_wall()) - clock_.to_wall;
  if (state.has_running_since()) {
    running_since_ = std::min(
        moment.now, absl::FromUnixMicros(state.running_since()) + shift);
  }
  seconds_before_ = state.seconds_before();
  if (state.has_trained_at())
    trained_at_ =
        std::min(moment.now, absl::FromUnixMicros(state.trained_at()) + shift);
  // Those of latest_ come last.
  for (const run::MetricRecord& record : state.latest()) {
    latest_[record.kind()] = record;
    recorded_at_[{record.rank(), record.kind()}] = record.seconds();
    if (record.kind() == run::MetricRecord::TRAIN && record.has_loss())
      trained_[record.rank()] = record;
  }
  if (state.has_result()) result_ = state.result();
  stopped_ = state.stopped();
  stopped_early_ = state.stopped_early();
  stopped_by_time_ = state.stopped_by_time();
  stopped_seconds_ = state.stopped_seconds();
  news_ = true;
  return absl::OkStatus();
}

// ---- Reports ----------------------------------------------------------------

void JobOutcome::PutStatus(const StatusQuestion& question,
                           wire::StatusReply* status) const {
  for (const auto& [kind, record] : latest_) *status->add_latest() = record;
  if (running_since_ != absl::InfiniteFuture())
    status->set_run_seconds(
        SecondsHere(std::min(question.moment.now, trained_at_)));
}

Clock JobOutcome::StepsOfAll(const run::Summary& summary) const {
  Clock smallest = EndOf(editor_->view());
  for (const auto& [rank, worker] : members_->workers())
    smallest = std::min<Clock>(smallest, worker->worker.clock());
  if (!members_->workers().empty()) return smallest;
  // All are gone: what they had done.
  for (const run::WorkerSummary& worker : summary.worker())
    smallest = std::min<Clock>(smallest, worker.steps());
  return smallest;
}

void JobOutcome::PutSummary(run::Summary* summary) const {
  const Clock steps = StepsOfAll(*summary);
  if (running_since_ != absl::InfiniteFuture() &&
      trained_at_ != absl::InfiniteFuture()) {
    const double seconds = SecondsHere(trained_at_);
    summary->set_wall_seconds(stopped_.empty() ? seconds : stopped_seconds_);
    // Who was stopped went on until it heard of it.
    if (seconds > 0) {
      summary->set_examples_per_second(
          static_cast<double>(accounts_->Examples()) / seconds);
    }
  }
  if (result_.has_value()) {
    // What the last heartbeats said, after the end.
    summary->set_steps(stopped_by_time_ ? steps : result_->steps());
    if (result_->has_train_loss()) {
      summary->set_train_loss(result_->train_loss());
    } else if (const std::optional<double> loss = TrainLoss();
               loss.has_value()) {
      summary->set_train_loss(*loss);
    }
    if (result_->has_test_loss()) summary->set_test_loss(result_->test_loss());
    if (result_->has_test_accuracy())
      summary->set_test_accuracy(result_->test_accuracy());
    summary->set_model_sha256(result_->model_sha256());
  } else {
    summary->set_steps(steps);
    if (const std::optional<double> loss = TrainLoss(); loss.has_value())
      summary->set_train_loss(*loss);
    if (const auto evaluation = latest_.find(run::MetricRecord::EVAL);
        evaluation != latest_.end()) {
      PutEvaluation(evaluation->second, summary);
    }
  }
  summary->set_data(data_);
  summary->set_data_hash(data_hash_);
  summary->set_stopped(stopped_early_.empty() ? stopped_ : stopped_early_);
  PutEnd(editor_->view(), summary);
}

}  // namespace slackline
