#include "worker/collective/server_sums.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/net/poller.h"
#include "common/net/shard_endpoint.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "proto/sums.pb.h"
#include "worker/collective/rendezvous.h"

namespace slackline {
namespace {

// Before a piece goes to a server again that has not heard of the group, or
// whose queue was full.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(2);
// A server that has ended is waited for so long: it is in the views that the
// next group is made of until its lease runs out.
constexpr absl::Duration kGoneMax = absl::Seconds(1);

class ServerSums final : public Mesh {
 public:
  explicit ServerSums(const ServerSumsOptions& options) : options_(options) {}

  absl::Status Join(const GroupOptions& options) override;

  absl::Status BeginWatch() override;
  absl::Status Run(const Operation& operation, int64_t number) override;
  void SayGoodbye() override { Close(); }
  void GiveUp() override { Close(); }
  // The ranks watch each other elsewhere.
  absl::Status AwaitLoss() override { return absl::OkStatus(); }
  void EndWatch() override {}
  void Interrupt() override;

 private:
  struct Link {
    std::string name;  // Of the shard thread, for people.
    std::unique_ptr<Channel> channel;
    absl::Time gone_since = absl::InfiniteFuture();  // Nobody listens there.
    // Of the present operation.
    std::deque<int32_t> to_send;
    size_t bytes_in_flight = 0;
    int in_flight = 0;
    absl::Time send_after = absl::InfinitePast();
  };

  absl::Span<float> Piece(int32_t index) const {
    const size_t floats = options_.piece_bytes / sizeof(float);
    return data_.subspan(static_cast<size_t>(index) * floats, floats);
  }
  absl::Status SendAll(Link& link, int64_t number);
  absl::Status ReceiveAll(Link& link, int64_t number);
  absl::Status Take(Link& link, const Message& message, int64_t number);
  static bool IsOpen(const Link& link) {
    return link.in_flight > 0 || !link.to_send.empty();
  }
  // Whoever has not answered.
  std::string Silent() const;
  void Close();

