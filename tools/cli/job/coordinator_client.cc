#include "tools/cli/job/coordinator_client.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

constexpr absl::Duration kRepeat = absl::Milliseconds(300);
// What a coordinator is busy with is mostly over in a second: a heartbeat of a
// server that has just joined, the change before.
constexpr absl::Duration kBusyMax = absl::Seconds(10);
constexpr absl::Duration kBusyPause = absl::Milliseconds(200);

uint64_t RandomInstance() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

std::string CoordinatorEndpoint(const config::ClusterConfig& config) {
  return absl::StrCat("tcp://", config.coordinator().host(), ":",
                      config.coordinator().port());
}

CoordinatorClient::CoordinatorClient(std::string endpoint,
                                     std::unique_ptr<Transport> transport)
    : endpoint_(std::move(endpoint)),
      transport_(std::move(transport)),
      // People do not notice a few microseconds.
      poller_(Poller::Options{.spin_max = absl::ZeroDuration()}) {}

absl::StatusOr<std::unique_ptr<CoordinatorClient>> CoordinatorClient::Connect(
    const std::string& endpoint) {
  std::unique_ptr<CoordinatorClient> client(
      new CoordinatorClient(endpoint, std::make_unique<ZmqTransport>()));
  const PeerId self{.kind = PeerId::Kind::kObserver,
                    .index = 0,
                    .instance = RandomInstance()};
  SL_ASSIGN_OR_RETURN(client->channel_,
                      client->transport_->Connect(
                          self, endpoint, {.linger = absl::ZeroDuration()}));
  client->poller_.Add(*client->channel_);
  return client;
}

absl::Status CoordinatorClient::Send(wire::Call call) {
  Message message;
  *message.header.mutable_call() = std::move(call);
  return channel_->Send(message);
}

absl::Status CoordinatorClient::AskStatus() {
  wire::Call call;
  call.set_call_id(++last_call_id_);
  call.mutable_status();
  return Send(std::move(call));
}

absl::Status CoordinatorClient::AskStop(const std::string& reason) {
  wire::Call call;
  call.set_call_id(++last_call_id_);
  call.mutable_stop()->set_reason(reason);
  return Send(std::move(call));
}

absl::Status CoordinatorClient::AskSuspend(const std::string& reason) {
  wire::Call call;
  call.set_call_id(++last_call_id_);
  call.mutable_stop()->set_checkpoint(true);
  call.mutable_stop()->set_reason(reason);
  return Send(std::move(call));
}

absl::Status CoordinatorClient::AskFinish(const std::string& reason) {
  if (finish_call_id_ == 0) finish_call_id_ = ++last_call_id_;
  wire::Call call;
  call.set_call_id(finish_call_id_);
  call.mutable_finish()->set_reason(reason);
  return Send(std::move(call));
}

absl::StatusOr<std::optional<wire::StatusReply>> CoordinatorClient::Receive() {
  while (true) {
    SL_ASSIGN_OR_RETURN(std::optional<Message> message, channel_->Receive());
    if (!message.has_value()) return std::nullopt;
    const wire::CallReply& reply = message->header.call_reply();
    if (reply.call_id() == finish_call_id_ && finish_call_id_ != 0 &&
        reply.code() == wire::REJECTED) {
      finish_refused_ = reply.error();
    }
    if (reply.has_status()) {
      return std::move(*message->header.mutable_call_reply()->mutable_status());
    }
  }
}

absl::StatusOr<wire::CallReply> CoordinatorClient::Call(
    const wire::Call& call, absl::Duration wait_max) {
  const absl::Time deadline = TimeSource().Now() + wait_max;
  absl::Time repeat_at = absl::InfinitePast();
  while (TimeSource().Now() < deadline) {
    if (TimeSource().Now() >= repeat_at) {
      SL_RETURN_IF_ERROR(Send(call));
      repeat_at = TimeSource().Now() + kRepeat;
    }
    SL_RETURN_IF_ERROR(
        poller_.Wait(std::min(repeat_at, deadline) - TimeSource().Now()));
    while (true) {
      SL_ASSIGN_OR_RETURN(std::optional<Message> message, channel_->Receive());
      if (!message.has_value()) break;
      if (message->header.has_error_reply()) {
        return absl::UnavailableError(absl::StrCat(
            "what listens at ", endpoint_,
            " is no coordinator: ", message->header.error_reply().error()));
      }
      const wire::CallReply& reply = message->header.call_reply();
      if (reply.call_id() == call.call_id()) return reply;
    }
  }
  return absl::DeadlineExceededError(
      absl::StrCat("no coordinator answered at ", endpoint_, " within ",
                   absl::ToInt64Milliseconds(wait_max), " ms"));
}

