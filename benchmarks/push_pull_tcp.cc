#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/push_pull.h"
#include "benchmarks/push_pull_bytes.h"
#include "benchmarks/report.h"
#include "common/io/descriptor.h"
#include "common/status.h"

namespace slackline::bench {
namespace {

absl::Status Failed(const char* what) {
  return absl::InternalError(
      absl::StrCat("tcp: ", what, ": ", std::strerror(errno)));
}

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void SendAtOnce(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Bytes that a call has moved; 0 if none could be without waiting.
absl::StatusOr<int64_t> Moved(ssize_t result, const char* what) {
  if (result > 0) return result;
  if (result == 0) return absl::AbortedError("tcp: the other end has closed");
  if (errno == EAGAIN || errno == EINTR) return 0;
  return Failed(what);
}

// One direction of a step: so many bytes of a buffer have moved.
struct Stream {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t done = 0;

  int64_t left() const { return bytes - done; }
  absl::Status Write(int socket, int64_t bytes_max) {
    SL_ASSIGN_OR_RETURN(
        const int64_t moved,
        Moved(send(socket, data + done,
                   static_cast<size_t>(std::min(left(), bytes_max)),
                   MSG_DONTWAIT | MSG_NOSIGNAL),
              "send"));
    done += moved;
    return absl::OkStatus();
  }
  absl::Status Read(int socket) {
    SL_ASSIGN_OR_RETURN(const int64_t moved,
                        Moved(recv(socket, data + done,
                                   static_cast<size_t>(left()), MSG_DONTWAIT),
                              "recv"));
    done += moved;
    return absl::OkStatus();
  }
};

class TcpWorker : public PushPullWorker {
 public:
  static absl::StatusOr<std::unique_ptr<TcpWorker>> Create(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>& ports) {
    auto created = std::make_unique<TcpWorker>(setup, worker);
    for (size_t server = 0; server < ports.size(); ++server) {
      int port = 0;
      SL_CHECK(absl::SimpleAtoi(ports[server], &port), ports[server]);
      Descriptor link(socket(AF_INET, SOCK_STREAM, 0));
      const sockaddr_in address = Loopback(port);
      if (!link.valid() ||
          connect(link.get(), reinterpret_cast<const sockaddr*>(&address),
                  sizeof(address)) != 0) {
        return Failed("connect");
      }
      SendAtOnce(link.get());
      created->polls_.push_back({link.get(), 0, 0});
      created->sockets_.push_back(std::move(link));
      created->parameters_.push_back(
          ParametersOf(setup, static_cast<int>(server)));
    }
    return created;
  }

  TcpWorker(const PushPullSetup& setup, int worker)
      : part_bytes_(setup.bytes / setup.servers),
        gradient_(GradientOf(setup, worker)),
        pulled_(static_cast<size_t>(setup.bytes)) {}

  absl::Status Step(bool verify) override {
    const size_t links = sockets_.size();
    std::vector<Stream> pushes(links);
    std::vector<Stream> pulls(links);
    for (size_t i = 0; i < links; ++i) {
      pushes[i] = {reinterpret_cast<std::byte*>(gradient_.data()), part_bytes_};
      pulls[i] = {PulledFrom(i), part_bytes_};
      SL_RETURN_IF_ERROR(pushes[i].Write(sockets_[i].get(), pushes[i].left()));
    }
    for (;;) {
      bool open = false;
      for (size_t i = 0; i < links; ++i) {
        polls_[i].events =
            static_cast<short>((pushes[i].left() > 0 ? POLLOUT : 0) |
                               (pulls[i].left() > 0 ? POLLIN : 0));
        open |= polls_[i].events != 0;
      }
      if (!open) break;
      if (poll(polls_.data(), polls_.size(), -1) < 0 && errno != EINTR)
        return Failed("poll");
      for (size_t i = 0; i < links; ++i) {
        if ((polls_[i].revents & POLLIN) != 0)
          SL_RETURN_IF_ERROR(pulls[i].Read(polls_[i].fd));
        if ((polls_[i].revents & POLLOUT) != 0) {
          SL_RETURN_IF_ERROR(pushes[i].Write(polls_[i].fd, pushes[i].left()));
        }
      }
    }
    return verify ? Verify() : absl::OkStatus();
  }

  std::string Checksum() const override {
    return bench::Checksum(pulled_.data(), pulled_.size());
  }

 private:
  std::byte* PulledFrom(size_t server) {
    return pulled_.data() + static_cast<int64_t>(server) * part_bytes_;
  }

  absl::Status Verify() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (std::memcmp(PulledFrom(i), parameters_[i].data(),
                      static_cast<size_t>(part_bytes_)) != 0) {
        return absl::InternalError(
            absl::StrCat("tcp: wrong bytes pulled from server ", i));
      }
    }
    return absl::OkStatus();
  }

