// Asks the coordinator of a running job how it stands, to move shards, to
// change the mode, to take a checkpoint, or to stop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/keys/key_watch.h"
#include "common/message.h"
#include "common/net/poller.h"
#include "common/net/process/process_transport.h"
#include "common/net/transport.h"
#include "proto/control.pb.h"
#include "proto/run.pb.h"

namespace slackline {

// Thread-compatible.
class CoordinatorClient {
 public:
  // Nobody needs to listen at the endpoints yet; there is at least one. If
  // there are several, the coordinator of `job` is at one of them, and may come
  // to another one. What else answers there does not count, as another job's
  // coordinator. At the only one whoever answers is the coordinator.
  // `keys`: nullopt for a job with insecure: true.
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> Connect(
      const std::vector<std::string>& endpoints, const std::string& job,
      const std::optional<KeySource>& keys);

  // These send without waiting; what is lost is not repeated. The others go to
  // the endpoint that has last given a status, and to nobody if none has.
  // ResourceExhausted: so much waits that nobody has taken.
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

  // These wait for the answer. DeadlineExceeded, naming the addresses, if
  // nobody answers within `wait_max`; Unavailable if something else than a
  // coordinator does at the only address.
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
  // Members are asked what they do (wire::Inspect: stacks or a timeline).
  // Answered with the inspection's number, and who is missing. Until it is
  // answered, the same question again is the same call: whoever has not waited
  // long enough does not stand in the way of what it began. In addition
  // FailedPrecondition, with the coordinator's own sentence, if it refuses.
  absl::StatusOr<wire::InspectionState> BeginInspection(
      const wire::Inspect& inspect, absl::Duration wait_max);
  // The next part of it, if it is there by now: `received` have come before.
  // To be asked at least every few seconds, else it is given up there. In
  // addition FailedPrecondition if it has been.
  struct InspectionNews {
    wire::InspectionState state;
    Payload frame;  // Of a part with a timeline.
  };
  absl::StatusOr<InspectionNews> NextOfInspection(uint64_t number,
                                                  int32_t received,
                                                  absl::Duration wait_max);

 private:
  // Where the coordinator may be.
  struct Place {
    std::string endpoint;
    std::unique_ptr<Channel> channel;
    LinkState link = LinkState::kGone;
  };
  struct Received {
    size_t place = 0;
    Message message;
  };

  CoordinatorClient(std::string job, const std::optional<KeySource>& keys);
  // A call for a status goes to all places, others to where the coordinator is.
  absl::Status Send(wire::Call call);
  // The next message of any place; nullopt if there is none.
  absl::StatusOr<std::optional<Received>> ReceiveMessage();
  // Whether this is said by our job's coordinator. A status says where it is.
  bool IsOurs(const Received& received);
  // Repeats `call` until it is answered.
  absl::StatusOr<wire::CallReply> Call(const wire::Call& call,
                                       absl::Duration wait_max);
  absl::StatusOr<Message> Call(const wire::Call& call, absl::Duration wait_max,
                               absl::Duration repeat);
  // Like Call(), and again for a while if the coordinator is busy; with a new
  // number each time, unless `call` has one. FailedPrecondition if it is
  // refused.
  absl::StatusOr<wire::CallReply> Order(wire::Call call,
                                        absl::Duration wait_max);
  absl::Status End(wire::Call call, absl::Duration wait_max);
  absl::Status Refused(const wire::CallReply& reply) const;
  absl::StatusOr<run::Plan> AskPlan(wire::Call call, absl::Duration wait_max);
  std::string PlacesText() const;  // All addresses.
  // "; what listens at ENDPOINT has another key than this program", for each
  // place where that is so.
  std::string RefusalsText() const;
  // The address of the coordinator, or all if it is not known.
  std::string Where() const;

  const std::string job_;
  const bool has_key_;
  ProcessTransport transports_;
  std::vector<Place> places_;
  Poller poller_;
  // Of the last status of our job, or the only one.
  std::optional<size_t> answers_at_;
  std::string others_;  // "; at ENDPOINT is that of job 'NAME'", once heard.
  uint64_t last_call_id_ = 0;
  uint64_t finish_call_id_ = 0;      // Of AskFinish().
  uint64_t checkpoint_call_id_ = 0;  // Of Checkpoint().
  wire::Call inspect_call_;          // Of BeginInspection(), unanswered.
  std::string finish_refused_;
};

}  // namespace slackline
