// Supervisor: what `slackline run` does about its processes, from their start
// until none is left: who is reported dead, drained or started again, when the
// job is given up, and why it has failed.
//
// The coordinator is in the process of a server, its host: of server 0, unless
// any server takes over. When the host is killed while the job runs, and may be
// started again, the job goes on: the coordinator has kept what the next one
// has to know. If it ends by itself, with whatever exit code, the job has
// ended, and so has the coordinator.
//
// Where any server takes over, a running job outlives its host as long as
// another server runs, however the host has ended, but for an exit code that
// says that the job has ended. Then the coordinator's statuses say which server
// is the host. A server that was the host and is not any more is as the others.
//
// Deterministic state machine: no processes, sockets or clocks. The time and
// what happened go in, what to do comes out. Thread-compatible.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "tools/cli/exit_status.h"

namespace slackline {

// A process of the job.
struct JobProcess {
  bool worker = false;
  int index = 0;                 // Server index or rank.
  std::string ToString() const;  // "worker 2"
  auto operator<=>(const JobProcess&) const = default;
};

struct MemberExit {
  JobProcess member;
  int pid = 0;
  ExitStatus status;
  std::string error_line;  // What its log says about it; may be empty.
  std::string host = {};   // Where it ran; empty: here.
  // Nobody knows how it ended: the connection to its host did, and error_line
  // says how.
  bool lost_with_host = false;
  // The Supervisor's to say: the coordinator was in this process.
  bool hosted_coordinator = false;
  // "worker 2 (pid 7) was killed by signal 9 (SIGKILL)"
  std::string ToString() const;
};

class Supervisor {
 public:
  struct Options {
    int servers = 1;  // All of them run when Start() is called.
    int workers = 1;
    // Of each.
    int worker_restarts_max = 0;
    int server_restarts_max = 0;
    absl::Duration lease = absl::Seconds(5);
    // As AnyServerTakesOver() of the config.
    bool any_server_takes_over = false;
    // The job has checkpoints: the first SIGTERM suspends it.
    bool suspends = false;
    // Within each of these the host completes the last checkpoint of a job that
    // has ended, and writes its summary.
    absl::Duration save_timeout = absl::Minutes(10);
    // A coordinator that does not answer for so long is given up.
    absl::Duration silence_max = absl::Seconds(70);
  };
  struct Effects {
    std::vector<MemberExit> deaths;    // To be reported, with the log.
    std::vector<JobProcess> restarts;  // To be started again.
    std::vector<std::string> notes;    // Sentences for people.
    // Not empty: ask the coordinator to end the job early, after a checkpoint,
    // or at once.
    std::string finish_reason;
    std::string suspend_reason;
    std::string stop_reason;
    // Not 0: send it to host(), and to all others that still run.
    int signal_host = 0;
    int signal_others = 0;
  };

  Supervisor(const Options& options, absl::Time now);

  void OnStatus(const wire::StatusReply& status, absl::Time now);
  void OnExit(const MemberExit& ended, absl::Time now);
  // A process of `restarts` could not be started, or runs again.
  void OnRestart(const JobProcess& member, bool running, absl::Time now);
  // The first ends a running job early, with its model; the next stops it at
  // once, without; the next kills. Returns what the user should know.
  std::string OnInterrupt(absl::Time now);
  // The first suspends a job with checkpoints. If it does not run, or nobody
  // is left to take one, that means to stop it at once, where it is. A job
  // without checkpoints is stopped at once, too, and its reason says so. Once
  // the job has ended, and for the second, this is OnQuit().
  std::string OnTermination(absl::Time now);
  // As OnTermination(), once: a session that ends says so more than once.
  std::string OnHangup(absl::Time now);
  // As the second interrupt, or the one after it.
  std::string OnQuit(absl::Time now);
  // The coordinator does not end the job early, and says why.
  std::string OnFinishRefused(const std::string& why, absl::Time now);
  // To be called every few hundredths of a second.
  Effects Tick(absl::Time now);

