#include "common/net/shm/shm_channel.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/net/shm/shared_memory.h"
#include "common/net/shm/shm_socket.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

// Who ends so many connections in a row without a word will end the next one.
constexpr int kUnwelcomeMax = 3;

}  // namespace

ShmChannel::~ShmChannel() {
  if (connection_ == nullptr) return;
  // What is in the ring is read whoever has ended.
  const absl::Time until = TimeSource().Now() + options_.linger;
  while (!connection_->writer.flushed() && !connection_->gone &&
         connection_->writer.Sleep() && TimeSource().Now() < until) {
    pollfd entry = {.fd = connection_->link->socket().get(),
                    .events = POLLIN,
                    .revents = 0};
    const int wait_ms = static_cast<int>(
        absl::ToInt64Milliseconds(until - TimeSource().Now()) + 1);
    poll(&entry, 1, wait_ms);
    connection_->gone = !connection_->link->ReadWakes();
    connection_->Flush();
  }
  Disconnect();
}

void ShmChannel::Refuse(absl::string_view why) {
  refused_ = absl::FailedPreconditionError(
      absl::StrCat("no shared memory with ", endpoint_, ": ", why));
}

void ShmChannel::Connect(absl::Time now) {
  if (connection_ != nullptr || now < next_try_ || !refused_.ok()) return;
  const absl::Status tried = TryToConnect();
  if (tried.ok()) return;
  if (absl::IsNotFound(tried)) link_state_ = LinkState::kGone;
  next_try_ = now + retry_;
  retry_ = std::min(retry_ * 2, kShmRetryMax);
}

absl::Status ShmChannel::TryToConnect() {
  SL_ASSIGN_OR_RETURN(Descriptor socket,
                      ConnectShm(endpoint_.substr(kShmSchemeLength)));
  SL_ASSIGN_OR_RETURN(
      SharedMemory control,
      SharedMemory::Create(sizeof(ShmControl), SharedMemory::Peers::kWrite));
  SL_RETURN_IF_ERROR(events_.Add(socket, 0));
  ShmHello hello = {.version = kShmVersion,
                    .arena_bytes = arena_->memory().size(),
                    .peer = {}};
  SL_CHECK(self_.size() < hello.peer.size(), "the text of a peer id is short");
  std::copy(self_.begin(), self_.end(), hello.peer.begin());
  const std::array<int, 2> descriptors = {control.descriptor(),
                                          arena_->memory().descriptor()};
  if (!SendPacket(socket, BytesOf(hello), descriptors))
    return absl::UnavailableError("the other end is gone");
  auto link = std::make_shared<ShmLink>(std::move(socket), std::move(control));
  connection_ = std::make_unique<ShmConnection>(
      link, &link->control()->to_listener, &link->control()->to_channel, arena_,
      options_);
  welcome_ = false;
  for (const Message& message : std::exchange(waiting_, {}))
    static_cast<void>(connection_->Send(message));
  return absl::OkStatus();
}

void ShmChannel::ReadEvents() {
  if (!welcome_ && !ReadWelcome()) return;
  connection_->gone = connection_->gone || !connection_->link->ReadWakes();
  connection_->Flush();
}

bool ShmChannel::ReadWelcome() {
  ShmRefusal refusal{};
  Packet packet =
      ReceivePacket(connection_->link->socket(),
                    {reinterpret_cast<std::byte*>(&refusal), sizeof(refusal)});
  if (packet.kind == PacketKind::kNone) return false;
  ShmWelcome welcome{};
  std::memcpy(&welcome, &refusal, sizeof(welcome));
  // It does not know who this is.
  connection_->gone = packet.kind == PacketKind::kGone;
  if (connection_->gone && ++unwelcome_ == kUnwelcomeMax) {
    Refuse(
        "its process ends every connection at once; it may be of another user, "
        "or in another user namespace");
  }
  if (packet.bytes == sizeof(refusal) && refusal.version == kShmRefusal) {
    refusal.why.back() = 0;
    Refuse(absl::StrCat("its process says: ", refusal.why.data()));
    Disconnect();
    return false;
  }
  if (packet.kind != PacketKind::kPacket || packet.bytes != sizeof(welcome) ||
      packet.descriptors.size() != 1 || welcome.version != kShmVersion ||
      welcome.arena_bytes > kShmPeerArenaMax) {
    counts_.malformed += packet.kind == PacketKind::kPacket;
    Disconnect();
    return false;
  }
  absl::StatusOr<SharedMemory> arena =
      SharedMemory::Map(std::move(packet.descriptors[0]), welcome.arena_bytes,
                        SharedMemory::Peers::kRead);
  if (!arena.ok()) {
    Refuse(arena.status().message());
    Disconnect();
    return false;
  }
  connection_->link->SetArena(*std::move(arena));
  welcome_ = true;
  unwelcome_ = 0;
  retry_ = kRetryMin;
  link_state_ = LinkState::kUp;
  return true;
}

void ShmChannel::Disconnect() {
  events_.Remove(connection_->link->socket());
  waiting_ = connection_->writer.TakeWaiting();
  connection_->End();
  transport_.Bury(std::move(connection_));
  next_try_ = TimeSource().Now() + retry_;
  retry_ = std::min(retry_ * 2, kShmRetryMax);
}

absl::StatusOr<std::optional<Message>> ShmChannel::Receive() {
  if (connection_ == nullptr) Connect(TimeSource().Now());
  if (!refused_.ok()) return refused_;
  if (connection_ == nullptr) return std::nullopt;
  std::optional<Message> message = ReceiveMessage();
  if (message.has_value() || connection_ == nullptr) return message;
  ReadEvents();
  if (!refused_.ok()) return refused_;
  return connection_ == nullptr ? std::nullopt : ReceiveMessage();
}

std::optional<Message> ShmChannel::ReceiveMessage() {
  if (!welcome_) return std::nullopt;
  for (int i = 0; i < kShmMalformedPerCall; ++i) {
    bool over = false;
    std::optional<ShmReader::Incoming> incoming =
        connection_->Receive(&counts_.malformed, &over);
    if (over) Disconnect();
    if (!incoming.has_value()) return std::nullopt;
    if (incoming->fault.empty()) return std::move(incoming->message);
    ++counts_.malformed;
  }
  return std::nullopt;
}

absl::Status ShmChannel::Send(const Message& message) {
  SL_RETURN_IF_ERROR(CheckBounds(message, options_));
  SL_RETURN_IF_ERROR(refused_);
  if (connection_ != nullptr && connection_->Send(message))
    return absl::OkStatus();
  if (connection_ == nullptr &&
      waiting_.size() < static_cast<size_t>(options_.send_queue_max)) {
    waiting_.push_back(message);
    return absl::OkStatus();
  }
  ++counts_.dropped;
  return absl::ResourceExhaustedError(absl::StrCat(
      "send to ", endpoint_, ": the queue is full (", options_.send_queue_max,
      " messages), nobody reads at the other end; message dropped"));
}

absl::StatusOr<absl::Duration> ShmChannel::WaitMax() {
  // Receive() says so.
  if (!refused_.ok()) return absl::ZeroDuration();
  if (connection_ == nullptr)
    return std::max(next_try_ - TimeSource().Now(), absl::ZeroDuration());
  if (!welcome_) return absl::InfiniteDuration();
  return connection_->Sleep() ? absl::InfiniteDuration() : absl::ZeroDuration();
}

}  // namespace slackline
