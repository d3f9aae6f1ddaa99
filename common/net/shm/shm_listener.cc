#include "common/net/shm/shm_listener.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/shm/shared_memory.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

constexpr int kAcceptedPerCall = 64;
// Of those who have connected and said nothing yet.
constexpr size_t kGreetingMax = 1024;

}  // namespace

absl::StatusOr<std::string> ShmListener::Bind(const std::string& endpoint) {
  if (!IsShmEndpoint(endpoint)) return others_->Bind(endpoint);
  if (listening_.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("bind to ", endpoint, ": has an shm endpoint already"));
  }
  SL_RETURN_IF_ERROR(transport_.Arena().status());
  SL_ASSIGN_OR_RETURN(listening_, ListenShm(endpoint.substr(kShmSchemeLength)));
  SL_RETURN_IF_ERROR(events_.Add(listening_, 0));
  return endpoint;
}

ChannelCounts ShmListener::counts() const {
  ChannelCounts counts = others_->counts();
  counts.malformed += counts_.malformed;
  counts.dropped += counts_.dropped;
  if (turned_away_.count == 0) return counts;
  // Of two last ones, that of another user is told: it is on this host.
  counts.refused.set_other_user(counts.refused.other_user() +
                                turned_away_.count);
  counts.last_refused =
      absl::StrCat("a process of user ", turned_away_.last_uid,
                   " of this host: memory is shared with processes of user ",
                   geteuid(), " only");
  return counts;
}

std::vector<int> ShmListener::Descriptors() const {
  std::vector<int> descriptors = others_->Descriptors();
  descriptors.push_back(events_.descriptor());
  return descriptors;
}

absl::StatusOr<absl::Duration> ShmListener::WaitMax() {
  SL_ASSIGN_OR_RETURN(const absl::Duration may_wait, others_->WaitMax());
  for (Peer* const peer : quiet_) {
    peer->listed = !peer->connection->Sleep();
    if (peer->listed) busy_.push_back(peer);
  }
  quiet_.clear();
  if (!busy_.empty()) return absl::ZeroDuration();
  if (accept_again_ == absl::InfiniteFuture()) return may_wait;
  return std::min(may_wait, std::max(accept_again_ - TimeSource().Now(),
                                     absl::ZeroDuration()));
}

absl::StatusOr<std::optional<Listener::Incoming>> ShmListener::Receive() {
  // Both kinds take turns.
  for (int kind = 0; kind < 2; ++kind) {
    others_turn_ = !others_turn_;
    if (!others_turn_) {
      std::optional<Incoming> incoming = ReceiveShared();
      if (incoming.has_value()) return incoming;
      continue;
    }
    SL_ASSIGN_OR_RETURN(std::optional<Incoming> incoming, others_->Receive());
    if (!incoming.has_value()) continue;
    if (!routes_.empty()) routes_.erase(incoming->from);
    return incoming;
  }
  return std::nullopt;
}

std::optional<Listener::Incoming> ShmListener::ReceiveShared() {
  for (bool looked = false;;) {
    if (busy_.empty() && !std::exchange(looked, true)) {
      ReadEvents();
      std::erase_if(quiet_, [&](Peer* peer) {
        if (!peer->connection->HasNews()) return false;
        busy_.push_back(peer);
        return true;
      });
    }
    if (busy_.empty()) return std::nullopt;
    turn_ = turn_ < busy_.size() ? turn_ : 0;
    Peer* const peer = busy_[turn_];
    bool over = false;
    std::optional<Incoming> incoming = ReceiveFrom(peer, &over);
    if (incoming.has_value()) {
      ++turn_;
      return incoming;
    }
    busy_.erase(busy_.begin() + static_cast<ptrdiff_t>(turn_));
    if (over) {
      End(peer);
      peers_.erase(peer->key);
    } else {
      quiet_.push_back(peer);
    }
  }
}

std::optional<Listener::Incoming> ShmListener::ReceiveFrom(Peer* peer,
                                                           bool* over) {
  for (int i = 0; i < kShmMalformedPerCall; ++i) {
    std::optional<ShmReader::Incoming> incoming =
        peer->connection->Receive(&counts_.malformed, over);
    if (!incoming.has_value()) return std::nullopt;
    if (incoming->fault.empty()) {
      routes_[peer->id] = peer;
      return Incoming{peer->id, std::move(incoming->message)};
    }
    ++counts_.malformed;
    Message reply;
    reply.header.mutable_error_reply()->set_error(
        absl::StrCat("malformed message: ", incoming->fault));
    // Whoever does not read misses it.
    static_cast<void>(peer->connection->Send(reply));
  }
  return std::nullopt;
}

void ShmListener::ReadEvents() {
  if (accept_again_ != absl::InfiniteFuture() &&
      accept_again_ <= TimeSource().Now() && events_.Add(listening_, 0).ok()) {
    accept_again_ = absl::InfiniteFuture();
  }
  for (const uint64_t key : events_.Take()) {
    if (key == 0) {
      Accept();
      continue;
    }
    const auto greeting = greeting_.find(key);
    if (greeting != greeting_.end()) {
      Descriptor socket = std::move(greeting->second);
      const bool waits = Greet(&socket, key);
      if (waits) {
        greeting->second = std::move(socket);
      } else {
        greeting_.erase(greeting);
      }
      continue;
    }
    const auto peer = peers_.find(key);
    if (peer == peers_.end()) continue;
    ShmConnection& connection = *peer->second->connection;
    if (!connection.link->ReadWakes()) {
      connection.gone = true;
      // It would be news for ever.
      events_.Remove(connection.link->socket());
    }
    connection.Flush();
    if (!std::exchange(peer->second->listed, true))
      busy_.push_back(peer->second.get());
  }
}

