#include "common/net/shm/shm_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr int kBacklog = 1024;
constexpr size_t kDescriptorsMax = 4;

struct Address {
  sockaddr_un address{};
  socklen_t bytes = 0;
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }
};

absl::StatusOr<Address> AddressOf(const std::string& name) {
  Address address;
  address.address.sun_family = AF_UNIX;
  // A zero byte first.
  if (name.empty() || name.size() >= sizeof(address.address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm name of ", name.size(), " bytes, 1 to ",
                     sizeof(address.address.sun_path) - 1, " are allowed"));
  }
  std::memcpy(address.address.sun_path + 1, name.data(), name.size());
  address.bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

absl::Status CallFailed(const char* call, const std::string& name) {
  return absl::UnavailableError(
      absl::StrCat(call, " shm://@", name, ": ", std::strerror(errno)));
}

Descriptor Socket() {
  return Descriptor(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

absl::StatusOr<Descriptor> ListenShm(const std::string& name) {
  SL_ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  Descriptor listener = Socket();
  if (!listener.valid()) return CallFailed("socket for", name);
  if (bind(listener.get(), address.get(), address.bytes) != 0)
    return CallFailed("bind to", name);
  if (listen(listener.get(), kBacklog) != 0)
    return CallFailed("listen at", name);
  return listener;
}

absl::StatusOr<Descriptor> ConnectShm(const std::string& name) {
  SL_ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  Descriptor socket = Socket();
  if (!socket.valid()) return CallFailed("socket for", name);
  if (connect(socket.get(), address.get(), address.bytes) == 0) return socket;
  if (errno == ECONNREFUSED) {
    return absl::NotFoundError(absl::StrCat("nobody listens at shm://@", name));
  }
  return CallFailed("connect to", name);
}

absl::StatusOr<Descriptor> AcceptShm(const Descriptor& listener,
                                     TurnedAway* turned_away) {
  while (true) {
    Descriptor socket(accept4(listener.get(), nullptr, nullptr,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Descriptor();
      return absl::UnavailableError(
          absl::StrCat("accept: ", std::strerror(errno)));
    }
    // Who may use it could as well kill this process.
    ucred peer{};
    socklen_t bytes = sizeof(peer);
    if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
      continue;
    if (peer.uid == geteuid()) return socket;
    ++turned_away->count;
    turned_away->last_uid = peer.uid;
  }
}

bool SendPacket(const Descriptor& socket, absl::Span<const std::byte> bytes,
                absl::Span<const int> descriptors) {
  SL_CHECK(descriptors.size() <= kDescriptorsMax, "too many descriptors");
  iovec data = {.iov_base = const_cast<std::byte*>(bytes.data()),
                .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kDescriptorsMax)>
      control{};
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(),
                sizeof(int) * descriptors.size());
  }
  while (true) {
    const ssize_t sent =
        sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return true;
    if (errno != EINTR) return false;
  }
}

Packet ReceivePacket(const Descriptor& socket, absl::Span<std::byte> bytes) {
  iovec data = {.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kDescriptorsMax)>
      control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t received = 0;
  do {
    received = recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  Packet packet;
  if (received < 0) {
    packet.kind = errno == EAGAIN || errno == EWOULDBLOCK ? PacketKind::kNone
                                                          : PacketKind::kGone;
    return packet;
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
      continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int),
                  sizeof(int));
      packet.descriptors.emplace_back(descriptor);
    }
  }
  packet.bytes = static_cast<size_t>(received);
  packet.kind = received == 0 ? PacketKind::kGone : PacketKind::kPacket;
  return packet;
}

}  // namespace slackline
