// tun_link: a slow link between two hosts, on one machine and in user space,
// for kernels without netem.
//
// It makes two network namespaces, A with address 10.77.0.1 and B with
// 10.77.0.2, gives each a TUN device, and carries the packets from one device
// to the other: `bandwidth` and `latency` as DelayLine has them, each packet
// lost with probability `loss`, and a packet that finds the queue longer than
// `queue-ms` lost as well. Both directions are alike and independent. As faults
// of a network: packets of more than `packet-bytes-max` vanish, and with
// --refuse-to-b so do attempts of A to connect to B.
//
// stdout: when the link is there, one line of JSON with the paths of the two
// namespaces, for nsenter --net=PATH; at the end (SIGTERM, or the end of
// its parent) one line with the packets and bytes of each direction. The
// namespaces and devices are gone when this program and those in the namespaces
// have ended, however they end.
// Exit code 77: this machine allows no namespaces or has no TUN devices.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/net/delayed/delay_line.h"
#include "common/rng.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr int kExitNotPossible = 77;
constexpr size_t kPacketMax = 65536;

struct Options {
  double bandwidth_mbit = 5;
  int latency_ms = 20;  // Of one way.
  double loss = 0.01;
  int queue_ms = 200;
  int mtu = 1500;  // Of both devices.
  size_t packet_bytes_max = kPacketMax;
  bool refuse_to_b = false;
  uint64_t seed = 1;
};

absl::Status Failure(const std::string& what) {
  return absl::ErrnoToStatus(errno, what);
}

// Gives `device` of the present namespace the address and the MTU, if any, and
// starts it.
absl::Status Configure(const std::string& device, const char* address,
                       int mtu) {
  const int socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return Failure("socket");
  const auto call = [&](unsigned long request, ifreq* argument) {
    return ioctl(socket_fd, request, argument) == 0;
  };
  ifreq request{};
  device.copy(request.ifr_name, IFNAMSIZ - 1);
  absl::Status status;
  if (address != nullptr) {
    sockaddr_in ip{};
    ip.sin_family = AF_INET;
    inet_pton(AF_INET, address, &ip.sin_addr);
    std::memcpy(&request.ifr_addr, &ip, sizeof(ip));
    if (!call(SIOCSIFADDR, &request))
      status.Update(Failure(absl::StrCat("address of ", device)));
    inet_pton(AF_INET, "255.255.255.0", &ip.sin_addr);
    std::memcpy(&request.ifr_netmask, &ip, sizeof(ip));
    if (!call(SIOCSIFNETMASK, &request))
      status.Update(Failure(absl::StrCat("netmask of ", device)));
    request.ifr_mtu = mtu;
    if (!call(SIOCSIFMTU, &request))
      status.Update(Failure(absl::StrCat("MTU of ", device)));
  }
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (!call(SIOCSIFFLAGS, &request))
    status.Update(Failure(absl::StrCat("start of ", device)));
  close(socket_fd);
  return status;
}

struct End {
  int namespace_fd = -1;
  int tun_fd = -1;
};

