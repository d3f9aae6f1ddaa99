#include "common/net/peer_links.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/endpoint.h"
#include "common/status.h"

namespace slackline {

PeerLinks::PeerLinks(Transport& transport, Poller& poller,
                     config::Limits::Transport kind)
    : transport_(transport), poller_(poller), kind_(kind) {}

PeerLinks::~PeerLinks() {
  for (const auto& [owner, link] : links_) poller_.Remove(*link.channel);
}

void PeerLinks::Follow(const PeerId& self, std::shared_ptr<const View> view) {
  self_ = self;
  view_ = std::move(view);
  std::erase_if(links_, [&](const auto& entry) {
    const wire::ServerMember* const server =
        view_->FindServer(entry.first.server);
    if (server != nullptr && server->incarnation() == entry.second.server)
      return false;
    poller_.Remove(*entry.second.channel);
    return true;
  });
}

absl::StatusOr<std::unique_ptr<Channel>> PeerLinks::Connect(
    const wire::ServerMember& server, int thread) {
  SL_ASSIGN_OR_RETURN(const std::vector<std::string> endpoints,
                      ShardEndpoints(server, thread, process_, kind_));
  absl::StatusOr<std::unique_ptr<Channel>> channel =
      absl::InternalError("no endpoint");
  // A host may have no shared memory for this process.
  for (const std::string& endpoint : endpoints) {
    channel = transport_.Connect(self_, endpoint, ChannelOptions());
    if (channel.ok()) break;
  }
  return channel;
}

absl::Status PeerLinks::FallBackToTcp(Owner to, Link& link,
                                      const absl::Status& why) {
  if (kind_ != config::Limits::AUTO) {
    return absl::InvalidArgumentError(absl::StrCat(
        "limits { transport: ", config::Limits::Transport_Name(kind_),
        " }: server ", to.server, ": ", why.message(), "; or use AUTO or TCP"));
  }
  const wire::ServerMember* const server = view_->FindServer(to.server);
  SL_CHECK(server != nullptr, "a link to a server that is gone");
  SL_ASSIGN_OR_RETURN(
      std::unique_ptr<Channel> channel,
      transport_.Connect(self_, NetworkEndpoint(server->thread(to.thread)),
                         ChannelOptions()));
  if (!std::exchange(told_of_tcp_, true)) {
    spdlog::warn("server {}: {}; tcp is used in its place, also with others",
                 to.server, std::string(why.message()));
  }
  poller_.Remove(*link.channel);
  link.channel = std::move(channel);
  poller_.Add(*link.channel);
  return absl::OkStatus();
}

absl::Status PeerLinks::Send(Owner to, const Message& message) {
  auto link = links_.find(to);
  if (link == links_.end()) {
    if (view_ == nullptr) return absl::OkStatus();
    const wire::ServerMember* const server = view_->FindServer(to.server);
    if (server == nullptr || to.thread >= server->thread_size())
      return absl::OkStatus();
    SL_ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel,
                        Connect(*server, to.thread));
    poller_.Add(*channel);
    link = links_
               .emplace(to, Link{.server = server->incarnation(),
                                 .channel = std::move(channel)})
               .first;
  }
  absl::Status sent = link->second.channel->Send(message);
  if (absl::IsFailedPrecondition(sent)) {
    SL_RETURN_IF_ERROR(FallBackToTcp(to, link->second, sent));
    sent = link->second.channel->Send(message);
  }
  return absl::IsResourceExhausted(sent) ? absl::OkStatus() : sent;
}

absl::Status PeerLinks::Receive(absl::FunctionRef<void(Owner, Message&)> take) {
  for (auto& [owner, link] : links_) {
    while (true) {
      absl::StatusOr<std::optional<Message>> message = link.channel->Receive();
      if (absl::IsFailedPrecondition(message.status())) {
        SL_RETURN_IF_ERROR(FallBackToTcp(owner, link, message.status()));
        continue;
      }
      SL_RETURN_IF_ERROR(message.status());
      if (!message->has_value()) break;
      take(owner, **message);
    }
  }
  return absl::OkStatus();
}

}  // namespace slackline