void ShmListener::Accept() {
  for (int i = 0; i < kAcceptedPerCall; ++i) {
    absl::StatusOr<Descriptor> socket = AcceptShm(listening_, &turned_away_);
    if (!socket.ok()) {
      // Who waits would be news for ever.
      events_.Remove(listening_);
      accept_again_ = TimeSource().Now() + kShmRetryMax;
      return;
    }
    if (!socket->valid()) return;
    const uint64_t key = next_key_++;
    if (!events_.Add(*socket, key).ok()) continue;
    if (greeting_.size() >= kGreetingMax) greeting_.erase(greeting_.begin());
    greeting_.emplace(key, *std::move(socket));
  }
}

bool ShmListener::Greet(Descriptor* socket, uint64_t key) {
  ShmHello hello{};
  Packet packet = ReceivePacket(
      *socket, {reinterpret_cast<std::byte*>(&hello), sizeof(hello)});
  if (packet.kind == PacketKind::kNone) return true;
  if (packet.kind == PacketKind::kGone) return false;
  ++counts_.malformed;  // Until it is found to be none.
  PeerId id;
  if (packet.bytes != sizeof(hello) || packet.descriptors.size() != 2 ||
      hello.version != kShmVersion || hello.arena_bytes > kShmPeerArenaMax ||
      hello.peer.back() != 0 || !PeerId::FromString(hello.peer.data(), &id) ||
      id.ToString() != hello.peer.data() ||
      peers_.size() >= static_cast<size_t>(options_.peers_max)) {
    return false;
  }
  absl::StatusOr<SharedMemory> control =
      SharedMemory::Map(std::move(packet.descriptors[0]), sizeof(ShmControl),
                        SharedMemory::Peers::kWrite);
  absl::StatusOr<SharedMemory> arena =
      SharedMemory::Map(std::move(packet.descriptors[1]), hello.arena_bytes,
                        SharedMemory::Peers::kRead);
  const absl::StatusOr<std::shared_ptr<ShmArena>> own = transport_.Arena();
  for (const absl::Status& status :
       {control.status(), arena.status(), own.status()}) {
    if (status.ok()) continue;
    // What it has sent is wrong, or there is no room for what is right.
    if (!absl::IsUnavailable(status)) return false;
    --counts_.malformed;
    ShmRefusal refusal = {.version = kShmRefusal, .why = {}};
    const std::string why(status.message());
    why.copy(refusal.why.data(), refusal.why.size() - 1);
    static_cast<void>(SendPacket(*socket, BytesOf(refusal), {}));
    return false;
  }
  const ShmWelcome welcome = {.version = kShmVersion,
                              .arena_bytes = (*own)->memory().size()};
  const int descriptor = (*own)->memory().descriptor();
  if (!SendPacket(*socket, BytesOf(welcome), {&descriptor, 1})) return false;
  --counts_.malformed;
  auto link =
      std::make_shared<ShmLink>(std::move(*socket), *std::move(control));
  link->SetArena(*std::move(arena));
  auto peer = std::make_unique<Peer>();
  peer->id = id;
  peer->key = key;
  peer->connection = std::make_unique<ShmConnection>(
      link, &link->control()->to_channel, &link->control()->to_listener, *own,
      reading_);
  peer->listed = true;
  busy_.push_back(peer.get());
  peers_.emplace(key, std::move(peer));
  return false;
}

void ShmListener::End(Peer* peer) {
  const auto route = routes_.find(peer->id);
  if (route != routes_.end() && route->second == peer) routes_.erase(route);
  if (!peer->connection->gone) events_.Remove(peer->connection->link->socket());
  peer->connection->End();
  transport_.Bury(std::move(peer->connection));
}

absl::Status ShmListener::Send(const PeerId& to, const Message& message) {
  const auto route = routes_.find(to);
  if (route == routes_.end()) return others_->Send(to, message);
  SL_RETURN_IF_ERROR(CheckBounds(message, options_));
  Peer* const peer = route->second;
  ShmConnection& connection = *peer->connection;
  if (connection.gone) {
    ++counts_.dropped;
    return absl::NotFoundError(absl::StrCat("send to ", to.ToString(),
                                            ": it has ended; message dropped"));
  }
  const bool sent = connection.Send(message);
  // Before this thread sleeps the peer is told to wake it when there is room.
  if (!connection.writer.flushed() && !std::exchange(peer->listed, true))
    quiet_.push_back(peer);
  if (sent) return absl::OkStatus();
  ++counts_.dropped;
  return absl::ResourceExhaustedError(absl::StrCat(
      "send to ", to.ToString(), ": its queue is full (",
      options_.send_queue_max,
      " messages), it reads too slowly or not at all; message dropped"));
}

}  // namespace slackline
