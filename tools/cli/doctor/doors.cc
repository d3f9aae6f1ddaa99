#include "tools/cli/doctor/doors.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <list>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/config/cluster_config.h"
#include "common/host_port.h"
#include "common/net/resolve.h"
#include "common/net/socket_address.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

constexpr absl::string_view kDoorGreeting = "slackline doctor 1\n";
constexpr size_t kCountBytes = 8;
constexpr int kPings = 3;
// One packet may be lost: it is sent again after a second.
constexpr absl::Duration kDoorConnectMax = absl::Milliseconds(1500);
// Where another door of the host has not answered.
constexpr absl::Duration kDoorConnectAgainMax = absl::Milliseconds(250);
// Of all targets: an agent that says nothing for a minute is given up.
constexpr absl::Duration kTryMax = absl::Seconds(30);
constexpr absl::Duration kGreetMax = absl::Milliseconds(1500);
constexpr absl::Duration kSendFor = absl::Milliseconds(100);
// From the first byte of the transfer on.
constexpr absl::Duration kTransferMax = absl::Seconds(1);
// In any case, so that a rate is told by more than a few packets.
constexpr size_t kTransferBytesMin = 256 << 10;
constexpr size_t kTransferBytesMax = 8 << 20;
// What is on its way stays small, so that a slow link shows its own rate.
constexpr int kSendBufferBytes = 256 << 10;
// Of strangers, too.
constexpr size_t kPeersMax = 256;
constexpr uint64_t kPeerBytesMax = 64 << 20;

Descriptor Listen(const doctor::Door& door, doctor::Opened::State* state) {
  const std::string& host = door.listen().empty() ? door.host() : door.listen();
  const absl::StatusOr<std::string> resolved =
      ResolveHost(host == "*" ? "0.0.0.0" : host);
  if (!resolved.ok()) {
    state->set_error(std::string(resolved.status().message()));
    return Descriptor();
  }
  state->set_address(*resolved);
  const absl::StatusOr<SocketAddress> address =
      SocketAddress::Of(*resolved, door.port());
  if (!address.ok()) {
    state->set_error(std::string(address.status().message()));
    return Descriptor();
  }
  Descriptor socket(::socket(address->family(),
                             SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), address->any(), address->size) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0) {
    state->set_taken(errno == EADDRINUSE);
    state->set_error(absl::StrCat("listening at ",
                                  HostPort(*resolved, door.port()), ": ",
                                  std::strerror(errno)));
    return Descriptor();
  }
  const absl::StatusOr<SocketAddress> bound =
      SocketAddress::OfSocket(socket.get());
  state->set_port(bound.ok() ? bound->port() : 0);
  return socket;
}

// Somebody who has connected to a door.
struct Peer {
  Descriptor socket;
  std::string greeting;  // As far as it has come.
  uint64_t received = 0;
};