  // The server that has the coordinator, or had it last.
  JobProcess host() const { return {.worker = false, .index = coordinator_}; }
  // The host has ended, and no other coordinator follows.
  bool coordinator_gone() const { return coordinator_gone_; }
  // The user has asked for an end, whether or not the job came to its own
  // first.
  bool asked_to_end() const {
    return finishing_ || (stopping_ && !suspending_);
  }
  // SIGTERM has asked that the job be suspended, and nobody for another end.
  bool suspending() const { return suspending_ && !finishing_; }
  // The user has, by Ctrl-C.
  bool interrupted() const { return interrupted_; }
  // No process is left.
  bool Over() const { return running_ == 0 && suspects_.empty(); }
  // Once Over(): the coordinator has declared the job finished.
  bool finished() const { return state_ == wire::FINISHED; }
  // Once Over() and not finished(): the one sentence of why.
  std::string Reason() const;
  // The same in a word, of a job without a summary.
  wire::JobEnd::Cause Cause() const;
  // Whether the job was seen to run, or was given up by this program.
  bool ran() const { return ran_; }
  bool gave_up() const { return !given_up_reason_.empty(); }
  // Processes that have ended badly, in order.
  const std::vector<MemberExit>& dead() const { return dead_; }
  // Workers that ended badly, by themselves, once the job had finished: what
  // their programs did after that went wrong.
  const std::vector<MemberExit>& failed_after_end() const {
    return failed_after_end_;
  }
  // A signal has ended one of them, and it was not of this program.
  bool lost_a_process() const { return lost_a_process_; }

 private:
  struct Suspect {
    MemberExit exit;
    absl::Time at;
  };
  // How the job was asked to be suspended.
  struct Termination {
    const char* signal = "SIGTERM";
    // By a second one it was stopped at once, in place of a checkpoint;
    bool by_second = false;
    // by the first one, since the config has no checkpoint block.
    bool without_checkpoints = false;
  };
  // When processes that still run are signalled.
  struct Ender {
    void TerminateBy(absl::Time time);
    void KillAt(absl::Time time);
    // The signal that is due; 0: none. `twice`: so often they are told to end
    // before they are killed.
    int Due(bool twice, absl::Time now);

    bool begun = false;  // The first signal was sent.
    absl::Time terminate_at = absl::InfiniteFuture();
    absl::Time terminate_again_at = absl::InfiniteFuture();
    absl::Time kill_at = absl::InfiniteFuture();
  };
  // Ends the wait for the job: whoever still runs has `patience` to go.
  void BeginEnding(absl::Duration patience, absl::Time now);
  void EndProcesses(absl::Time now, Effects* effects);
  // Deaths are of our own making.
  bool killing() const { return host_.begun || others_.begun; }
  void StopAtOnce(absl::Time now);
  // For the coordinator.
  std::string StopReason() const;
  void JudgeSuspects(absl::Time now, Effects* effects);
  void JudgeDeath(const MemberExit& exit, absl::Time now, Effects* effects);
  void JudgeLeaver(const MemberExit& exit, Effects* effects) const;
  // Of one that goes when the job has ended, or with it.
  void NoteFollower(const MemberExit& exit);
  // Whether a process that has died while the job goes on is started again.
  bool StartsAgain(const MemberExit& exit) const;
  // No other coordinator follows.
  void GiveUpCoordinator(absl::Time now);
  bool host_runs() const { return servers_.count(coordinator_) > 0; }
  // While no server runs: one that has ended is started again.
  bool AServerStartsAgain() const;
  // The host has ended, and another server may go on as the coordinator.
  bool GoesOnElsewhere() const {
    return options_.any_server_takes_over && state_ == wire::RUNNING &&
           !ending_ && (!servers_.empty() || AServerStartsAgain());
  }
  bool job_ended() const {
    return state_ == wire::FINISHED || state_ == wire::FAILED;
  }

  const Options options_;
  int running_ = 0;
  std::set<int> servers_;  // Of these the servers.
  int coordinator_ = 0;    // The server that has it, as far as is known.
  wire::JobState state_ = wire::JOB_STATE_UNSPECIFIED;
  wire::JobEnd end_;             // As the coordinator says it, of a failed job.
  std::string given_up_reason_;  // As we say it.
  absl::Time heard_;             // The last status, or the start.
  bool ever_heard_ = false;
  bool ran_ = false;
  bool lost_a_process_ = false;
  std::vector<Suspect> suspects_;  // Ended, not yet judged.
  std::vector<MemberExit> dead_;   // Ended badly, in order.
  // The coordinator's, killed by somebody else, and not started again.
  std::optional<MemberExit> killed_host_;
  std::vector<MemberExit> failed_after_end_;
  std::map<JobProcess, int> restarts_;
  bool interrupted_ = false;
  bool finishing_ = false;  // The job is to end early.
  // After a checkpoint; or at once, and then it can go on from an earlier one.
  bool suspending_ = false;
  bool stopping_ = false;  // At once.
  Termination termination_;
  bool coordinator_gone_ = false;
  bool ending_ = false;
  absl::Time next_finish_ = absl::InfiniteFuture();
  absl::Time next_suspend_ = absl::InfiniteFuture();
  absl::Time next_stop_ = absl::InfiniteFuture();
  // Since the job has ended; then that the host still writes is said.
  absl::Time say_writing_at_ = absl::InfiniteFuture();
  Ender host_;
  Ender others_;
};

}  // namespace slackline
