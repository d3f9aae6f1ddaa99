// Asks the coordinator of a running job how it stands, to move shards, to
// change the mode, to take a checkpoint, or to stop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/run.pb.h"

namespace slackline {

// "tcp://127.0.0.1:7700"
std::string CoordinatorEndpoint(const config::ClusterConfig& config);

// Thread-compatible.
class CoordinatorClient {
 public:
  // Nobody needs to listen there yet.
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> Connect(
      const std::string& endpoint);

  // These send without waiting; what is lost is not repeated.
  absl::Status AskStatus();
  absl::Status AskStop(const std::string& reason);
  absl::Status AskSuspend(const std::string& reason);
  // However often, it is one call.
  absl::Status AskFinish(const std::string& reason);
  // Why the coordinator refuses that, as far as Receive() has met its answer;
  // empty: it does not. Once.
  std::string TakeFinishRefused() { return std::exchange(finish_refused_, {}); }
  // The next answer to AskStatus(); nullopt if none is there.
  absl::StatusOr<std::optional<wire::StatusReply>> Receive();

  // These wait for the answer. DeadlineExceeded, naming the address, if
  // nobody answers within `wait_max`; Unavailable if something else than a
  // coordinator does.
  // Leaves out the records of the first `moves_known` moves.
  absl::StatusOr<wire::StatusReply> GetStatus(absl::Duration wait_max,
                                              int64_t moves_known = 0);
  absl::Status Stop(const std::string& reason, absl::Duration wait_max);
  // The job ends after a checkpoint. Answered at once.
  absl::Status Suspend(const std::string& reason, absl::Duration wait_max);
  // These are answered with what will be moved, before it is. In addition
  // FailedPrecondition, with the coordinator's own sentence, if it refuses.
  absl::StatusOr<run::Plan> Rebalance(bool dry_run, absl::Duration wait_max);
  absl::StatusOr<run::Plan> MoveShards(const wire::MoveShards& move,
                                       absl::Duration wait_max);
  absl::StatusOr<run::Plan> Drain(int server, absl::Duration wait_max);
  // Answered, with a sentence on what will happen, when it is on its way.
  absl::StatusOr<std::string> Finish(const std::string& reason,
                                     absl::Duration wait_max);
  absl::StatusOr<std::string> SetMode(const wire::SetMode& mode,
                                      absl::Duration wait_max);
  // However often, it is one call, until it is answered: with where the
  // checkpoint is, once it is there. nullopt: that has not come within
  // `wait_max`. FailedPrecondition, with the coordinator's own sentence, if
  // there is none.
  absl::StatusOr<std::optional<std::string>> Checkpoint(
      absl::Duration wait_max);

 private:
  CoordinatorClient(std::string endpoint, std::unique_ptr<Transport> transport);
  absl::Status Send(wire::Call call);
  // Repeats `call` until it is answered.
  absl::StatusOr<wire::CallReply> Call(const wire::Call& call,
                                       absl::Duration wait_max);
  // Like Call(), with a number for it, and again for a while if the coordinator
  // is busy. FailedPrecondition if it is refused.
  absl::StatusOr<wire::CallReply> Order(wire::Call call,
                                        absl::Duration wait_max);
  absl::Status Stop(const wire::Stop& stop, absl::Duration wait_max);
  absl::Status Refused(const wire::CallReply& reply) const;
  absl::StatusOr<run::Plan> AskPlan(wire::Call call, absl::Duration wait_max);

  const std::string endpoint_;
  const std::unique_ptr<Transport> transport_;
  std::unique_ptr<Channel> channel_;
  Poller poller_;
  uint64_t last_call_id_ = 0;
  uint64_t finish_call_id_ = 0;      // Of AskFinish().
  uint64_t checkpoint_call_id_ = 0;  // Of Checkpoint().
  std::string finish_refused_;
};

}  // namespace slackline
