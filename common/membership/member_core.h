// MemberCore: a server's or worker's side of membership. Joins, sends
// heartbeats with statistics, follows the view, and repeats calls until they
// are answered.
//
// Deterministic state machine: no sockets, threads, clocks or randomness.
// Thread-compatible. All messages go to the coordinator and come from it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/message.h"
#include "common/view/shard_map.h"

namespace slackline {

class MemberCore {
 public:
  struct Options {
    wire::JoinRequest join;           // Who we are. token != 0.
    std::string coordinator_address;  // For messages to people.
    absl::Duration start_timeout = absl::Seconds(60);
    absl::Duration join_retry = absl::Milliseconds(200);
    absl::Duration call_retry = absl::Milliseconds(500);
  };
  struct CallResult {
    uint64_t call_id = 0;
    wire::CallReply reply;
    Payload value;  // Of a StoreGet.
  };
  struct Effects {
    std::vector<Message> sends;
    bool joined = false;               // incarnation() is valid from now on.
    std::shared_ptr<const View> view;  // A newer view than the last one.
    std::vector<CallResult> answers;
    // The lease ran out, though we live: join again with a new core and token.
    bool fenced = false;
    // Refused, or the coordinator is gone. Names who and what to do.
    absl::Status failure;
  };

  explicit MemberCore(const Options& options) : options_(options) {}

  void Start(absl::Time now, Effects* effects);
  void OnMessage(const Message& message, absl::Time now, Effects* effects);
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
  // with the next heartbeat.
  void AddRecord(const run::MetricRecord& record, absl::Time made_at);
  // Sends a heartbeat now instead of at its time. Call it after a view that
  // ends the job, with the last statistics set: the coordinator waits for it.
  void SendHeartbeat(absl::Time now, Effects* effects);

  // Repeats the call until its answer comes in Effects::answers. `kind` has the
  // call's kind set. Only after joining.
  uint64_t Call(wire::Call kind, Payload value, absl::Time now,
                Effects* effects);

  Incarnation incarnation() const { return incarnation_; }
  const std::shared_ptr<const View>& view() const { return view_; }
  absl::Duration lease() const { return lease_; }

 private:
  struct PendingCall {
    Message message;
    absl::Time resend_at;
  };
  void SendJoin(absl::Time now, Effects* effects);

  const Options options_;
  bool started_ = false;
  absl::Time give_up_at_;  // While joining.
  absl::Time next_join_;
  std::string join_obstacle_;  // What the coordinator said last, if anything.
  Incarnation incarnation_ = 0;
  absl::Duration lease_;
  absl::Time next_heartbeat_;
  absl::Time heard_;  // Last sign of life of the coordinator.
  wire::Heartbeat heartbeat_;
  uint64_t first_record_ = 0;
  struct Record {
    run::MetricRecord record;
    absl::Time made_at;
  };
  std::deque<Record> records_;
  std::shared_ptr<const View> view_;
  uint64_t next_call_id_ = 1;
  std::map<uint64_t, PendingCall> calls_;
};

}  // namespace slackline
