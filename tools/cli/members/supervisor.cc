#include "tools/cli/members/supervisor.h"

#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/membership/end_status.h"
#include "common/process/interrupted_by.h"

namespace slackline {
namespace {

// When a job fails, its processes end too, perhaps before we hear of it. A
// death counts as one of its own if the job still runs this much later.
constexpr absl::Duration kJudgeAfter = absl::Milliseconds(400);
// Without news from the coordinator a death counts after this.
constexpr absl::Duration kJudgeUnheard = absl::Seconds(1);
// Exit code 75 says that the job has ended; the coordinator's host may take its
// time to say so, too.
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
constexpr char kSecondSignal[] =
    "stopped by a second SIGTERM before its checkpoint was there";

}  // namespace

std::string JobProcess::ToString() const {
  return absl::StrCat(worker ? "worker " : "server ", index);
}

std::string MemberExit::ToString() const {
  return absl::StrCat(
      member.ToString(), " (pid ", pid, host.empty() ? "" : " on ", host, ") ",
      lost_with_host ? "was lost with the connection to its host"
                     : status.ToString());
}

Supervisor::Supervisor(const Options& options, absl::Time now)
    : options_(options),
      running_(options.servers + options.workers),
      heard_(now) {
  for (int i = 0; i < options.servers; ++i) servers_.insert(i);
}

void Supervisor::Ender::TerminateBy(absl::Time time) {
  if (!begun) terminate_at = std::min(terminate_at, time);
}

void Supervisor::Ender::KillAt(absl::Time time) {
  terminate_at = absl::InfiniteFuture();
  kill_at = time;
}

int Supervisor::Ender::Due(bool twice, absl::Time now) {
  if (now >= terminate_at) {
    begun = true;
    terminate_at = absl::InfiniteFuture();
    if (twice) terminate_again_at = now + kTerminateAgainAfter;
    kill_at = now + kKillAfter;
    return SIGTERM;
  }
  if (now >= kill_at) {
    begun = true;
    terminate_again_at = absl::InfiniteFuture();
    kill_at = now + kKillAfter;
    return SIGKILL;
  }
  if (now < terminate_again_at) return 0;
  terminate_again_at = absl::InfiniteFuture();
  return SIGTERM;
}

void Supervisor::BeginEnding(absl::Duration patience, absl::Time now) {
  ending_ = true;
  host_.TerminateBy(now + patience);
  others_.TerminateBy(now + patience);
}

void Supervisor::OnStatus(const wire::StatusReply& status, absl::Time now) {
  heard_ = now;
  ever_heard_ = true;
  if (options_.any_server_takes_over)
    coordinator_ = status.coordinator_server();
  if (job_ended()) return;
  state_ = status.view().state();
  ran_ = ran_ || state_ == wire::RUNNING;
  if (state_ == wire::FAILED) end_ = status.view().end();
  if (job_ended()) {
    // The host waits up to a lease for members that are gone, then for the
    // disk: for the last checkpoint, and for the summary.
    ending_ = true;
    say_writing_at_ = now + options_.lease + kEndPatience;
    others_.TerminateBy(say_writing_at_);
    host_.TerminateBy(say_writing_at_ + 2 * options_.save_timeout);
  }
}

void Supervisor::OnExit(const MemberExit& ended, absl::Time now) {
  MemberExit exit = ended;
  --running_;
  if (!exit.member.worker) {
    servers_.erase(exit.member.index);
    // Of several that go between two statuses, the last one has the last word.
    exit.hosted_coordinator =
        exit.member == host() ||
        (options_.any_server_takes_over && state_ == wire::RUNNING &&
         !killing() && servers_.empty() && !AServerStartsAgain());
    if (exit.hosted_coordinator) coordinator_ = exit.member.index;
  }
  lost_a_process_ |= exit.status.signal != 0 && !killing();
  const bool may_be_drained = exit.status.ok() && !exit.member.worker &&
                              !exit.hosted_coordinator &&
                              state_ == wire::RUNNING && !ending_;
  // A program of somebody else may end well without ever having joined.
  const bool may_be_missing = exit.status.ok() && exit.member.worker &&
                              state_ != wire::RUNNING && !job_ended() &&
                              !ending_;
  // Who goes when the job has ended has not died of anything; who was there
  // before it in its place may have.
  const bool goes_along =
      job_ended() && exit.status.signal == 0 && !exit.hosted_coordinator;
  if ((!exit.status.ok() && !goes_along) || may_be_drained || may_be_missing) {
    suspects_.push_back({exit, now});
  }
  if (goes_along) NoteFollower(exit);
  if (!exit.hosted_coordinator) return;
  // It knows how the job has ended, and says so by its exit code.
  if (exit.status.ok() && state_ != wire::FAILED) state_ = wire::FINISHED;
  if (exit.status.signal == 0 && exit.status.code == kExitSuspended) {
    state_ = wire::FAILED;
    end_.set_cause(wire::JobEnd::SUSPENDED);
  }
  if (!StartsAgain(exit) && !GoesOnElsewhere()) GiveUpCoordinator(now);
}

bool Supervisor::AServerStartsAgain() const {
  return std::any_of(
      suspects_.begin(), suspects_.end(), [this](const Suspect& suspect) {
        return !suspect.exit.member.worker && !suspect.exit.status.ok() &&
               StartsAgain(suspect.exit);
      });
}

void Supervisor::GiveUpCoordinator(absl::Time now) {
  coordinator_gone_ = true;
  BeginEnding(kOrphanPatience, now);
}

void Supervisor::OnRestart(const JobProcess& member, bool running,
                           absl::Time now) {
  ++restarts_[member];
  if (running) ++running_;
  if (running && !member.worker) servers_.insert(member.index);
  if (running && killed_host_.has_value() && killed_host_->member == member)
    killed_host_.reset();
  if (!running && member == host() && !GoesOnElsewhere())
    GiveUpCoordinator(now);
}

std::string Supervisor::OnInterrupt(absl::Time now) {
  interrupted_ = true;
  // Before it runs, there is nothing to keep.
  if (state_ != wire::RUNNING || finishing_ || suspending_ || stopping_)
    return OnQuit(now);
  finishing_ = true;
  next_finish_ = now;
  return "interrupted: ending the job early, with its model; once more to stop "
         "it at once, without";
}

std::string Supervisor::OnHangup(absl::Time now) {
  if (suspending_ || stopping_) return "";
  termination_.signal = "SIGHUP";
  return OnTermination(now);
}

std::string Supervisor::OnTermination(absl::Time now) {
  if (suspending_ && !stopping_ && state_ == wire::RUNNING) {
    suspending_ = false;
    termination_.by_second = true;
    StopAtOnce(now);
    return "SIGTERM again: stopping the job without a checkpoint; once more to "
           "kill it";
  }
  if (!options_.suspends && !stopping_ && !job_ended()) {
    termination_.without_checkpoints = true;
    StopAtOnce(now);
    return absl::StrCat(
        termination_.signal,
        ": stopping the job at once, and nothing is kept to go on from, since "
        "its config has no checkpoint block; once more to kill it");
  }
  if (!options_.suspends || suspending_ || stopping_ ||
      state_ == wire::FINISHED) {
    return OnQuit(now);
  }
  suspending_ = true;
  if (state_ == wire::RUNNING && !ending_) {
    next_suspend_ = now;
    return absl::StrCat(termination_.signal,
                        ": taking a checkpoint, then ending the job; SIGTERM "
                        "again stops it at once, without");
  }
  StopAtOnce(now);
  return absl::StrCat(termination_.signal,
                      ": no checkpoint can be taken now; stopping the job; "
                      "once more to kill it");
}

std::string Supervisor::OnQuit(absl::Time now) {
  suspending_ = false;
  if (stopping_) {
    host_.KillAt(now);
    others_.KillAt(now);
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

std::string Supervisor::StopReason() const {
  if (suspending_)
    return absl::StrCat("slackline run", kInterruptedBy, termination_.signal);
  if (!stopping_) return given_up_reason_;
  if (termination_.without_checkpoints) {
    return absl::StrCat(
        termination_.signal,
        " to slackline run stopped the job, and nothing was kept to go on "
        "from, since its config has no checkpoint block; with checkpoint {} "
        "it takes a checkpoint first, and --resume goes on from there");
  }
  return termination_.by_second ? kSecondSignal : kInterrupted;
}

void Supervisor::StopAtOnce(absl::Time now) {
  stopping_ = true;
  next_stop_ = now;
  BeginEnding(ever_heard_ ? kEndPatience : kUnheardPatience, now);
}

bool Supervisor::StartsAgain(const MemberExit& exit) const {
  const JobProcess& member = exit.member;
  const auto found = restarts_.find(member);
  const int restarts = found == restarts_.end() ? 0 : found->second;
  if (member.worker) return restarts < options_.worker_restarts_max;
  if (restarts >= options_.server_restarts_max) return false;
  // A server that cannot begin with the others would fail again.
  if (!exit.hosted_coordinator) return state_ == wire::RUNNING;
  // So would a coordinator that has ended by itself. One that was killed at the
  // job's end may have had a summary to write.
  return exit.status.signal != 0 && !host_.begun &&
         (job_ended() || (state_ == wire::RUNNING && !ending_));
}

void Supervisor::JudgeDeath(const MemberExit& exit, absl::Time now,
                            Effects* effects) {
  // Whoever has ended because it was told to has not died. A coordinator has a
  // word to say all the same.
  if (!killing() || exit.hosted_coordinator) dead_.push_back(exit);
  if (killing()) return;
  if (exit.hosted_coordinator && exit.status.signal != 0) killed_host_ = exit;
  // A job that ends takes all its processes along. Then only a crash is worth
  // a word, and a coordinator that has left none about why the others go.
  const bool follows = job_ended() || stopping_ || !given_up_reason_.empty() ||
                       (coordinator_gone_ &&
                        (!exit.hosted_coordinator || !exit.error_line.empty()));
  if (follows && exit.status.signal == 0) {
    NoteFollower(exit);
    return;
  }
  effects->deaths.push_back(exit);
  if (ending_ && !exit.hosted_coordinator) return;
  if (StartsAgain(exit)) {
    effects->restarts.push_back(exit.member);
    return;
  }
  if (ending_) return;
  if (state_ == wire::RUNNING) return;  // The coordinator decides.
  given_up_reason_ = absl::StrCat(
      exit.ToString(), " before the job had started",
      exit.error_line.empty() ? "" : absl::StrCat(": ", exit.error_line));
  next_stop_ = now;
  BeginEnding(ever_heard_ ? kEndPatience : kUnheardPatience, now);
}

void Supervisor::NoteFollower(const MemberExit& exit) {
  if (exit.member.worker && !exit.status.ok() && state_ == wire::FINISHED &&
      !killing()) {
    failed_after_end_.push_back(exit);
  }
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
    // While no coordinator is there, no news is to come.
    const bool is_awaited =
        suspect.exit.hosted_coordinator && StartsAgain(suspect.exit);
    const bool decided = job_ended() || ending_ || is_awaited ||
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
    const std::string silence =
        absl::StrCat(absl::ToInt64Seconds(now - heard_), " s");
    given_up_reason_ =
        host_runs()
            ? absl::StrCat(host().ToString(),
                           " runs, but its coordinator has not answered for ",
                           silence, "; look at its log")
            : absl::StrCat("no coordinator has answered for ", silence,
                           ", and ", host().ToString(),
                           " had it last and has ended; look at the logs of "
                           "the servers");
    BeginEnding(absl::ZeroDuration(), now);
  }
  if (now >= next_finish_ && !stopping_ && !job_ended()) {
    effects.finish_reason = kInterrupted;
    next_finish_ = now + kStopRepeat;
  }
  if (now >= next_suspend_ && !stopping_ && !job_ended()) {
    effects.suspend_reason =
        absl::StrCat("slackline run", kInterruptedBy, termination_.signal);
    next_suspend_ = now + kStopRepeat;
  }
  if (now >= next_stop_ && !job_ended()) {
    effects.stop_reason = StopReason();
    next_stop_ = now + kStopRepeat;
  }
  EndProcesses(now, &effects);
  return effects;
}

void Supervisor::EndProcesses(absl::Time now, Effects* effects) {
  const int hosts = host_runs() ? 1 : 0;
  const int others = running_ - hosts;
  int told = 0;  // For the first time.
  const auto end = [&](int count, Ender* ender) {
    const bool begun = ender->begun;
    const int signal = count == 0 ? 0 : ender->Due(options_.suspends, now);
    if (!begun && signal == SIGTERM) told += count;
    return signal;
  };
  effects->signal_host = end(hosts, &host_);
  effects->signal_others = end(others, &others_);
  if (told > 0) {
    effects->notes.push_back(
        absl::StrCat(told, told == 1 ? " process has" : " processes have",
                     " not ended yet; sending SIGTERM"));
  }
  if (hosts == 0 || host_.begun || stopping_ || now < say_writing_at_) return;
  say_writing_at_ = absl::InfiniteFuture();
  effects->notes.push_back(absl::StrCat(
      "the job has ended, and ", host().ToString(),
      " still writes its last checkpoint or its summary; it has up to ",
      absl::FormatDuration(options_.save_timeout),
      " for each (limits { save_timeout_ms: ... }); Ctrl-C ends that"));
}

std::string Supervisor::Reason() const {
  if (!end_.reason().empty()) return end_.reason();
  // What has ended a job that ran is worth more than that it was to end.
  if (stopping_ && !(suspending_ && ran_)) return StopReason();
  if (!given_up_reason_.empty()) return given_up_reason_;
  // The coordinator may have failed the job and gone between two status
  // replies; then its log says why.
  for (auto exit = dead_.rbegin(); exit != dead_.rend(); ++exit) {
    if (exit->hosted_coordinator && exit->status.signal == 0 &&
        !exit->error_line.empty()) {
      return exit->error_line;
    }
  }
  if (dead_.empty()) {
    return "all processes have ended, but the coordinator never said that the "
           "job had finished; look at the logs";
  }
  // A job that has lost its servers has got over workers that died, and over
  // whoever has come back.
  const auto ended_it =
      std::find_if(dead_.begin(), dead_.end(), [this](const MemberExit& exit) {
        return !killed_host_.has_value() ||
               (!exit.member.worker && restarts_.count(exit.member) == 0);
      });
  const MemberExit first = ended_it != dead_.end() ? *ended_it : *killed_host_;
  return absl::StrCat(
      first.ToString(),
      first.error_line.empty() ? "" : absl::StrCat(": ", first.error_line));
}

wire::JobEnd::Cause Supervisor::Cause() const {
  if (end_.cause() != wire::JobEnd::CAUSE_UNSPECIFIED) return end_.cause();
  const bool ran = state_ == wire::RUNNING || job_ended();
  if (stopping_ && !(suspending_ && ran)) return wire::JobEnd::STOPPED;
  return ran ? wire::JobEnd::SERVER_LOST : wire::JobEnd::NOT_FORMED;
}

}  // namespace slackline
