// MemberCore: a server's or worker's side of membership. Joins, sends
// heartbeats with statistics, follows the view, and repeats calls until they
// are answered.
//
// A silent coordinator is not a dead one. Two leases of silence end the member
// if nobody listens at the coordinator's address any more, unless the
// coordinator has said that another one may come in its place; else it waits,
// up to coordinator_timeout. Time in which this member itself did not run does
// not count as silence (common/time/awake_clock.h).
//
// Where another coordinator may be elsewhere, a member that hears none looks
// for it at one address after the other; and at its only one anew, since the
// name there may be another host's by now. CoordinatorWatch::FoundWithin() says
// how long that takes, and new coordinators wait for so long.
//
// Deterministic state machine: no sockets, threads, clocks or randomness.
// Thread-compatible. All messages go to the coordinator and come from it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/link_state.h"
#include "common/membership/clock_offset.h"
#include "common/membership/coordinator_watch.h"
#include "common/membership/link_report.h"
#include "common/membership/record_queue.h"
#include "common/message.h"
#include "common/time/awake_clock.h"
#include "common/view/shard_map.h"

namespace slackline {

class MemberCore {
 public:
  struct Options {
    wire::JoinRequest join;  // Who we are. token != 0.
    // Addresses at which the coordinator may be, at least one. The member
    // begins with the first.
    std::vector<std::string> coordinators;
    absl::Duration start_timeout = absl::Seconds(60);
    // The config's. What the coordinator says of it counts more.
    absl::Duration lease = absl::Seconds(5);
    // How long a coordinator may be silent while its process is there, or
    // another one may come.
    absl::Duration coordinator_timeout = absl::Seconds(120);
    absl::Duration join_retry = absl::Milliseconds(200);
    absl::Duration call_retry = absl::Milliseconds(500);
    // Records that wait to be delivered: see AddRecord(). Above 256.
    size_t records_max = 4096;
  };
  struct CallResult {
    uint64_t call_id = 0;
    wire::CallReply reply;
    std::vector<Payload> values;  // A StoreGet has one, a Gather each rank's.
  };
  struct Effects {
    // Which of Options::coordinators to be connected with from now on, before
    // anything is sent.
    std::optional<size_t> look_at;
    std::vector<Message> sends;
    bool joined = false;  // incarnation() is valid from now on.
    // The driver is to try these, in place of others, until there is a view;
    // OnLinks() takes what comes of it.
    std::optional<wire::TryLinks> try_links;
    // What this process is to tell of itself, each once: by a call.
    std::vector<wire::Inspection> inspections;
    std::shared_ptr<const View> view;  // A newer view than the last one.
    std::vector<CallResult> answers;
    // The lease ran out, though we live: join again with a new core and token.
    // WhyFenced() says why.
    bool fenced = false;
    // Refused, or the coordinator is gone. Names who and what to do.
    absl::Status failure;
    // Refused for this: the job had ended when we came.
    std::optional<wire::JobEnd> ended_before;
    std::vector<std::string> log;  // Sentences for people.
  };

  explicit MemberCore(const Options& options)
      : options_(options),
        awake_(options.join_retry),
        coordinator_({.coordinators = options.coordinators,
                      .lease = options.lease,
                      .coordinator_timeout = options.coordinator_timeout}),
        records_(options.records_max) {}

  void Start(absl::Time now, Effects* effects);
  void OnMessage(const Message& message, absl::Time now, Effects* effects);
  // What the driver learns about the connection to the coordinator. Until it
  // says something, nobody is there.
  void OnLink(LinkState link, absl::Time now);
  // Whom the driver has not been connected with so far, whenever that changes.
  void OnLinks(const wire::LinksTried& tried, absl::Time now, Effects* effects);
  // The driver reads everything that has arrived before it calls this.
  void OnTick(absl::Time now, Effects* effects);
  absl::Time NextWakeup() const;

  // Goes along with the next heartbeats.
  void SetStats(const run::WorkerStats& stats) {
    *heartbeat_.mutable_worker() = stats;
  }
  void SetStats(const run::ServerStats& stats) {
    *heartbeat_.mutable_server() = stats;
  }
  // Delivered exactly once to the coordinator's records, with the time since
  // `made_at`: an EVAL with the next OnTick(), since it may end the job, others
  // with the next heartbeat. While the coordinator does not answer at most
  // records_max of them are kept: the oldest TRAIN record that was not sent yet
  // makes room, and only if there is none the oldest of the others.
  void AddRecord(const run::MetricRecord& record, absl::Time made_at);
  // Sends a heartbeat now instead of at its time. Call it after a view that
  // ends the job, with the last statistics set: the coordinator waits for it.
  void SendHeartbeat(absl::Time now, Effects* effects);