// False: it is over.
bool Serve(Peer* peer) {
  static_assert(kCountBytes == sizeof(uint64_t));
  std::array<char, 64 << 10> bytes;
  const bool greets = peer->greeting.size() < kDoorGreeting.size();
  const size_t wanted =
      greets ? kDoorGreeting.size() - peer->greeting.size() : bytes.size();
  const ssize_t received =
      recv(peer->socket.get(), bytes.data(), wanted, MSG_DONTWAIT);
  if (received < 0) return errno == EAGAIN || errno == EINTR;
  if (received == 0) return false;
  std::string answer;
  if (greets) {
    peer->greeting.append(bytes.data(), static_cast<size_t>(received));
    if (!absl::StartsWith(kDoorGreeting, peer->greeting)) return false;
    if (peer->greeting.size() < kDoorGreeting.size()) return true;
    answer = std::string(kDoorGreeting);
  } else {
    peer->received += static_cast<uint64_t>(received);
    if (peer->received > kPeerBytesMax) return false;
    for (int shift = 56; shift >= 0; shift -= 8)
      answer.push_back(static_cast<char>(peer->received >> shift & 0xff));
  }
  // Whoever does not read its counts has no use for more.
  return send(peer->socket.get(), answer.data(), answer.size(),
              MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(answer.size());
}

// The connection, or in `*result` why there is none.
Descriptor ConnectTo(const doctor::Try::Target& target, absl::Duration wait_max,
                     doctor::Connection* result) {
  result->set_label(target.label());
  result->set_endpoint(HostPort(target.host(), target.port()));
  const absl::StatusOr<std::string> resolved = ResolveHost(target.host());
  if (!resolved.ok()) {
    result->set_state(doctor::Connection::NO_NAME);
    result->set_detail(std::string(resolved.status().message()));
    return Descriptor();
  }
  result->set_endpoint(HostPort(*resolved, target.port()));
  const absl::StatusOr<SocketAddress> address =
      SocketAddress::Of(*resolved, target.port());
  if (!address.ok()) {
    result->set_state(doctor::Connection::NO_NAME);
    result->set_detail(std::string(address.status().message()));
    return Descriptor();
  }
  Descriptor socket(::socket(address->family(),
                             SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes,
             sizeof(kSendBufferBytes));
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const int error =
      ConnectWithin(wait_max, socket.get(), address->any(), address->size);
  if (error == 0) return socket;
  if (error == ETIMEDOUT) {
    result->set_state(doctor::Connection::NO_ANSWER);
    result->set_detail(absl::StrCat("no answer within ",
                                    absl::FormatDuration(kDoorConnectMax),
                                    ", so packets are dropped on the way"));
  } else {
    result->set_state(error == ECONNREFUSED ? doctor::Connection::REFUSED
                                            : doctor::Connection::NO_ROUTE);
    result->set_detail(std::strerror(error));
  }
  return Descriptor();
}

// What a door answers, as it comes. False: nothing more, or not in time.
bool ReadSome(int socket, absl::Time end, std::string* read) {
  if (!AwaitEvents(socket, POLLIN, end)) return false;
  std::array<char, 4096> bytes;
  const ssize_t received =
      recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (received < 0) return errno == EAGAIN || errno == EINTR;
  if (received == 0) return false;
  read->append(bytes.data(), static_cast<size_t>(received));
  return true;
}

// The last whole count in `*counts`, which keeps what is behind it; 0: none.
uint64_t TakeCount(std::string* counts) {
  const size_t whole = counts->size() / kCountBytes * kCountBytes;
  if (whole == 0) return 0;
  uint64_t count = 0;
  for (size_t i = whole - kCountBytes; i < whole; ++i)
    count = count << 8 | static_cast<uint8_t>((*counts)[i]);
  counts->erase(0, whole);
  return count;
}

bool Greet(int socket, doctor::Connection* result) {
  const TimeSource time;
  const absl::Time end = time.Now() + kGreetMax;
  send(socket, kDoorGreeting.data(), kDoorGreeting.size(), MSG_NOSIGNAL);
  std::string answer;
  bool more = true;
  while (more && answer.size() < kDoorGreeting.size())
    more = ReadSome(socket, end, &answer);
  if (answer == kDoorGreeting) return true;
  const bool silent = answer.empty() && time.Now() >= end;
  result->set_state(silent ? doctor::Connection::NO_ANSWER
                           : doctor::Connection::STRANGER);
  if (silent) result->set_detail("it connects, and then nothing comes back");
  return false;
}

bool Ping(int socket, doctor::Connection* result) {
  const TimeSource time;
  absl::Duration best = absl::InfiniteDuration();
  for (int i = 0; i < kPings; ++i) {
    const absl::Time sent = time.Now();
    if (send(socket, "p", 1, MSG_NOSIGNAL) != 1) return false;
    std::string answer;
    while (answer.size() < kCountBytes) {
      if (!ReadSome(socket, sent + kGreetMax, &answer)) return false;
    }
    best = std::min(best, time.Now() - sent);
  }
  result->set_round_trip_us(absl::ToInt64Microseconds(best));
  return true;
}

void Transfer(int socket, doctor::Connection* result) {
  const TimeSource time;
  const absl::Time begin = time.Now();
  const std::string block(64 << 10, 'x');
  size_t sent = 0;
  uint64_t arrived = 0;
  absl::Time last = begin;
  std::string counts;
  while (true) {
    const absl::Time now = time.Now();
    const bool is_early = now - begin < kSendFor;
    const bool sends =
        sent < (is_early ? kTransferBytesMax : kTransferBytesMin);
    if (now - begin > kTransferMax) break;
    if (!sends && arrived >= sent + kPings) break;
    pollfd file = {.fd = socket,
                   .events = static_cast<short>(POLLIN | (sends ? POLLOUT : 0)),
                   .revents = 0};
    const absl::Time until =
        begin + (sends && is_early ? kSendFor : kTransferMax);
    poll(&file, 1,
         static_cast<int>(
             std::max<int64_t>(absl::ToInt64Milliseconds(until - now) + 1, 0)));
    if ((file.revents & POLLOUT) != 0) {
      const ssize_t written =
          send(socket, block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (written > 0) sent += static_cast<size_t>(written);
    }
    if ((file.revents & ~POLLOUT) == 0) continue;
    if (!ReadSome(socket, now, &counts)) break;
    if (const uint64_t count = TakeCount(&counts); count > 0) {
      arrived = count;
      last = time.Now();
    }
  }
  const int64_t bytes = static_cast<int64_t>(arrived) - kPings;
  result->set_bytes(std::max<int64_t>(bytes, 0));
  // The last count was half a round trip on its way, as the first byte was.
  result->set_micros(std::max<int64_t>(
      absl::ToInt64Microseconds(last - begin) - result->round_trip_us(), 1));
  if (bytes > 0 || sent == 0) return;
  result->set_state(doctor::Connection::STALLED);
  result->set_detail(absl::StrCat("of ", sent,
                                  " bytes none has arrived within ",
                                  absl::FormatDuration(kTransferMax)));
}

}  // namespace

Doors::Doors(const doctor::Open& open)
    : end_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (const doctor::Door& door : open.door()) {
    doctor::Opened::State& state = *opened_.add_door();
    state.set_label(door.label());
    state.set_port(door.port());
    Descriptor listener = Listen(door, &state);
    if (listener.get() >= 0) listeners_.push_back(std::move(listener));
  }
  thread_ = std::thread([this] { Loop(); });
}

Doors::~Doors() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(end_.get(), &one, sizeof(one));
  thread_.join();
}