  const int64_t part_bytes_;
  std::vector<uint64_t> gradient_;  // The same for every server.
  std::vector<std::byte> pulled_;
  std::vector<std::vector<uint64_t>> parameters_;  // By server.
  std::vector<Descriptor> sockets_;                // By server.
  std::vector<pollfd> polls_;                      // By server.
};

class TcpPushPull : public PushPullSystem {
 public:
  std::string name() const override { return "tcp"; }

  absl::Status Serve(
      const PushPullSetup& setup, int server,
      const std::function<void(const std::string&)>& ready) override {
    std::vector<uint64_t> parameters = ParametersOf(setup, server);
    const int64_t part = setup.bytes / setup.servers;
    Descriptor listener(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = Loopback(0);
    socklen_t length = sizeof(address);
    if (!listener.valid() ||
        bind(listener.get(), reinterpret_cast<const sockaddr*>(&address),
             length) != 0 ||
        listen(listener.get(), setup.workers) != 0 ||
        getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address),
                    &length) != 0) {
      return Failed("listen");
    }
    ready(absl::StrCat(ntohs(address.sin_port)));

    // Of each worker: what it pushes in this step, and what it has got.
    struct Peer {
      Descriptor socket;
      std::vector<std::byte> pushed;
      Stream in;
      Stream out;
    };
    std::vector<Peer> peers;
    std::vector<pollfd> polls;
    for (int i = 0; i < setup.workers; ++i) {
      Peer peer;
      peer.socket = Descriptor(accept(listener.get(), nullptr, nullptr));
      if (!peer.socket.valid()) return Failed("accept");
      SendAtOnce(peer.socket.get());
      peer.pushed.resize(static_cast<size_t>(part));
      polls.push_back({peer.socket.get(), 0, 0});
      peers.push_back(std::move(peer));
    }
    for (Peer& peer : peers) {
      peer.in = {peer.pushed.data(), part};
      peer.out = {reinterpret_cast<std::byte*>(parameters.data()), part};
    }
    for (;;) {
      for (size_t i = 0; i < peers.size(); ++i) {
        Peer& peer = peers[i];
        if (peer.in.left() == 0 && peer.out.left() == 0)
          peer.in.done = peer.out.done = 0;
        polls[i].events =
            static_cast<short>((peer.in.left() > 0 ? POLLIN : 0) |
                               (peer.out.done < peer.in.done ? POLLOUT : 0));
      }
      if (poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR)
        return Failed("poll");
      for (size_t i = 0; i < peers.size(); ++i) {
        Peer& peer = peers[i];
        if ((polls[i].revents & (POLLIN | POLLHUP)) != 0) {
          const absl::Status read = peer.in.Read(polls[i].fd);
          if (absl::IsAborted(read)) {
            polls[i].fd = -1;  // The worker has done its steps.
            continue;
          }
          SL_RETURN_IF_ERROR(read);
        }
        // A byte is pulled once it was pushed.
        const int64_t may_go = peer.in.done - peer.out.done;
        if (may_go > 0) SL_RETURN_IF_ERROR(peer.out.Write(polls[i].fd, may_go));
      }
    }
  }

  absl::StatusOr<std::unique_ptr<PushPullWorker>> Connect(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>& ports) override {
    return TcpWorker::Create(setup, worker, ports);
  }
};

}  // namespace

std::unique_ptr<PushPullSystem> MakeTcpPushPull() {
  return std::make_unique<TcpPushPull>();
}

}  // namespace slackline::bench
