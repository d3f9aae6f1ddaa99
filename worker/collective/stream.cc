#include "worker/collective/stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace slackline {
namespace {

Stream::Outcome NothingMoved() {
  if (errno == EAGAIN || errno == EINTR) return {};
  return {.result = Stream::Result::kFailed, .reason = std::strerror(errno)};
}

Stream::Outcome Moved(ssize_t bytes) {
  return {.result = Stream::Result::kMoved,
          .bytes = static_cast<size_t>(bytes)};
}

}  // namespace

Stream::Outcome Stream::SendSome(absl::Span<const std::byte> data) {
  const ssize_t sent = send(socket_.get(), data.data(), data.size(),
                            MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent < 0 ? NothingMoved() : Moved(sent);
}

Stream::Outcome Stream::ReceiveSome(absl::Span<std::byte> place) {
  const ssize_t count =
      recv(socket_.get(), place.data(), place.size(), MSG_DONTWAIT);
  if (count < 0) return NothingMoved();
  if (count == 0) return {.result = Result::kEnded};
  return Moved(count);
}

Stream::Outcome PlainStream::Send(absl::Span<const std::byte> data) {
  return data.empty() ? Outcome() : SendSome(data);
}

}  // namespace slackline