// Leaves this process in the new namespace.
absl::StatusOr<End> MakeEnd(const char* address, int mtu) {
  End end;
  if (unshare(CLONE_NEWNET) != 0) return Failure("a network namespace");
  end.namespace_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (end.namespace_fd < 0) return Failure("/proc/self/ns/net");
  end.tun_fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (end.tun_fd < 0) return Failure("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, "tun0", IFNAMSIZ - 1);
  if (ioctl(end.tun_fd, TUNSETIFF, &request) != 0) return Failure("tun0");
  SL_RETURN_IF_ERROR(Configure("lo", nullptr, 0));
  SL_RETURN_IF_ERROR(Configure("tun0", address, mtu));
  return end;
}

using Packet = std::vector<char>;

// RFC 791, RFC 9293: the first packet of a connection, and none of its answers.
bool BeginsConnection(const char* packet, size_t size) {
  constexpr int kTcp = 6;
  constexpr size_t kProtocolAt = 9;
  constexpr size_t kFlagsAt = 13;
  constexpr int kSyn = 2;
  constexpr int kAck = 16;
  if (size <= kProtocolAt || packet[kProtocolAt] != kTcp) return false;
  const size_t header = static_cast<size_t>(packet[0] & 15) * 4;
  if (size <= header + kFlagsAt) return false;
  return (packet[header + kFlagsAt] & (kSyn | kAck)) == kSyn;
}

class Direction {
 public:
  Direction(int from, int to, const Options& options, bool refuses, Rng rng)
      : from_(from),
        to_(to),
        refuses_(refuses),
        packet_bytes_max_(options.packet_bytes_max),
        loss_(options.loss),
        queue_max_(absl::Milliseconds(options.queue_ms)),
        rng_(rng),
        line_(LinkModel{.latency = absl::Milliseconds(options.latency_ms),
                        .bytes_per_second = options.bandwidth_mbit * 1e6 / 8}) {
  }

  int from() const { return from_; }
  absl::Time NextWakeup() const { return line_.NextWakeup(); }

  void TakePackets() {
    std::array<char, kPacketMax> buffer;
    while (true) {
      const ssize_t size = read(from_, buffer.data(), buffer.size());
      if (size <= 0) return;
      const absl::Time now = absl::Now();
      ++packets_;
      bytes_ += static_cast<uint64_t>(size);
      const bool vanishes =
          static_cast<size_t>(size) > packet_bytes_max_ ||
          (refuses_ &&
           BeginsConnection(buffer.data(), static_cast<size_t>(size)));
      if (vanishes || rng_.Chance(loss_)) {
        ++lost_;
      } else if (line_.Backlog(now) > queue_max_) {
        ++refused_;
      } else {
        line_.Push(now, static_cast<size_t>(size),
                   Packet(buffer.data(), buffer.data() + size));
      }
    }
  }
  void DeliverPackets() {
    while (const std::optional<Packet> packet = line_.PopDue(absl::Now())) {
      // The device is down while its namespace goes away: the packet is lost.
      if (write(to_, packet->data(), packet->size()) < 0) continue;
    }
  }

  nlohmann::json Counts() const {
    return {{"packets", packets_},
            {"bytes", bytes_},
            {"lost", lost_},
            {"queue_full", refused_}};
  }

 private:
  const int from_;
  const int to_;
  const bool refuses_;
  const size_t packet_bytes_max_;
  const double loss_;
  const absl::Duration queue_max_;
  Rng rng_;
  DelayLine<Packet> line_;
  uint64_t packets_ = 0;
  uint64_t bytes_ = 0;
  uint64_t lost_ = 0;
  uint64_t refused_ = 0;
};

// Until `end_fd` has something to read.
absl::Status Carry(std::array<Direction, 2>& directions, int end_fd) {
  std::array<pollfd, 3> waits{};
  while (waits[2].revents == 0) {
    absl::Time wake = absl::InfiniteFuture();
    for (size_t i = 0; i < directions.size(); ++i) {
      waits[i] = {.fd = directions[i].from(), .events = POLLIN, .revents = 0};
      wake = std::min(wake, directions[i].NextWakeup());
    }
    waits[2] = {.fd = end_fd, .events = POLLIN, .revents = 0};
    const timespec timeout = absl::ToTimespec(std::clamp(
        wake - absl::Now(), absl::ZeroDuration(), absl::Seconds(60)));
    if (ppoll(waits.data(), waits.size(), &timeout, nullptr) < 0 &&
        errno != EINTR) {
      return Failure("poll of the devices");
    }
    for (Direction& direction : directions) {
      direction.TakePackets();
      direction.DeliverPackets();
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("A slow link between two network namespaces.");
  app.add_option("--bandwidth-mbit", options.bandwidth_mbit)
      ->check(CLI::PositiveNumber);
  app.add_option("--latency-ms", options.latency_ms)
      ->check(CLI::NonNegativeNumber);
  app.add_option("--loss", options.loss)->check(CLI::Range(0.0, 1.0));
  app.add_option("--queue-ms", options.queue_ms)->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed);
  app.add_option("--mtu", options.mtu)->check(CLI::Range(68, 65535));
  app.add_option("--packet-bytes-max", options.packet_bytes_max);
  app.add_flag("--refuse-to-b", options.refuse_to_b);
  CLI11_PARSE(app, argc, argv);

  sigset_t end_signals;
  sigemptyset(&end_signals);
  sigaddset(&end_signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &end_signals, nullptr);
  const int end_fd = signalfd(-1, &end_signals, SFD_CLOEXEC);
  const pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) return 1;

  std::array<End, 2> ends;
  for (size_t i = 0; i < ends.size(); ++i) {
    const absl::StatusOr<End> made =
        MakeEnd(i == 0 ? "10.77.0.1" : "10.77.0.2", options.mtu);
    if (!made.ok()) {
      std::fprintf(stderr, "tun_link: cannot make %s\n",
                   made.status().ToString().c_str());
      return kExitNotPossible;
    }
    ends[i] = *made;
  }
  const auto path = [](const End& end) {
    return absl::StrCat("/proc/", getpid(), "/fd/", end.namespace_fd);
  };
  const nlohmann::json ready = {{"a", path(ends[0])}, {"b", path(ends[1])}};
  std::printf("%s\n", ready.dump().c_str());
  std::fflush(stdout);

  Rng rng(options.seed);
  std::array<Direction, 2> directions = {
      Direction(ends[0].tun_fd, ends[1].tun_fd, options, options.refuse_to_b,
                rng.Fork("a to b")),
      Direction(ends[1].tun_fd, ends[0].tun_fd, options,
                /*refuses=*/false, rng.Fork("b to a"))};
  const absl::Status carried = Carry(directions, end_fd);
  const nlohmann::json counts = {{"a_to_b", directions[0].Counts()},
                                 {"b_to_a", directions[1].Counts()}};
  std::printf("%s\n", counts.dump().c_str());
  if (carried.ok()) return 0;
  std::fprintf(stderr, "tun_link: %s\n", carried.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) { return slackline::Main(argc, argv); }
