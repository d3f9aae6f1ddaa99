// ServerCore: what a server decides beside its shards. It stays a member of the
// job, hands views to its shard threads and their statistics to the
// coordinator, and knows when and how it leaves:
//
// | what happens              | what it does          | how it ends       |
// | ------------------------- | --------------------- | ----------------- |
// | the last view             | sends the last counts | finished, failed  |
// | drained, nothing is here  | leaves                | left              |
// | has to end soon           | is drained, leaves    | left              |
// | - and cannot be drained   | wants a checkpoint    | failed: suspended |
// | interrupted, owns nothing | leaves                | left              |
// | interrupted, owns shards  | stops the job         | failed            |
// | interrupted, no view yet  | leaves, says why      | gave up           |
// | a thread of it has failed | leaves, says why      | gave up           |
// | its lease ran out         | -                     | gave up           |
//
// Who hosts the coordinator cannot be drained, and counts as who owns shards.
//
// A server takes its shards with it, so a job that has shards there ends when
// it leaves; the coordinator decides that.
//
// Deterministic state machine: no sockets, threads, clocks or randomness.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/membership/member_core.h"

namespace slackline {

class ServerCore {
 public:
  struct Options {
    MemberCore::Options member;
    int threads = 1;  // Shard threads. At least 1.
    // How often statistics are collected from the shard threads.
    absl::Duration stats_interval = absl::Milliseconds(500);
    // How long it waits for the last ones. Shard threads answer between two
    // messages; large updates take milliseconds.
    absl::Duration last_stats_max = absl::Seconds(2);
    // How long it waits for the coordinator when it wants to leave.
    absl::Duration leave_max = absl::Seconds(3);
    // It may have the coordinator before it has joined: its job is the one that
    // was kept.
    bool may_host_before_joining = false;
  };
  struct End {
    enum class Kind { kFinished, kFailed, kLeft, kGaveUp };
    Kind kind{};
    absl::Status status;  // OK if it finished or left.
  };
  struct Effects {
    std::optional<size_t> look_at;              // As in MemberCore::Effects.
    std::optional<wire::TryLinks> try_links;    // As in MemberCore::Effects.
    std::vector<wire::Inspection> inspections;  // To AnswerInspection().
    std::vector<Message> sends;                 // To the coordinator.
    std::shared_ptr<const View> view;           // For the shard threads.
    // All shard threads are to be asked for statistics, after they were given
    // `view`. OnStats() takes the answers.
    bool ask_stats = false;
    std::optional<End> end;        // Nothing is to be called after this.
    std::vector<std::string> log;  // Sentences for people.
  };

  explicit ServerCore(const Options& options)
      : options_(options),
        member_(options.member),
        thread_stats_(static_cast<size_t>(options.threads)) {}

  void Start(absl::Time now, Effects* effects);
  // The message is from the coordinator.
  void OnMessage(const Message& message, absl::Time now, Effects* effects);
  void OnLink(LinkState link, absl::Time now) { member_.OnLink(link, now); }
  // Passes it on to MemberCore::OnLinks().
  void OnLinks(const wire::LinksTried& tried, absl::Time now, Effects* effects);
  // Passes it on to MemberCore::AnswerInspection().
  void AnswerInspection(wire::Inspected inspected, Payload frame,
                        absl::Time now, Effects* effects);
  // What a shard thread has counted so far, and the number of the last view
  // that it had taken in. Threads may also send these without being asked.
  void OnStats(int thread, uint64_t view_number, const run::ServerStats& stats,
               absl::Time now, Effects* effects);
  // What a shard thread has of a cut, written and synced, or why it has not.
  // The coordinator is told until it answers. A part for which it is too late,
  // or that the coordinator does not want any more, is no error.
  void OnCutPart(const wire::CutPart& part, absl::Time now, Effects* effects);
  // A thread of this server has stopped with this error.
  void OnFailure(const absl::Status& failure, absl::Time now, Effects* effects);
  // The process will have to end soon. Asks to be drained, and leaves when it
  // is; where it cannot be, asks for a checkpoint, after which the job ends.
  // Serves until then. As Interrupt() if nobody is there to be asked.
  void Retire(const std::string& reason, absl::Time now, Effects* effects);
  // The process is asked to end.
  void Interrupt(const std::string& reason, absl::Time now, Effects* effects);
  // The job has ended like that, and the coordinator, which is in this process,
  // has told all whom it could reach, and is over. A server that it could not
  // reach, because its lease had run out, say, hears of the end only here: it
  // ends as the job has. For one that was told by a view this changes nothing.
  void OnCoordinatorOver(const wire::JobEnd& end, Effects* effects);
  // The driver reads everything that has arrived before it calls this.
  void OnTick(absl::Time now, Effects* effects);
  absl::Time NextWakeup() const;

