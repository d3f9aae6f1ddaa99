#include "common/net/shm/shm_connection.h"

#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr int kEventsPerCall = 64;
// Of wakes that are taken in one go: there is one at a time, of a peer that
// keeps to the rules.
constexpr int kPacketsPerCall = 64;

}  // namespace

bool IsShmEndpoint(const std::string& endpoint) {
  return absl::StartsWith(endpoint, kShmScheme);
}

void ShmLink::Wake() const {
  const std::byte wake{1};
  // If it takes none, it has some, or is gone.
  static_cast<void>(SendPacket(socket_, {&wake, 1}, {}));
}

bool ShmLink::ReadWakes() const {
  std::array<std::byte, 8> bytes;
  for (int i = 0; i < kPacketsPerCall; ++i) {
    const Packet packet = ReceivePacket(socket_, absl::MakeSpan(bytes));
    if (packet.kind != PacketKind::kPacket)
      return packet.kind != PacketKind::kGone;
  }
  return true;
}

bool ShmLink::Gone() const {
  pollfd entry = {.fd = socket_.get(), .events = 0, .revents = 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLERR)) != 0;
}

ShmEventQueue::ShmEventQueue() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  SL_CHECK(epoll_.valid(),
           absl::StrCat("epoll_create1: ", std::strerror(errno)));
}

absl::Status ShmEventQueue::Add(const Descriptor& descriptor, uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = key;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor.get(), &event) == 0)
    return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("epoll_ctl: ", std::strerror(errno)));
}

void ShmEventQueue::Remove(const Descriptor& descriptor) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor.get(), nullptr);
}

std::vector<uint64_t> ShmEventQueue::Take() {
  std::array<epoll_event, kEventsPerCall> events;
  const int count = epoll_wait(epoll_.get(), events.data(), kEventsPerCall, 0);
  std::vector<uint64_t> keys;
  for (int i = 0; i < count; ++i) {
    const uint64_t key = events[i].data.u64;  // It may not be aligned.
    keys.push_back(key);
  }
  return keys;
}

std::optional<ShmReader::Incoming> ShmConnection::Receive(int64_t* malformed,
                                                          bool* over) {
  absl::StatusOr<std::optional<ShmReader::Incoming>> incoming =
      reader.Receive();
  if (reader.TakeWake()) link->Wake();
  if (!incoming.ok() || writer.broken()) {
    ++*malformed;
    *over = true;
    return std::nullopt;
  }
  *over =
      !incoming->has_value() && !reader.HasInput() && (reader.ended() || gone);
  return *std::move(incoming);
}

}  // namespace slackline
