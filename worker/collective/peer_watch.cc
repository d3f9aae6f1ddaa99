#include "worker/collective/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "worker/collective/mesh_collective.h"

namespace slackline {
namespace {

constexpr std::byte kGoodbye{'B'};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerWatch>> PeerWatch::Create(
    int rank, std::vector<std::unique_ptr<Stream>> streams) {
  Descriptor end_watch(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!end_watch.valid()) {
    return absl::UnavailableError(
        absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  return absl::WrapUnique(
      new PeerWatch(rank, std::move(streams), std::move(end_watch)));
}

std::vector<int> PeerWatch::Gone() const {
  std::vector<int> gone;
  for (int i = 0; i < static_cast<int>(gone_.size()); ++i) {
    if (Gone(i)) gone.push_back(i);
  }
  return gone;
}

void PeerWatch::SayGoodbye() {
  for (const std::unique_ptr<Stream>& stream : streams_) {
    // There is room: nothing else was sent.
    if (stream != nullptr) stream->Send({&kGoodbye, kGoodbyeBytes});
  }
}

void PeerWatch::GiveUp() {
  for (const std::unique_ptr<Stream>& stream : streams_) {
    if (stream != nullptr) shutdown(stream->socket().get(), SHUT_RDWR);
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
    for (size_t i = 0; i < streams_.size(); ++i) {
      const bool watched = streams_[i] != nullptr && !gone_[i].load();
      files.push_back({.fd = watched ? streams_[i]->socket().get() : -1,
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
    std::string reason = "it has ended, or given up";
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (files[i].revents == 0) continue;
      std::byte said{};
      const Stream::Outcome heard = streams_[i]->Receive({&said, 1});
      // Once a goodbye is whole nothing else matters, so poll() tells all.
      const bool moved = heard.result == Stream::Result::kMoved;
      if (heard.result == Stream::Result::kBlocked ||
          (moved && heard.bytes == 0)) {
        continue;
      }
      // Before who is gone, so that who sees the latter has the reason.
      if (heard.result == Stream::Result::kForged) {
        gone_reason_.store(heard.reason);
        reason = heard.reason;
      }
      gone_[i].store(true);
      // Its goodbye is the last that it says.
      if (moved && said == kGoodbye) continue;
      lost.push_back(static_cast<int>(i));
    }
    if (!lost.empty()) {
      return ConnectionsLost(
          absl::StrCat("rank ", rank_, " of ", streams_.size(), ": "), lost,
          reason);
    }
  }
}

}  // namespace slackline