void Doors::Loop() {
  std::list<Peer> peers;
  while (true) {
    std::vector<pollfd> files = {
        {.fd = end_.get(), .events = POLLIN, .revents = 0}};
    for (const Descriptor& listener : listeners_) {
      files.push_back({.fd = peers.size() < kPeersMax ? listener.get() : -1,
                       .events = POLLIN,
                       .revents = 0});
    }
    for (const Peer& peer : peers) {
      files.push_back(
          {.fd = peer.socket.get(), .events = POLLIN, .revents = 0});
    }
    if (poll(files.data(), files.size(), -1) < 0 && errno != EINTR) return;
    if (files[0].revents != 0) return;
    size_t next = 1 + listeners_.size();
    for (auto peer = peers.begin(); peer != peers.end(); ++next) {
      const bool over = files[next].revents != 0 && !Serve(&*peer);
      peer = over ? peers.erase(peer) : std::next(peer);
    }
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (files[1 + i].revents == 0) continue;
      Descriptor socket(accept4(listeners_[i].get(), nullptr, nullptr,
                                SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.get() < 0) continue;
      const int on = 1;
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      peers.push_back({.socket = std::move(socket), .greeting = {}});
    }
  }
}

doctor::Tried TryDoors(const doctor::Try& targets) {
  const TimeSource time;
  const absl::Time end = time.Now() + kTryMax;
  doctor::Tried tried;
  std::set<std::string> silent;  // Hosts.
  for (const doctor::Try::Target& target : targets.target()) {
    doctor::Connection& result = *tried.add_connection();
    if (time.Now() > end) continue;
    const Descriptor socket =
        ConnectTo(target,
                  silent.count(target.host()) > 0 ? kDoorConnectAgainMax
                                                  : kDoorConnectMax,
                  &result);
    if (result.state() == doctor::Connection::NO_ANSWER)
      silent.insert(target.host());
    if (socket.get() < 0) continue;
    if (!Greet(socket.get(), &result)) continue;
    if (!Ping(socket.get(), &result)) {
      result.set_state(doctor::Connection::NO_ANSWER);
      result.set_detail("it connects, and then answers are missing");
      continue;
    }
    result.set_state(doctor::Connection::OPEN);
    if (target.transfer()) Transfer(socket.get(), &result);
  }
  return tried;
}

}  // namespace slackline
