#include "tools/cli/run/supervisor.h"

#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/membership/end_status.h"

namespace slackline {
namespace {

// When a job fails, its processes end too, perhaps before we hear of it. A
// death counts as one of its own if the job still runs this much later.
constexpr absl::Duration kJudgeAfter = absl::Milliseconds(400);
// Without news from the coordinator a death counts after this.
constexpr absl::Duration kJudgeUnheard = absl::Seconds(1);
// Exit code 75 says that the job has ended; server 0 may take its time to say
// so, too.
constexpr absl::Duration kJudgeSuspended = absl::Seconds(10);
constexpr absl::Duration kStopRepeat = absl::Milliseconds(500);
// What is left to do after the job's end, beyond the wait for lost members.
constexpr absl::Duration kEndPatience = absl::Seconds(5);
// Without a coordinator the others can only give up.
constexpr absl::Duration kOrphanPatience = absl::Seconds(3);
constexpr absl::Duration kUnheardPatience = absl::Seconds(1);
// From SIGTERM to the second one, without which a member would go on until its
// job has a checkpoint, and to SIGKILL.
constexpr absl::Duration kTerminateAgainAfter = absl::Milliseconds(500);
constexpr absl::Duration kKillAfter = absl::Seconds(2);

constexpr char kInterrupted[] = "interrupted by the user";
constexpr char kTerminated[] = "slackline run was interrupted by SIGTERM";

}  // namespace

std::string Member::ToString() const {
  return absl::StrCat(worker ? "worker " : "server ", index);
}

std::string MemberExit::ToString() const {
  return absl::StrCat(member.ToString(), " (pid ", pid, ") ",
                      status.ToString());
}

Supervisor::Supervisor(const Options& options, absl::Time now)
    : options_(options),
      running_(options.servers + options.workers),
      heard_(now) {}

void Supervisor::BeginEnding(absl::Duration patience, absl::Time now) {
  ending_ = true;
  if (!killing_) terminate_at_ = std::min(terminate_at_, now + patience);
}

void Supervisor::OnStatus(const wire::StatusReply& status, absl::Time now) {
  heard_ = now;
  ever_heard_ = true;
  if (job_ended()) return;
  state_ = status.view().state();
  ran_ = ran_ || state_ == wire::RUNNING;
  if (state_ == wire::FAILED) end_ = status.view().end();
  if (job_ended()) {
    // Server 0 waits up to a lease for members that are gone.
    BeginEnding(options_.lease + kEndPatience, now);
  }
}

void Supervisor::OnExit(const MemberExit& exit, absl::Time now) {
  --running_;
  lost_a_process_ |= exit.status.signal != 0 && !killing_;
  const bool may_be_drained = exit.status.ok() && !exit.member.worker &&
                              !exit.member.hosts_coordinator() &&
                              state_ == wire::RUNNING && !ending_;
  // A program of somebody else may end well without ever having joined.
  const bool may_be_missing = exit.status.ok() && exit.member.worker &&
                              state_ != wire::RUNNING && !job_ended() &&
                              !ending_;
  if (!exit.status.ok() || may_be_drained || may_be_missing) {
    suspects_.push_back({exit, now});
  }
  if (!exit.member.hosts_coordinator()) return;
  coordinator_gone_ = true;
  // It knows how the job has ended, and says so by its exit code.
  if (exit.status.ok() && state_ != wire::FAILED) state_ = wire::FINISHED;
  if (exit.status.signal == 0 && exit.status.code == kExitSuspended) {
    state_ = wire::FAILED;
    end_.set_cause(wire::JobEnd::SUSPENDED);
  }
  BeginEnding(kOrphanPatience, now);
}

void Supervisor::OnRestart(const Member& worker, bool running) {
  ++restarts_[worker];
  if (running) ++running_;
}

std::string Supervisor::OnInterrupt(absl::Time now) {
  // Before it runs, there is nothing to keep.
  if (state_ != wire::RUNNING || finishing_ || suspending_ || stopping_)
    return OnHangup(now);
  finishing_ = true;
  next_finish_ = now;
  return "interrupted: ending the job early, with its model; once more to stop "
         "it at once, without";
}

std::string Supervisor::OnTermination(absl::Time now) {
  const bool may_suspend = options_.suspends && state_ == wire::RUNNING &&
                           !suspending_ && !stopping_ && !ending_;
  if (!may_suspend) return OnHangup(now);
  suspending_ = true;
  next_suspend_ = now;
  return "SIGTERM: taking a checkpoint, then ending the job; a second one "
         "stops "
         "it at once";
}

std::string Supervisor::OnHangup(absl::Time now) {
  if (stopping_) {
    terminate_at_ = absl::InfiniteFuture();
    kill_at_ = now;
    return "interrupted again: killing all processes";
  }
  StopAtOnce(now);
  return "interrupted: stopping the job; once more to kill it";
}

std::string Supervisor::OnFinishRefused(const std::string& why,
                                        absl::Time now) {
  if (!finishing_ || stopping_ || job_ended()) return "";
  StopAtOnce(now);
  return absl::StrCat(why, "; stopping it at once; once more to kill it");
}

void Supervisor::StopAtOnce(absl::Time now) {
  stopping_ = true;
  next_stop_ = now;
  BeginEnding(ever_heard_ ? kEndPatience : kUnheardPatience, now);
}

void Supervisor::JudgeDeath(const MemberExit& exit, absl::Time now,
                            Effects* effects) {
  dead_.push_back(exit);
  if (killing_) return;
  // A job that ends takes all its processes along. Then only a crash is worth
  // a word, and a coordinator that has left none about why the others go.
  const bool follows =
      job_ended() || stopping_ || !given_up_reason_.empty() ||
      (coordinator_gone_ &&
       (!exit.member.hosts_coordinator() || !exit.error_line.empty()));
  if (follows && exit.status.signal == 0) return;
  effects->deaths.push_back(exit);
  if (ending_) return;
  if (exit.member.worker && restarts_[exit.member] < options_.restarts_max) {
    effects->restarts.push_back(exit.member);
    return;
  }
  if (state_ == wire::RUNNING) return;  // The coordinator decides.
  given_up_reason_ = absl::StrCat(
      exit.ToString(), " before the job had started",
      exit.error_line.empty() ? "" : absl::StrCat(": ", exit.error_line));
  next_stop_ = now;
  BeginEnding(ever_heard_ ? kEndPatience : kUnheardPatience, now);
}

void Supervisor::JudgeLeaver(const MemberExit& exit, Effects* effects) const {
  if (ending_ || state_ != wire::RUNNING || exit.member.worker) return;
  effects->notes.push_back(
      absl::StrCat(exit.member.ToString(), " was drained and has left"));
}

void Supervisor::JudgeSuspects(absl::Time now, Effects* effects) {
  std::vector<Suspect> undecided;
  for (const Suspect& suspect : suspects_) {
    const ExitStatus& status = suspect.exit.status;
    const bool suspended = status.signal == 0 && status.code == kExitSuspended;
    const bool decided = job_ended() || ending_ ||
                         (suspended ? now >= suspect.at + kJudgeSuspended
                                    : heard_ >= suspect.at + kJudgeAfter ||
                                          now >= suspect.at + kJudgeUnheard);
    const bool may_leave = suspect.exit.status.ok() &&
                           (!suspect.exit.member.worker || job_ended() ||
                            ending_ || state_ == wire::RUNNING);
    if (decided && may_leave) {
      JudgeLeaver(suspect.exit, effects);
    } else if (decided) {
      JudgeDeath(suspect.exit, now, effects);
    } else {
      undecided.push_back(suspect);
    }
  }
  suspects_ = std::move(undecided);
}

Supervisor::Effects Supervisor::Tick(absl::Time now) {
  Effects effects;
  JudgeSuspects(now, &effects);
  if (!ending_ && now - heard_ > options_.silence_max) {
    given_up_reason_ =
        absl::StrCat("server 0 runs, but its coordinator has not answered for ",
                     absl::ToInt64Seconds(now - heard_), " s; look at its log");
    BeginEnding(absl::ZeroDuration(), now);
  }
  if (now >= next_finish_ && !stopping_ && !job_ended()) {
    effects.finish_reason = kInterrupted;
    next_finish_ = now + kStopRepeat;
  }
  if (now >= next_suspend_ && !stopping_ && !job_ended()) {
    effects.suspend_reason = kTerminated;
    next_suspend_ = now + kStopRepeat;
  }
  if (now >= next_stop_ && !job_ended()) {
    effects.stop_reason = stopping_ ? kInterrupted : given_up_reason_;
    next_stop_ = now + kStopRepeat;
  }
  if (running_ == 0) return effects;
  if (now >= terminate_at_) {
    effects.signal = SIGTERM;
    effects.notes.push_back(absl::StrCat(
        running_, running_ == 1 ? " process has" : " processes have",
        " not ended yet; sending SIGTERM"));
    terminate_at_ = absl::InfiniteFuture();
    if (options_.suspends) terminate_again_at_ = now + kTerminateAgainAfter;
    kill_at_ = now + kKillAfter;
    killing_ = true;
  } else if (now >= terminate_again_at_ && now < kill_at_) {
    effects.signal = SIGTERM;
    terminate_again_at_ = absl::InfiniteFuture();
  } else if (now >= kill_at_) {
    effects.signal = SIGKILL;
    kill_at_ = now + kKillAfter;
    killing_ = true;
  }
  return effects;
}

std::string Supervisor::Reason() const {
  if (!end_.reason().empty()) return end_.reason();
  if (stopping_) return kInterrupted;
  if (!given_up_reason_.empty()) return given_up_reason_;
  // The coordinator may have failed the job and gone between two status
  // replies; then its log says why.
  for (const MemberExit& exit : dead_) {
    if (exit.member.hosts_coordinator() && exit.status.signal == 0 &&
        !exit.error_line.empty()) {
      return exit.error_line;
    }
  }
  if (dead_.empty()) {
    return "all processes have ended, but the coordinator never said that the "
           "job had finished; look at the logs";
  }
  const MemberExit& first = dead_.front();
  return absl::StrCat(
      first.ToString(),
      first.error_line.empty() ? "" : absl::StrCat(": ", first.error_line));
}

wire::JobEnd::Cause Supervisor::Cause() const {
  if (end_.cause() != wire::JobEnd::CAUSE_UNSPECIFIED) return end_.cause();
  if (stopping_) return wire::JobEnd::STOPPED;
  return state_ == wire::RUNNING || job_ended() ? wire::JobEnd::SERVER_LOST
                                                : wire::JobEnd::NOT_FORMED;
}

}  // namespace slackline
