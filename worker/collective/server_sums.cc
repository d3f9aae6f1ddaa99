#include "worker/collective/server_sums.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/net/poller.h"
#include "common/net/shard_endpoint.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "proto/sums.pb.h"
#include "worker/collective/rendezvous.h"
#include "worker/collective/sum_client_core.h"

namespace slackline {
namespace {

// For a shard thread to say whether its endpoint is one for this process. One
// that is not reached is looked after later.
constexpr absl::Duration kAnswerMax = absl::Milliseconds(500);

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
  // Through the first of the endpoints that is one for this process.
  absl::StatusOr<std::unique_ptr<Channel>> ConnectTo(
      const PeerId& self, const std::vector<std::string>& endpoints) const;
  // Sends what the core wants to be sent.
  absl::Status Perform(SumClientCore::Effects* effects);
  // Takes in what has come from a shard thread.
  absl::Status Receive(size_t thread, SumClientCore::Effects* effects);
  void Close();

  const ServerSumsOptions options_;
  const TimeSource time_;
  Poller poller_;
  Waker waker_;
  std::atomic<bool> interrupted_ = false;
  std::vector<std::unique_ptr<Channel>> channels_;  // By shard thread.
  std::optional<SumClientCore> core_;               // From Join() on.
};

absl::StatusOr<std::unique_ptr<Channel>> ServerSums::ConnectTo(
    const PeerId& self, const std::vector<std::string>& endpoints) const {
  absl::StatusOr<std::unique_ptr<Channel>> channel =
      absl::InternalError("no endpoint");
  for (const std::string& endpoint : endpoints) {
    channel = options_.transport->Connect(self, endpoint, {.watch_link = true});
    if (!channel.ok()) continue;
    // An endpoint that is none for this process says so when it has answered.
    // Nobody repeats what is lost then.
    Poller poller;
    poller.Add(**channel);
    const absl::Time until = time_.Now() + kAnswerMax;
    bool refused = false;
    while (time_.Now() < until && !refused) {
      const auto received = (*channel)->Receive();
      refused = absl::IsFailedPrecondition(received.status());
      SL_ASSIGN_OR_RETURN(const std::optional<LinkState> state,
                          (*channel)->ReceiveLinkState());
      if (state == LinkState::kUp) break;
      SL_RETURN_IF_ERROR(
          poller.Wait(std::min(until - time_.Now(), absl::Milliseconds(20))));
    }
    poller.Remove(**channel);
    if (!refused) break;
    channel = (*channel)->Receive().status();
  }
  return channel;
}

absl::Status ServerSums::Join(const GroupOptions& options) {
  const Rendezvous rendezvous({.rank = options.rank,
                               .world_size = options.world_size,
                               .group = absl::StrCat(options.group, "/sums"),
                               .time_max = options.connect_timeout,
                               .keep_trying = options.keep_trying,
                               .store = options.store});
  constexpr char kThreads[] = "threads";
  wire::SumThreads threads;
  if (options.rank == Rank{0}) {
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
  SumClientCore::Options core = {.rank = static_cast<int32_t>(options.rank),
                                 .ranks = options.world_size,
                                 .run = options_.run,
                                 .group = options_.group,
                                 .timeout = options.timeout};
  for (const wire::ServerMember& server : threads.server()) {
    for (int thread = 0; thread < server.thread_size(); ++thread) {
      SL_ASSIGN_OR_RETURN(
          const std::vector<std::string> endpoints,
          ShardEndpoints(server, thread, LocalProcess(), options_.via));
      core.threads.push_back(
          absl::StrCat("server ", server.index(), " thread ", thread));
      SL_ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel,
                          ConnectTo(self, endpoints));
      channels_.push_back(std::move(channel));
    }
  }
  if (channels_.empty())
    return absl::UnavailableError("the job has no servers that could sum");
  core_.emplace(core);
  return absl::OkStatus();
}

absl::Status ServerSums::BeginWatch() {
  poller_.Add(waker_);
  for (const auto& channel : channels_) poller_.Add(*channel);
  return absl::OkStatus();
}

void ServerSums::Close() {
  for (const auto& channel : channels_) poller_.Remove(*channel);
  poller_.Remove(waker_);
  channels_.clear();
}

void ServerSums::Interrupt() {
  interrupted_.store(true);
  waker_.Wake();
}

absl::Status ServerSums::Perform(SumClientCore::Effects* effects) {
  for (const SumClientCore::Send& send : effects->sends) {
    const absl::Status sent = channels_[send.thread]->Send(send.message);
    if (absl::IsResourceExhausted(sent)) {
      core_->OnQueueFull(send, time_.Now());
    } else {
      SL_RETURN_IF_ERROR(sent);
    }
  }
  effects->sends.clear();
  return absl::OkStatus();
}

absl::Status ServerSums::Receive(size_t thread,
                                 SumClientCore::Effects* effects) {
  Channel& channel = *channels_[thread];
  for (;;) {
    SL_ASSIGN_OR_RETURN(const std::optional<Message> message,
                        channel.Receive());
    if (!message.has_value()) break;
    core_->OnMessage(thread, *message, time_.Now(), effects);
  }
  SL_ASSIGN_OR_RETURN(const std::optional<LinkState> state,
                      channel.ReceiveLinkState());
  if (state.has_value())
    core_->OnLinkState(thread, *state, time_.Now(), effects);
  return Perform(effects);
}

absl::Status ServerSums::Run(const Operation& operation, int64_t number) {
  const std::string what = absl::StrCat("sum by servers ", number, " on rank ",
                                        core_->rank(), " of ", core_->ranks());
  SumClientCore::Effects effects;
  core_->Begin(number, operation.data, time_.Now(), &effects);
  SL_RETURN_IF_ERROR(Annotate(Perform(&effects), what));
  for (;;) {
    for (size_t thread = 0; thread < channels_.size(); ++thread)
      SL_RETURN_IF_ERROR(Annotate(Receive(thread, &effects), what));
    core_->OnTick(time_.Now(), &effects);
    SL_RETURN_IF_ERROR(Annotate(Perform(&effects), what));
    if (effects.ended.has_value()) return Annotate(*effects.ended, what);
    if (interrupted_.load()) {
      return absl::UnavailableError(
          absl::StrCat(what, ": the group has ended; it must be rebuilt"));
    }
    SL_RETURN_IF_ERROR(poller_.Wait(
        std::max(core_->NextWakeup() - time_.Now(), absl::ZeroDuration())));
    waker_.Drain();
  }
}

}  // namespace

std::unique_ptr<Mesh> MakeServerSums(const ServerSumsOptions& options) {
  return std::make_unique<ServerSums>(options);
}

}  // namespace slackline
