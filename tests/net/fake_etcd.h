// A server that stands where etcd should be.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace slackline {

// Accepts connections and gives each to `serve`, on a thread of its own.
class FakeEtcd {
 public:
  // Sends with Send() until that is false.
  using Serve = std::function<void(FakeEtcd& server, int connection)>;
  explicit FakeEtcd(Serve serve) : serve_(std::move(serve)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener_, any, size) != 0 || listen(listener_, 64) != 0 ||
        getsockname(listener_, any, &size) != 0)
      ADD_FAILURE() << "no listener";
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      while (true) {
        const int connection = accept(listener_, nullptr, nullptr);
        if (connection < 0) return;
        connections_.emplace_back([this, connection] {
          serve_(*this, connection);
          close(connection);
        });
      }
    });
  }
  ~FakeEtcd() {
    stopping_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (std::thread& connection : connections_) connection.join();
    close(listener_);
  }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }

  // False: nobody wants more.
  bool Send(int connection, const std::string& bytes) {
    return !stopping_ &&
           send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0;
  }
  // Appends what arrives within so long. False: nothing more will.
  bool Receive(int connection, int wait_ms, std::string* to) {
    pollfd readable{.fd = connection, .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, wait_ms) == 0) return !stopping_;
    char bytes[4096];
    const ssize_t count = recv(connection, bytes, sizeof(bytes), 0);
    if (count > 0) to->append(bytes, static_cast<size_t>(count));
    return count > 0 && !stopping_;
  }

 private:
  const Serve serve_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> connections_;  // Of thread_, and after its end.
  std::thread thread_;
};

}  // namespace slackline
