#include "tools/cli/run/running_job.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/status.h"
#include "tools/cli/members/logs.h"

namespace slackline {
namespace {

constexpr absl::Duration kSignalWaitMax = absl::Milliseconds(50);
constexpr absl::Duration kStatusEvery = absl::Milliseconds(250);
// An answer that has not come by then is asked for again.
constexpr absl::Duration kStatusAgain = absl::Seconds(1);
constexpr absl::Duration kKeyLookEvery = absl::Seconds(1);
constexpr int kLogLines = 8;

// Time that does not jump when somebody sets the clock.
absl::Time SteadyNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// How often each server is started again. Without copies of its shards the job
// does not outlive it.
int ServerRestarts(const RunOptions& options,
                   const config::ClusterConfig& config) {
  constexpr int kWithReplicas = 3;
  return options.restart_servers.value_or(config.replicas() > 0 ? kWithReplicas
                                                                : 0);
}

}  // namespace

RunningJob::RunningJob(const RunOptions& options,
                       const config::ClusterConfig& config,
                       std::unique_ptr<Cluster> cluster,
                       CoordinatorClient* client, RunKey* key,
                       SignalWatch* signals, Display* display)
    : options_(options),
      lease_ms_(config.limits().lease_ms()),
      save_timeout_(absl::Milliseconds(config.limits().save_timeout_ms())),
      replicas_(config.replicas()),
      any_server_takes_over_(AnyServerTakesOver(config)),
      cluster_(std::move(cluster)),
      client_(client),
      key_(key),
      signals_(signals),
      display_(display),
      supervisor_(
          {.servers = static_cast<int>(ServerProcesses(config).size()),
           .workers = static_cast<int>(WorkerProcesses(config).size()),
           .worker_restarts_max = options.restart_workers,
           .server_restarts_max = ServerRestarts(options, config),
           .lease = absl::Milliseconds(lease_ms_),
           .any_server_takes_over = any_server_takes_over_,
           .suspends = config.has_checkpoint(),
           .save_timeout =
               absl::Milliseconds(config.limits().save_timeout_ms()),
           // Members wait for one that goes on elsewhere.
           .silence_max =
               absl::Milliseconds(
                   AnyServerTakesOver(config)
                       ? std::max(config.limits().start_timeout_ms(),
                                  config.limits().coordinator_timeout_ms())
                       : config.limits().start_timeout_ms()) +
               absl::Seconds(10)},
          SteadyNow()),
      step_at_(SteadyNow()),
      next_line_(SteadyNow() + kLineEvery) {}

absl::Status RunningJob::Await() {
  while (!supervisor_.Over()) {
    const SignalWatch::Requests requests = signals_->Wait(kSignalWaitMax);
    // A job that has begun since the last look can be suspended.
    if (requests.terminations + requests.hangups > 0) LookNow();
    for (int i = 0; i < requests.interrupts; ++i)
      Say(supervisor_.OnInterrupt(SteadyNow()));
    for (int i = 0; i < requests.terminations; ++i)
      Say(supervisor_.OnTermination(SteadyNow()));
    for (int i = 0; i < requests.hangups; ++i)
      Say(supervisor_.OnHangup(SteadyNow()));
    for (int i = 0; i < requests.quits; ++i)
      Say(supervisor_.OnQuit(SteadyNow()));
    for (const MemberExit& exit : cluster_->Reap()) {
      exits_.push_back({exit, cluster_->LogPath(exit.member)});
      supervisor_.OnExit(exit, SteadyNow());
    }
    for (const std::string& note : cluster_->TakeNotes()) Say(note);
    if (timeline_ != nullptr) Say(timeline_->Take());
    FollowKey(SteadyNow());
    SL_RETURN_IF_ERROR(PollStatus());
    SL_RETURN_IF_ERROR(Perform(supervisor_.Tick(SteadyNow())));
    ShowProgress();
  }
  display_->Redraw({});
  AwaitFiles();
  if (supervisor_.finished()) return absl::OkStatus();
  return absl::AbortedError(supervisor_.Reason());
}

void RunningJob::AwaitFiles() {
  const absl::Time end = SteadyNow() + save_timeout_;
  bool said = false;
  while (true) {
    missing_files_ = cluster_->MissingFiles();
    if (missing_files_.empty()) return;
    if (!said) {
      Say(absl::StrCat(missing_files_, "; tried again for ",
                       absl::FormatDuration(save_timeout_),
                       " (limits { save_timeout_ms: ... }); Ctrl-C ends that"));
    }
    said = true;
    if (SteadyNow() > end || signals_->Wait(kSignalWaitMax).all() > 0) return;
  }
}

void RunningJob::FollowKey(absl::Time now) {
  if (now < next_key_look_) return;
  next_key_look_ = now + kKeyLookEvery;
  const absl::StatusOr<std::string> news = key_->Follow();
  if (!news.ok()) {
    const std::string why(news.status().message());
    if (std::exchange(key_problem_, why) != why) {
      Say(absl::StrCat("warning: ", why,
                       "; the job goes on with the key that it has"));
    }
  } else if (!news->empty()) {
    cluster_->ExchangeKeys();
    Say(*news);
  }
}

void RunningJob::LookNow() {
  const absl::StatusOr<wire::StatusReply> status =
      client_->GetStatus(kStatusAgain);
  if (status.ok()) OnStatus(*status, SteadyNow());
}

void RunningJob::OnStatus(const wire::StatusReply& status, absl::Time now) {
  state_ = status.view().state();
  Note(status, now);
  supervisor_.OnStatus(status, now);
  SayFailedCheckpoint(status);
  progress_.Update(status, now);
  known_ = true;
}

absl::Status RunningJob::PollStatus() {
  const absl::Time now = SteadyNow();
  if (now >= next_ask_) {
    // A full queue means that nobody is there to answer.
    const absl::Status sent = client_->AskStatus();
    if (!sent.ok() && !absl::IsResourceExhausted(sent)) return sent;
    next_ask_ = now + kStatusAgain;
    asked_ = now;
  }
  while (true) {
    SL_ASSIGN_OR_RETURN(const std::optional<wire::StatusReply> status,
                        client_->Receive());
    if (const std::string refused = client_->TakeFinishRefused();
        !refused.empty()) {
      Say(supervisor_.OnFinishRefused(refused, SteadyNow()));
    }
    if (!status.has_value()) return absl::OkStatus();
    OnStatus(*status, now);
    next_ask_ = std::min(next_ask_, asked_ + kStatusEvery);
  }
}

void RunningJob::Note(const wire::StatusReply& status, absl::Time now) {
  const wire::View& view = status.view();
  run_ = view.run();
  ends_early_ = view.end_clock() > 0 || view.change().has_ending();
  for (const run::WorkerStats& worker : status.worker()) {
    if (worker.clock() <= steps_) continue;
    steps_ = worker.clock();
    step_at_ = now;
  }
}

void RunningJob::SayFailedCheckpoint(const wire::StatusReply& status) {
  if (status.checkpoint_failed() == checkpoint_failed_) return;
  checkpoint_failed_ = status.checkpoint_failed();
  if (!checkpoint_failed_.empty()) {
    display_->Print(
        absl::StrCat("warning: no checkpoint: ", checkpoint_failed_));
  }
}

absl::Status RunningJob::Perform(const Supervisor::Effects& effects) {
  for (const MemberExit& death : effects.deaths) Report(death, effects);
  for (const std::string& note : effects.notes) display_->Print(note);
  for (const JobProcess& member : effects.restarts) {
    const absl::StatusOr<bool> started = cluster_->Restart(member);
    supervisor_.OnRestart(member, started.ok(), SteadyNow());
    display_->Print(
        started.ok() && !*started
            ? absl::StrCat(member.ToString(),
                           " is started again once its host answers")
        : started.ok()
            ? absl::StrCat(
                  "started ", member.ToString(), " again; it ",
                  member == supervisor_.host() && !any_server_takes_over_
                      ? "goes on as the coordinator at once, and joins "
                      : "joins ",
                  "when the lease of the old one has run out")
            : std::string(started.status().message()));
  }
  if (!effects.finish_reason.empty()) {
    const absl::Status sent = client_->AskFinish(effects.finish_reason);
    if (!sent.ok() && !absl::IsResourceExhausted(sent)) return sent;
  }
  if (!effects.suspend_reason.empty()) {
    const absl::Status sent = client_->AskSuspend(effects.suspend_reason);
    if (!sent.ok() && !absl::IsResourceExhausted(sent)) return sent;
  }
  if (!effects.stop_reason.empty()) {
    const absl::Status sent = client_->AskStop(effects.stop_reason);
    if (!sent.ok() && !absl::IsResourceExhausted(sent)) return sent;
  }
  if (effects.signal_host != 0)
    cluster_->Signal(supervisor_.host(), effects.signal_host);
  if (effects.signal_others != 0)
    cluster_->SignalAllBut(supervisor_.host(), effects.signal_others);
  return absl::OkStatus();
}

void RunningJob::Report(const MemberExit& death,
                        const Supervisor::Effects& effects) {
  const std::string log = cluster_->LogPath(death.member);
  std::string text = death.ToString();
  const bool starts_again =
      absl::c_linear_search(effects.restarts, death.member);
  if (death.member.worker && state_ == wire::RUNNING && !starts_again) {
    absl::StrAppend(&text, "; the others go on without it after its lease of ",
                    lease_ms_, " ms");
  }
  const bool is_followed =
      any_server_takes_over_
          ? state_ == wire::RUNNING && !supervisor_.coordinator_gone()
          : starts_again;
  if (death.hosted_coordinator && is_followed) {
    absl::StrAppend(&text,
                    any_server_takes_over_
                        ? "; another server goes on as the coordinator when "
                          "its lease in etcd has run out"
                        : "; the others wait for the next coordinator");
  }
  if (!death.member.worker && (!death.hosted_coordinator || is_followed) &&
      state_ == wire::RUNNING && replicas_ > 0) {
    absl::StrAppend(&text,
                    "; where its shards have copies in sync, these serve "
                    "after its lease of ",
                    lease_ms_, " ms");
  }
  absl::StrAppend(&text, "; the end of ", log, ":");
  const std::vector<std::string> lines = LastLines(ReadLogTail(log), kLogLines);
  for (const std::string& line : lines) {
    absl::StrAppend(&text, "\n  | ", line);
  }
  if (lines.empty()) absl::StrAppend(&text, " it is empty");
  display_->Print(text);
}

void RunningJob::ShowProgress() {
  if (!options_.progress || !known_) return;
  for (const std::string& evaluation : progress_.TakeEvaluations()) {
    display_->Print(evaluation);
  }
  if (display_->terminal()) {
    display_->Redraw(progress_.Block(display_->width()));
    return;
  }
  const absl::Time now = SteadyNow();
  if (now < next_line_) return;
  next_line_ = now + kLineEvery;
  display_->Print(progress_.Line());
}

absl::Duration RunningJob::SinceLastStep() const {
  return SteadyNow() - step_at_;
}

}  // namespace slackline
