#include "common/net/link_trial.h"

#include <string>
#include <utility>

#include "common/endpoint.h"

namespace slackline {
namespace {

// In one report; they become fewer.
constexpr int kReportedMax = 256;

}  // namespace

void LinkTrial::Open(std::unique_ptr<Listener> door) {
  door_ = std::move(door);
  poller_.Add(*door_);
}

void LinkTrial::Tend() {
  if (door_ == nullptr) return;
  while (true) {
    const auto received = door_->Receive();
    if (received.ok() && received->has_value()) continue;
    if (received.ok()) return;
    // Others say that they do not reach it.
    poller_.Remove(*door_);
    door_ = nullptr;
    return;
  }
}

void LinkTrial::End() {
  StopTrying();
  if (door_ == nullptr) return;
  poller_.Remove(*door_);
  door_ = nullptr;
}

void LinkTrial::StopTrying() {
  for (const auto& [key, channel] : trying_) {
    if (channel != nullptr) poller_.Remove(*channel);
  }
  trying_.clear();
  news_ = false;
}

void LinkTrial::Try(const Key& key, const std::string& endpoint,
                    Role listener) {
  std::unique_ptr<Channel>& channel = trying_[key];
  absl::StatusOr<std::unique_ptr<Channel>> made =
      transport_.Connect(self_, endpoint,
                         {.linger = absl::ZeroDuration(),
                          .watch_link = true,
                          .listener = listener});
  if (!made.ok()) return;
  channel = *std::move(made);
  poller_.Add(*channel);
}

void LinkTrial::Begin(const wire::TryLinks& links) {
  StopTrying();
  round_ = links.round();
  news_ = true;
  for (const wire::ServerMember& server : links.server()) {
    for (int thread = 0; thread < server.thread_size(); ++thread) {
      const auto endpoints = ShardEndpoints(server, thread, process_, kind_);
      // Where there is none of the kind that the config asks for, the first
      // message says so.
      if (!endpoints.ok()) continue;
      const std::string& best = endpoints->front();
      if (FindEndpointKind(best)->scope != EndpointScope::kNetwork) continue;
      Try({false, server.index(), thread}, best, Role::kServer);
    }
  }
  for (const wire::Door& door : links.worker())
    Try({true, door.rank(), 0}, door.endpoint(), Role::kWorker);
}

std::optional<wire::LinksTried> LinkTrial::Look() {
  Tend();
  std::erase_if(trying_, [&](const auto& entry) {
    if (entry.second == nullptr) return false;
    const auto link = entry.second->ReceiveLinkState();
    if (!link.ok() || *link != LinkState::kUp) return false;
    poller_.Remove(*entry.second);
    news_ = true;
    return true;
  });
  if (!std::exchange(news_, false)) return std::nullopt;
  wire::LinksTried tried;
  tried.set_round(round_);
  for (const auto& [key, channel] : trying_) {
    if (tried.unreached_size() == kReportedMax) break;
    wire::Unreached& unreached = *tried.add_unreached();
    unreached.set_worker(std::get<0>(key));
    unreached.set_index(std::get<1>(key));
    unreached.set_thread(std::get<2>(key));
  }
  return tried;
}

}  // namespace slackline
