#include "worker/collective/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "worker/collective/mesh_collective.h"

namespace slackline {
namespace {

constexpr std::byte kGoodbye{'B'};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerWatch>> PeerWatch::Create(
    int rank, std::vector<Descriptor> sockets) {
  Descriptor end_watch(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!end_watch.valid()) {
    return absl::UnavailableError(
        absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  return absl::WrapUnique(
      new PeerWatch(rank, std::move(sockets), std::move(end_watch)));
}

std::vector<int> PeerWatch::Gone() const {
  std::vector<int> gone;
  for (int i = 0; i < static_cast<int>(gone_.size()); ++i) {
    if (Gone(i)) gone.push_back(i);
  }
  return gone;
}

void PeerWatch::SayGoodbye() {
  for (const Descriptor& socket : sockets_) {
    if (!socket.valid()) continue;
    send(socket.get(), &kGoodbye, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

void PeerWatch::GiveUp() {
  for (const Descriptor& socket : sockets_) {
    if (socket.valid()) shutdown(socket.get(), SHUT_RDWR);
  }
}

void PeerWatch::EndWatch() {
  const uint64_t one = 1;
  // Fails only if it was called before.
  (void)!write(end_watch_.get(), &one, sizeof(one));
}

absl::Status PeerWatch::AwaitLoss() {
  while (true) {
    std::vector<pollfd> files;
    for (size_t i = 0; i < sockets_.size(); ++i) {
      files.push_back({.fd = gone_[i].load() ? -1 : sockets_[i].get(),
                       .events = POLLIN,
                       .revents = 0});
    }
    files.push_back({.fd = end_watch_.get(), .events = POLLIN, .revents = 0});
    if (poll(files.data(), files.size(), -1) < 0 && errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("poll: ", std::strerror(errno)));
    }
    if (files.back().revents != 0) return absl::OkStatus();
    std::vector<int> lost;
    for (size_t i = 0; i < sockets_.size(); ++i) {
      if (files[i].revents == 0) continue;
      std::byte said{};
      const ssize_t bytes = recv(sockets_[i].get(), &said, 1, MSG_DONTWAIT);
      if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      gone_[i].store(true);
      // Its goodbye is the last that it says.
      if (bytes == 1 && said == kGoodbye) continue;
      lost.push_back(static_cast<int>(i));
    }
    if (!lost.empty()) {
      return ConnectionsLost(
          absl::StrCat("rank ", rank_, " of ", sockets_.size(), ": "), lost,
          "it has ended, or given up");
    }
  }
}

}  // namespace slackline