  // Repeats the call until its answer comes in Effects::answers. `kind` has the
  // call's kind set. Only after joining.
  uint64_t Call(wire::Call kind, Payload value, absl::Time now,
                Effects* effects);
  // Answers an inspection of Effects, also when the job has ended. A timeline
  // gets what is known of the clocks.
  uint64_t AnswerInspection(wire::Inspected inspected, Payload frame,
                            absl::Time now, Effects* effects);
  // Nobody waits for the answer any more: the call is not repeated, and its
  // answer is ignored. A call that is answered or unknown is not an error.
  void Cancel(uint64_t call_id) { calls_.erase(call_id); }
  // Why a call has no answer yet, as the coordinator said last; may be empty.
  std::string ObstacleOf(uint64_t call_id) const;

  Incarnation incarnation() const { return incarnation_; }
  // The run of the coordinator that we have joined; 0 before.
  uint64_t run() const { return run_; }
  // What JoinReply says; empty before, and if the job began anew.
  const std::string& checkpoint() const { return checkpoint_; }
  const std::string& checkpoint_sha256() const { return checkpoint_sha256_; }
  const std::shared_ptr<const View>& view() const { return view_; }
  absl::Duration lease() const { return coordinator_.lease(); }
  // How long the coordinator has been silent, once it has said something, in
  // awake time.
  absl::Duration Silence(absl::Time now) const {
    return coordinator_.Silence(awake_.At(now));
  }
  // It has joined, and the coordinator is not silent.
  bool HearsCoordinator(absl::Time now) const;
  // Why the coordinator had no place for us when it last said so; unspecified
  // once we have joined.
  wire::JoinReply::Obstacle obstacle() const { return obstacle_; }
  // For tests: what waits to be answered, and to be kept by the coordinator.
  size_t calls_count() const { return calls_.size(); }
  size_t records_count() const { return records_.size(); }
  // The coordinator has removed this member for another reason than its lease.
  bool removed() const { return !why_removed_.empty(); }
  // Completes "the coordinator gave this worker up: ": why, though we live. As
  // the coordinator says; else why the lease may have run out.
  std::string WhyFenced(absl::Time now) const;

 private:
  struct PendingCall {
    Message message;
    absl::Duration retry;
    absl::Time resend_at;
    std::string obstacle;
  };
  // Called at the beginning of each event.
  void Run(absl::Time now);
  void SendJoin(absl::Time now, Effects* effects);
  // A view that does not fit is refused, and that is said once.
  void OnView(absl::StatusOr<std::shared_ptr<const View>> view, uint64_t number,
              Effects* effects);
  void OnJoinReply(const wire::JoinReply& reply, absl::Time now,
                   Effects* effects);
  void OnHeartbeatReply(const wire::HeartbeatReply& reply, absl::Time now,
                        Effects* effects);
  // What it is asked and has not been asked before.
  void OnInspections(const wire::HeartbeatReply& reply, Effects* effects);
  // The coordinator has removed this member; `why` as in HeartbeatReply.error.
  void Fence(const std::string& why, Effects* effects);
  // Where ours may be, another job's is.
  bool IsOfAnotherJob(const Message& message) const;
  // Looks elsewhere where nobody was heard for long enough.
  void LookElsewhere(absl::Time now, Effects* effects);
  // This process did not run for longer than its lease, not long ago.
  bool WasStopped(absl::Time now) const;
  Message NewMessage() const;
  // A heartbeat without statistics and records, as small for every size of job.
  void SayWhichView(Effects* effects) const;

  const Options options_;
  AwakeClock awake_;
  bool started_ = false;
  absl::Time give_up_at_;  // While joining; in awake time.
  absl::Time next_join_;
  std::string join_obstacle_;  // What the coordinator said last, if anything.
  wire::JoinReply::Obstacle obstacle_ = {};
  Incarnation incarnation_ = 0;
  std::string why_removed_;  // What HeartbeatReply.error says.
  uint64_t run_ = 0;
  std::string checkpoint_;
  std::string checkpoint_sha256_;
  absl::Time next_heartbeat_;
  CoordinatorWatch coordinator_;
  // For how long this process did not run, the last time that it was longer
  // than a lease, and when that ended.
  absl::Duration stopped_for_;
  absl::Time resumed_at_ = absl::InfinitePast();
  wire::Heartbeat heartbeat_;
  RecordQueue records_;
  LinkReport links_;  // While the job forms.
  std::shared_ptr<const View> view_;
  uint64_t view_refused_ = 0;  // Number of the last one.
  ClockOffset clock_offset_;
  std::deque<uint64_t> inspected_;  // Numbers of the last inspections.
  uint64_t next_call_id_ = 1;
  std::map<uint64_t, PendingCall> calls_;
};

// What a member asks for whose process will have to end soon, and what its log
// says of that.
wire::Call SuspendCall(const std::string& reason);
std::string SuspendingText(const std::string& reason);

}  // namespace slackline
