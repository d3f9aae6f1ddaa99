#include "tools/cli/job/coordinator_client.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

constexpr absl::Duration kRepeat = absl::Milliseconds(300);
// An answer may have megabytes.
constexpr absl::Duration kRepeatOfParts = absl::Seconds(8);
// What a coordinator is busy with is mostly over in a second: a heartbeat of a
// server that has just joined, the change before.
constexpr absl::Duration kBusyMax = absl::Seconds(10);
constexpr absl::Duration kBusyPause = absl::Milliseconds(200);
// Where the coordinator may come to, it meets no more calls of ours than these.
constexpr int kUntakenMax = 8;

uint64_t RandomInstance() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

CoordinatorClient::CoordinatorClient(std::string job,
                                     const std::optional<KeySource>& keys)
    : job_(std::move(job)),
      has_key_(keys.has_value()),
      transports_(keys),
      // People do not notice a few microseconds.
      poller_(Poller::Options{.spin_max = absl::ZeroDuration()}) {}

absl::StatusOr<std::unique_ptr<CoordinatorClient>> CoordinatorClient::Connect(
    const std::vector<std::string>& endpoints, const std::string& job,
    const std::optional<KeySource>& keys) {
  SL_CHECK(!endpoints.empty(), "a coordinator is somewhere");
  std::unique_ptr<CoordinatorClient> client(new CoordinatorClient(job, keys));
  const PeerId self{.kind = PeerId::Kind::kObserver,
                    .index = 0,
                    .instance = RandomInstance()};
  ChannelOptions options = {.linger = absl::ZeroDuration(), .watch_link = true};
  if (endpoints.size() == 1) {
    client->answers_at_ = 0;
  } else {
    options.send_queue_max = kUntakenMax;
  }
  for (const std::string& endpoint : endpoints) {
    SL_ASSIGN_OR_RETURN(
        std::unique_ptr<Channel> channel,
        client->transports_.network().Connect(self, endpoint, options));
    client->poller_.Add(*channel);
    client->places_.push_back(
        {.endpoint = endpoint, .channel = std::move(channel)});
  }
  return client;
}

absl::Status CoordinatorClient::Send(wire::Call call) {
  const bool to_all = call.has_status();
  Message message;
  *message.header.mutable_call() = std::move(call);
  if (!to_all) {
    return answers_at_.has_value()
               ? places_[*answers_at_].channel->Send(message)
               : absl::OkStatus();
  }
  absl::Status refused;
  bool taken = false;
  for (const Place& place : places_) {
    const absl::Status sent = place.channel->Send(message);
    if (!sent.ok() && !absl::IsResourceExhausted(sent)) return sent;
    taken |= sent.ok();
    if (!sent.ok()) refused = sent;
  }
  return taken ? absl::OkStatus() : refused;
}

absl::StatusOr<std::optional<CoordinatorClient::Received>>
CoordinatorClient::ReceiveMessage() {
  for (size_t i = 0; i < places_.size(); ++i) {
    SL_ASSIGN_OR_RETURN(const std::optional<LinkState> link,
                        places_[i].channel->ReceiveLinkState());
    if (link.has_value() && *link != LinkState::kConnected)
      places_[i].link = *link;
    SL_ASSIGN_OR_RETURN(std::optional<Message> message,
                        places_[i].channel->Receive());
    if (message.has_value())
      return Received{.place = i, .message = *std::move(message)};
  }
  return std::nullopt;
}

bool CoordinatorClient::IsOurs(const Received& received) {
  if (places_.size() == 1) return true;
  const wire::CallReply& reply = received.message.header.call_reply();
  if (!reply.has_status()) return !received.message.header.has_error_reply();
  const std::string& job = reply.status().view().job();
  if (job != job_) {
    others_ = absl::StrCat("; at ", places_[received.place].endpoint,
                           " is that of job '", job, "'");
    return false;
  }
  answers_at_ = received.place;
  return true;
}

std::string CoordinatorClient::PlacesText() const {
  return absl::StrJoin(places_, ", ", [](std::string* out, const Place& place) {
    absl::StrAppend(out, place.endpoint);
  });
}

std::string CoordinatorClient::RefusalsText() const {
  std::string text;
  for (const Place& place : places_) {
    if (place.link != LinkState::kRefused && place.link != LinkState::kDropped)
      continue;
    absl::StrAppend(
        &text, "; what listens at ", place.endpoint,
        has_key_ ? " has another key than this program, or none: name that of "
                   "the job with --key=FILE"
                 : " wants a key, and the config says insecure: true");
  }
  return text;
}

std::string CoordinatorClient::Where() const {
  return answers_at_.has_value() ? places_[*answers_at_].endpoint
                                 : PlacesText();
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
  call.mutable_suspend()->set_reason(reason);
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
    SL_ASSIGN_OR_RETURN(std::optional<Received> received, ReceiveMessage());
    if (!received.has_value()) return std::nullopt;
    if (!IsOurs(*received)) continue;
    wire::CallReply& reply = *received->message.header.mutable_call_reply();
    if (reply.call_id() == finish_call_id_ && finish_call_id_ != 0 &&
        reply.code() == wire::REJECTED) {
      finish_refused_ = reply.error();
    }
    if (reply.has_status()) return std::move(*reply.mutable_status());
  }
}

absl::StatusOr<wire::CallReply> CoordinatorClient::Call(
    const wire::Call& call, absl::Duration wait_max) {
  SL_ASSIGN_OR_RETURN(Message message, Call(call, wait_max, kRepeat));
  return std::move(*message.header.mutable_call_reply());
}

