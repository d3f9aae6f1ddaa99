#include "common/net/zmq/tcp_peers.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host_port.h"

namespace slackline {
namespace {

// The number that the kernel gives a socket and no other; 0 if there is none.
uint64_t CookieOf(int descriptor) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  if (getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0)
    return 0;
  return cookie;
}

// What the other end takes back before it is known: a greeting (64), and what
// proves ours (170). What lets it in is 65 bytes and more.
constexpr int64_t kAnsweredBeforeKey = 280;
constexpr int64_t kUnreadBeforeKeyMax = int64_t{64} << 10;

// Bytes of a TCP connection.
struct Traffic {
  int64_t arrived = 0;
  int64_t taken = 0;  // By the other end.
};
std::optional<Traffic> TrafficOf(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_bytes_received) +
                 sizeof(info.tcpi_bytes_received)) {
    return std::nullopt;
  }
  return Traffic{.arrived = static_cast<int64_t>(info.tcpi_bytes_received),
                 .taken = static_cast<int64_t>(info.tcpi_bytes_acked)};
}

// Address and port at the other end.
std::string NameOf(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (getpeername(descriptor, any, &size) != 0 ||
      getnameinfo(any, size, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an address that is not known";
  }
  return HostPort(host.data(), absl::string_view(port.data()));
}

}  // namespace

void TcpPeers::OnAccepted(int descriptor) {
  const uint64_t cookie = CookieOf(descriptor);
  if (cookie == 0 || !TrafficOf(descriptor).has_value()) return;
  peers_[descriptor] = {
      .cookie = cookie, .received = 0, .name = NameOf(descriptor)};
}

std::string TcpPeers::OnEnded(int descriptor) {
  const auto peer = peers_.find(descriptor);
  if (peer == peers_.end()) return "an address that is not known";
  std::string name = std::move(peer->second.name);
  peers_.erase(peer);
  return name;
}

void TcpPeers::OnReceived(int descriptor, int64_t bytes) {
  const auto peer = peers_.find(descriptor);
  if (peer != peers_.end()) peer->second.received += bytes;
}

void TcpPeers::Look(absl::Time now) {
  if (now < next_look_) return;
  next_look_ = now + kLookEvery;
  if (now < silent_ends_until_) {
    std::erase_if(peers_, [](const auto& entry) {
      return CookieOf(entry.first) != entry.second.cookie;
    });
  }
  for (auto& [descriptor, peer] : peers_) {
    const std::optional<Traffic> traffic = TrafficOf(descriptor);
    if (!traffic.has_value()) continue;
    const bool unknown = options_.shows_key && peer.received == 0 &&
                         traffic->taken < kAnsweredBeforeKey;
    const int64_t unread = traffic->arrived - peer.received;
    const int64_t unread_max =
        unknown ? kUnreadBeforeKeyMax : options_.unread_bytes_max;
    if (unread <= unread_max || CookieOf(descriptor) != peer.cookie) continue;
    last_ended_ = absl::StrCat(peer.name, " with ", unread, " bytes unread",
                               unknown ? " before it had shown a key" : "");
    // ZeroMQ owns the descriptor. It reads the end of the connection, drops
    // what it holds of it and closes it, which resets the connection.
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    shutdown(descriptor, SHUT_RDWR);
    ++ended_count_;
  }
}

}  // namespace slackline