  // What the coordinator was told last; nullptr: nothing was counted yet.
  const std::shared_ptr<const run::ServerStats>& stats() const {
    return stats_;
  }

  // The utilisation of the threads that move bytes; goes along with the next
  // statistics.
  void SetIoUtilisation(double io_utilisation) {
    io_utilisation_ = io_utilisation;
  }

  // Whom coordinators in this process have refused since it began.
  void SetCoordinatorRefused(const run::Refusals& refused) {
    coordinator_refused_ = refused;
  }

  // Whether the coordinator is in this process; at first: it is not.
  void SetHostsCoordinator(bool hosts) { hosts_coordinator_ = hosts; }
  // Whether a coordinator may begin in this process, if the one before has
  // died.
  struct Candidacy {
    // None is heard, and the job has not ended.
    bool may_host = false;
    // This server is to leave the job, so others that may come go first. It
    // comes if there are none: without a coordinator nobody would ever be told
    // to leave, and the job would wait for ever.
    bool leaves = false;
    uint64_t run = 0;  // The run that the server has joined; 0: none yet.
  };
  Candidacy CandidacyAt(absl::Time now) const;
  uint64_t run() const { return member_.run(); }  // The member's.
  Incarnation incarnation() const { return member_.incarnation(); }

  const std::shared_ptr<const View>& view() const { return member_.view(); }
  bool HearsCoordinator(absl::Time now) const {
    return member_.HearsCoordinator(now);
  }

 private:
  struct ThreadStats {
    run::ServerStats stats;  // The last.
    uint64_t view_number = 0;
  };
  // Why it wants to go, if it does.
  struct Exit {
    absl::Status status;   // What it ends with.
    bool failure = false;  // A thread has failed; else an interruption.
    absl::Time deadline;   // It ends then, whatever the coordinator says.
  };

  int32_t self() const { return options_.member.join.index(); }
  // The job runs, and no shard is here or to come here.
  bool OwnsNothing() const;
  bool Draining() const;
  bool AllHaveSeenTheLastView() const;
  void Follow(MemberCore::Effects* member, absl::Time now, Effects* effects);
  void Leave(Exit exit, absl::Time now, Effects* effects);
  // Asks for a suspension, since this server cannot be drained.
  void AskForSuspension(absl::Time now, Effects* effects);
  // Asks the coordinator to let it go, or to stop the job, if it is time.
  void LeaveIfDue(absl::Time now, Effects* effects);
  // Makes one of the statistics of all threads, for the next heartbeat, if a
  // thread has told something new.
  void FoldStats();
  void EndWith(End::Kind kind, absl::Status status, Effects* effects);
  // Ends as the job has, of which no view has told that it has ended.
  void EndLike(const wire::JobEnd& end, Effects* effects);
  // Ends with the last statistics, as the last view says.
  void EndWithTheJob(absl::Time now, Effects* effects);

  const Options options_;
  MemberCore member_;
  std::vector<ThreadStats> thread_stats_;
  bool stats_new_ = false;  // Some have come since FoldStats().
  std::shared_ptr<const run::ServerStats> stats_;
  bool hosts_coordinator_ = false;
  double io_utilisation_ = 0;
  run::Refusals coordinator_refused_;
  absl::Time next_stats_ = absl::InfinitePast();
  absl::Time last_stats_by_ =
      absl::InfiniteFuture();  // Once the job has ended.
  std::optional<Exit> exit_;
  std::optional<uint64_t> leave_call_;
  bool leaves_with_failure_ = false;    // What leave_call_ says.
  uint64_t refused_at_view_ = 0;        // The coordinator knew better than it.
  std::optional<std::string> retires_;  // Why Retire() was called.
  std::optional<uint64_t> drain_call_;  // Not answered yet.
  bool asked_for_suspension_ = false;
  bool asked_to_stop_ = false;
  bool ended_ = false;
};

}  // namespace slackline