absl::StatusOr<Message> CoordinatorClient::Call(const wire::Call& call,
                                                absl::Duration wait_max,
                                                absl::Duration repeat) {
  const absl::Time deadline = TimeSource().Now() + wait_max;
  absl::Time repeat_at = absl::InfinitePast();
  bool unanswered = false;
  while (TimeSource().Now() < deadline) {
    if (TimeSource().Now() >= repeat_at) {
      // A full queue means that nobody is there to answer.
      absl::Status sent = Send(call);
      const bool is_lost = unanswered || !answers_at_.has_value();
      if (sent.ok() && is_lost && !call.has_status() && places_.size() > 1)
        sent = AskStatus();
      if (!sent.ok() && !absl::IsResourceExhausted(sent)) return sent;
      unanswered = true;
      repeat_at = TimeSource().Now() + repeat;
    }
    SL_RETURN_IF_ERROR(
        poller_.Wait(std::min(repeat_at, deadline) - TimeSource().Now()));
    const std::optional<size_t> asked_at = answers_at_;
    while (true) {
      SL_ASSIGN_OR_RETURN(std::optional<Received> received, ReceiveMessage());
      if (!received.has_value()) break;
      if (!IsOurs(*received)) continue;
      const wire::Header& header = received->message.header;
      if (header.has_error_reply()) {
        return absl::UnavailableError(
            absl::StrCat("what listens at ", Where(),
                         " is no coordinator: ", header.error_reply().error()));
      }
      if (header.call_reply().call_id() == call.call_id())
        return std::move(received->message);
    }
    if (answers_at_ != asked_at) repeat_at = absl::InfinitePast();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "no coordinator answered at ", PlacesText(), " within ",
      absl::ToInt64Milliseconds(wait_max), " ms", others_, RefusalsText()));
}

absl::StatusOr<wire::StatusReply> CoordinatorClient::GetStatus(
    absl::Duration wait_max, int64_t moves_known) {
  wire::Call call;
  call.set_call_id(++last_call_id_);
  call.mutable_status()->set_moves_known(moves_known);
  SL_ASSIGN_OR_RETURN(wire::CallReply reply, Call(call, wait_max));
  if (!reply.has_status()) {
    return absl::UnavailableError(absl::StrCat(
        "the coordinator at ", Where(), " gave no status: ", reply.error()));
  }
  return std::move(*reply.mutable_status());
}

absl::Status CoordinatorClient::Stop(const std::string& reason,
                                     absl::Duration wait_max) {
  wire::Call call;
  call.mutable_stop()->set_reason(reason);
  return End(std::move(call), wait_max);
}

absl::Status CoordinatorClient::Suspend(const std::string& reason,
                                        absl::Duration wait_max) {
  wire::Call call;
  call.mutable_suspend()->set_reason(reason);
  return End(std::move(call), wait_max);
}

absl::Status CoordinatorClient::End(wire::Call call, absl::Duration wait_max) {
  call.set_call_id(++last_call_id_);
  SL_ASSIGN_OR_RETURN(const wire::CallReply reply, Call(call, wait_max));
  if (reply.code() == wire::OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the coordinator at ", Where(),
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

absl::StatusOr<wire::InspectionState> CoordinatorClient::BeginInspection(
    const wire::Inspect& inspect, absl::Duration wait_max) {
  if (!inspect_call_.has_inspect() ||
      inspect_call_.inspect().SerializeAsString() !=
          inspect.SerializeAsString()) {
    *inspect_call_.mutable_inspect() = inspect;
    inspect_call_.set_call_id(++last_call_id_);
  }
  absl::StatusOr<wire::CallReply> reply = Order(inspect_call_, wait_max);
  if (reply.ok() || absl::IsFailedPrecondition(reply.status()))
    inspect_call_.Clear();
  if (!reply.ok()) return reply.status();
  if (!reply->has_inspection()) return Refused(*reply);
  return std::move(*reply->mutable_inspection());
}

absl::StatusOr<CoordinatorClient::InspectionNews>
CoordinatorClient::NextOfInspection(uint64_t number, int32_t received,
                                    absl::Duration wait_max) {
  wire::Call call;
  call.set_call_id(++last_call_id_);
  call.mutable_inspect()->set_number(number);
  call.mutable_inspect()->set_received(received);
  SL_ASSIGN_OR_RETURN(Message message, Call(call, wait_max, kRepeatOfParts));
  wire::CallReply& reply = *message.header.mutable_call_reply();
  if (reply.code() != wire::OK || !reply.has_inspection())
    return Refused(reply);
  InspectionNews news = {.state = std::move(*reply.mutable_inspection()),
                         .frame = {}};
  if (news.state.has_part() && news.state.part().has_timeline()) {
    if (message.payloads.size() != 1) return Refused(reply);
    news.frame = std::move(message.payloads.front());
  }
  return news;
}

absl::StatusOr<run::Plan> CoordinatorClient::AskPlan(wire::Call call,
                                                     absl::Duration wait_max) {
  SL_ASSIGN_OR_RETURN(wire::CallReply reply, Order(std::move(call), wait_max));
  return std::move(*reply.mutable_plan());
}

absl::StatusOr<wire::CallReply> CoordinatorClient::Order(
    wire::Call call, absl::Duration wait_max) {
  const absl::Time patience = TimeSource().Now() + kBusyMax;
  const bool has_number = call.call_id() != 0;
  wire::CallReply reply;
  while (true) {
    if (!has_number) call.set_call_id(++last_call_id_);
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
          ? absl::StrCat("the coordinator at ", Where(), " answered ",
                         wire::Code_Name(reply.code()),
                         "; it may be of another version")
          : reply.error());
}

}  // namespace slackline