  const ServerSumsOptions options_;
  int32_t rank_ = 0;
  int32_t world_size_ = 1;
  absl::Duration timeout_;
  const TimeSource time_;
  Poller poller_;
  Waker waker_;
  std::atomic<bool> interrupted_ = false;
  std::vector<Link> links_;
  // Of the present operation.
  absl::Span<float> data_;
  int32_t missing_ = 0;         // Pieces.
  std::vector<bool> is_asked_;  // By piece: it was sent, and not answered yet.
};

absl::Status ServerSums::Join(const GroupOptions& options) {
  rank_ = static_cast<int32_t>(options.rank);
  world_size_ = options.world_size;
  timeout_ = options.timeout;
  const Rendezvous rendezvous({.rank = options.rank,
                               .world_size = options.world_size,
                               .group = absl::StrCat(options.group, "/sums"),
                               .time_max = options.connect_timeout,
                               .keep_trying = options.keep_trying,
                               .store = options.store});
  constexpr char kThreads[] = "threads";
  wire::SumThreads threads;
  if (rank_ == 0) {
    for (const wire::ServerMember& server : options_.servers)
      *threads.add_server() = server;
    SL_RETURN_IF_ERROR(rendezvous.Put(kThreads, threads.SerializeAsString()));
  } else {
    SL_ASSIGN_OR_RETURN(const std::string told,
                        rendezvous.Await(kThreads, Rank{0}));
    if (!threads.ParseFromString(told)) {
      return absl::UnavailableError(
          "rank 0 has left something else than the servers in the store");
    }
  }
  const PeerId self{.kind = PeerId::Kind::kSum,
                    .index = options_.worker,
                    .instance = options_.incarnation};
  for (const wire::ServerMember& server : threads.server()) {
    for (int thread = 0; thread < server.thread_size(); ++thread) {
      SL_ASSIGN_OR_RETURN(
          const std::vector<std::string> endpoints,
          ShardEndpoints(server, thread, LocalProcess(), options_.via));
      Link link;
      link.name = absl::StrCat("server ", server.index(), " thread ", thread);
      SL_ASSIGN_OR_RETURN(link.channel,
                          options_.transport->Connect(self, endpoints.front(),
                                                      {.watch_link = true}));
      links_.push_back(std::move(link));
    }
  }
  if (links_.empty())
    return absl::UnavailableError("the job has no servers that could sum");
  return absl::OkStatus();
}

absl::Status ServerSums::BeginWatch() {
  poller_.Add(waker_);
  for (const Link& link : links_) poller_.Add(*link.channel);
  return absl::OkStatus();
}

void ServerSums::Close() {
  for (const Link& link : links_) poller_.Remove(*link.channel);
  poller_.Remove(waker_);
  links_.clear();
}

void ServerSums::Interrupt() {
  interrupted_.store(true);
  waker_.Wake();
}

absl::Status ServerSums::SendAll(Link& link, int64_t number) {
  while (!link.to_send.empty() && link.send_after <= time_.Now()) {
    const int32_t index = link.to_send.front();
    const absl::Span<float> piece = Piece(index);
    const size_t bytes = piece.size() * sizeof(float);
    if (link.in_flight > 0 &&
        link.bytes_in_flight + bytes > options_.window_bytes) {
      break;
    }
    Message message;
    message.header.set_run(options_.run);
    wire::SumRequest& request = *message.header.mutable_sum_request();
    request.set_group(options_.group);
    request.set_rank(rank_);
    request.set_ranks(world_size_);
    request.set_operation(number);
    request.set_piece(index);
    // A copy, because the system may still read it when the group has failed
    // and the caller has its buffer back.
    message.payloads.push_back(Payload::Copy(piece.data(), bytes));
    const absl::Status sent = link.channel->Send(message);
    if (absl::IsResourceExhausted(sent)) {
      link.send_after = time_.Now() + kRetryAfter;
      break;
    }
    SL_RETURN_IF_ERROR(sent);
    link.to_send.pop_front();
    link.bytes_in_flight += bytes;
    ++link.in_flight;
    is_asked_[static_cast<size_t>(index)] = true;
  }
  return absl::OkStatus();
}

absl::Status ServerSums::Take(Link& link, const Message& message,
                              int64_t number) {
  if (message.header.has_error_reply()) {
    return absl::InternalError(absl::StrCat(
        link.name, " answers: ", message.header.error_reply().error()));
  }
  const wire::SumReply& reply = message.header.sum_reply();
  if (!message.header.has_sum_reply() || reply.group() != options_.group ||
      reply.operation() != number) {
    return absl::OkStatus();  // Of what has failed before.
  }
  if (!reply.refused().empty()) {
    return absl::UnavailableError(
        absl::StrCat(link.name, " does not sum: ", reply.refused()));
  }
  if (reply.piece() < 0 ||
      static_cast<size_t>(reply.piece()) >= is_asked_.size() ||
      !is_asked_[static_cast<size_t>(reply.piece())]) {
    return absl::InternalError(
        absl::StrCat(link.name, " answers for piece ", reply.piece(), " of ",
                     is_asked_.size(), ", of which it was not asked"));
  }
  is_asked_[static_cast<size_t>(reply.piece())] = false;
  const absl::Span<float> piece = Piece(reply.piece());
  const size_t bytes = piece.size() * sizeof(float);
  link.bytes_in_flight -= std::min(link.bytes_in_flight, bytes);
  link.in_flight = std::max(link.in_flight - 1, 0);
  if (reply.retry()) {
    link.to_send.push_front(reply.piece());
    link.send_after = time_.Now() + kRetryAfter;
    return absl::OkStatus();
  }
  if (message.payloads.size() != 1 ||
      message.payloads.front().size() != bytes) {
    return absl::InternalError(
        absl::StrCat(link.name, " answers with ", message.payloads.size(),
                     " payloads, one of ", bytes, " bytes is required"));
  }
  std::memcpy(piece.data(), message.payloads.front().data(), bytes);
  --missing_;
  return absl::OkStatus();
}

absl::Status ServerSums::ReceiveAll(Link& link, int64_t number) {
  for (;;) {
    SL_ASSIGN_OR_RETURN(const std::optional<Message> message,
                        link.channel->Receive());
    if (!message.has_value()) break;
    SL_RETURN_IF_ERROR(Take(link, *message, number));
  }
  SL_ASSIGN_OR_RETURN(const std::optional<LinkState> state,
                      link.channel->ReceiveLinkState());
  if (state == LinkState::kUp) link.gone_since = absl::InfiniteFuture();
  if (state == LinkState::kGone)
    link.gone_since = std::min(link.gone_since, time_.Now());
  if (!IsOpen(link) || time_.Now() < link.gone_since + kGoneMax)
    return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(link.name, " has ended; the group must be rebuilt"));
}

std::string ServerSums::Silent() const {
  std::vector<std::string> names;
  for (const Link& link : links_) {
    if (IsOpen(link)) names.push_back(link.name);
  }
  return absl::StrJoin(names, ", ");
}

absl::Status ServerSums::Run(const Operation& operation, int64_t number) {
  data_ = operation.data;
  if (data_.empty()) return absl::OkStatus();
  const std::string what = absl::StrCat("sum by servers ", number, " on rank ",
                                        rank_, " of ", world_size_);
  const size_t floats = options_.piece_bytes / sizeof(float);
  missing_ = static_cast<int32_t>((data_.size() + floats - 1) / floats);
  is_asked_.assign(static_cast<size_t>(missing_), false);
  for (Link& link : links_) {
    link.to_send.clear();
    link.bytes_in_flight = 0;
    link.in_flight = 0;
  }
  for (int32_t piece = 0; piece < missing_; ++piece) {
    // So that buckets of one piece do not all go to the first one.
    const auto turn = static_cast<size_t>(number + piece);
    links_[turn % links_.size()].to_send.push_back(piece);
  }
  absl::Time late = time_.Now() + timeout_;
  for (;;) {
    const int32_t before = missing_;
    absl::Time wake = late;
    for (Link& link : links_) {
      SL_RETURN_IF_ERROR(Annotate(ReceiveAll(link, number), what));
      SL_RETURN_IF_ERROR(Annotate(SendAll(link, number), what));
      if (!link.to_send.empty() && link.send_after > time_.Now())
        wake = std::min(wake, link.send_after);
      if (IsOpen(link)) wake = std::min(wake, link.gone_since + kGoneMax);
    }
    if (missing_ == 0) return absl::OkStatus();
    if (interrupted_.load()) {
      return absl::UnavailableError(
          absl::StrCat(what, ": the group has ended; it must be rebuilt"));
    }
    if (missing_ < before) late = time_.Now() + timeout_;
    if (time_.Now() >= late) {
      return absl::DeadlineExceededError(absl::StrCat(
          what, ": no sum came for ", absl::ToInt64Milliseconds(timeout_),
          " ms from ", Silent(),
          "; a rank is stuck, or slower than the timeout allows; the group "
          "must "
          "be rebuilt"));
    }
    SL_RETURN_IF_ERROR(poller_.Wait(wake - time_.Now()));
    waker_.Drain();
  }
}

}  // namespace

std::unique_ptr<Mesh> MakeServerSums(const ServerSumsOptions& options) {
  return std::make_unique<ServerSums>(options);
}

}  // namespace slackline