absl::StatusOr<wire::StatusReply> CoordinatorClient::GetStatus(
    absl::Duration wait_max, int64_t moves_known) {
  wire::Call call;
  call.set_call_id(++last_call_id_);
  call.mutable_status()->set_moves_known(moves_known);
  SL_ASSIGN_OR_RETURN(wire::CallReply reply, Call(call, wait_max));
  if (!reply.has_status()) {
    return absl::UnavailableError(absl::StrCat(
        "the coordinator at ", endpoint_, " gave no status: ", reply.error()));
  }
  return std::move(*reply.mutable_status());
}

absl::Status CoordinatorClient::Stop(const std::string& reason,
                                     absl::Duration wait_max) {
  wire::Stop stop;
  stop.set_reason(reason);
  return Stop(stop, wait_max);
}

absl::Status CoordinatorClient::Suspend(const std::string& reason,
                                        absl::Duration wait_max) {
  wire::Stop stop;
  stop.set_checkpoint(true);
  stop.set_reason(reason);
  return Stop(stop, wait_max);
}

absl::Status CoordinatorClient::Stop(const wire::Stop& stop,
                                     absl::Duration wait_max) {
  wire::Call call;
  call.set_call_id(++last_call_id_);
  *call.mutable_stop() = stop;
  SL_ASSIGN_OR_RETURN(const wire::CallReply reply, Call(call, wait_max));
  if (reply.code() == wire::OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the coordinator at ", endpoint_,
                                             " refused: ", reply.error()));
}

absl::StatusOr<run::Plan> CoordinatorClient::Rebalance(
    bool dry_run, absl::Duration wait_max) {
  wire::Call call;
  call.mutable_rebalance()->set_dry_run(dry_run);
  return AskPlan(std::move(call), wait_max);
}

absl::StatusOr<run::Plan> CoordinatorClient::MoveShards(
    const wire::MoveShards& move, absl::Duration wait_max) {
  wire::Call call;
  *call.mutable_move_shards() = move;
  return AskPlan(std::move(call), wait_max);
}

absl::StatusOr<run::Plan> CoordinatorClient::Drain(int server,
                                                   absl::Duration wait_max) {
  wire::Call call;
  call.mutable_drain()->set_server(server);
  return AskPlan(std::move(call), wait_max);
}

absl::StatusOr<std::string> CoordinatorClient::SetMode(
    const wire::SetMode& mode, absl::Duration wait_max) {
  wire::Call call;
  *call.mutable_set_mode() = mode;
  SL_ASSIGN_OR_RETURN(const wire::CallReply reply,
                      Order(std::move(call), wait_max));
  return reply.text();
}

absl::StatusOr<std::string> CoordinatorClient::Finish(const std::string& reason,
                                                      absl::Duration wait_max) {
  wire::Call call;
  call.mutable_finish()->set_reason(reason);
  SL_ASSIGN_OR_RETURN(const wire::CallReply reply,
                      Order(std::move(call), wait_max));
  return reply.text();
}

absl::StatusOr<std::optional<std::string>> CoordinatorClient::Checkpoint(
    absl::Duration wait_max) {
  if (checkpoint_call_id_ == 0) checkpoint_call_id_ = ++last_call_id_;
  wire::Call call;
  call.set_call_id(checkpoint_call_id_);
  call.mutable_checkpoint();
  const absl::StatusOr<wire::CallReply> reply = Call(call, wait_max);
  // Whether anybody is there is for others to find out.
  if (absl::IsDeadlineExceeded(reply.status())) return std::nullopt;
  if (!reply.ok()) return reply.status();
  checkpoint_call_id_ = 0;
  if (reply->code() == wire::OK) return reply->text();
  return Refused(*reply);
}

absl::StatusOr<run::Plan> CoordinatorClient::AskPlan(wire::Call call,
                                                     absl::Duration wait_max) {
  SL_ASSIGN_OR_RETURN(wire::CallReply reply, Order(std::move(call), wait_max));
  return std::move(*reply.mutable_plan());
}

absl::StatusOr<wire::CallReply> CoordinatorClient::Order(
    wire::Call call, absl::Duration wait_max) {
  const absl::Time patience = TimeSource().Now() + kBusyMax;
  wire::CallReply reply;
  while (true) {
    call.set_call_id(++last_call_id_);
    SL_ASSIGN_OR_RETURN(reply, Call(call, wait_max));
    if (reply.code() == wire::OK) return reply;
    if (reply.code() != wire::BUSY || TimeSource().Now() >= patience) break;
    absl::SleepFor(kBusyPause);
  }
  return Refused(reply);
}

absl::Status CoordinatorClient::Refused(const wire::CallReply& reply) const {
  return absl::FailedPreconditionError(
      reply.error().empty()
          ? absl::StrCat("the coordinator at ", endpoint_, " answered ",
                         wire::Code_Name(reply.code()),
                         "; it may be of another version")
          : reply.error());
}

}  // namespace slackline
