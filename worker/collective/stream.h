// A connection between two ranks that carries bytes, whatever is done to them
// on their way.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/types/span.h"
#include "common/io/descriptor.h"

namespace slackline {

// A connected socket that does not block, and is closed with this.
//
// One thread may send while another receives. After kEnded, kFailed or
// kForged the same thread makes no further call of the same kind.
class Stream {
 public:
  enum class Result {
    kMoved,    // Go on at once: there may be more, which poll() does not tell.
    kBlocked,  // Nothing moved. Go on when poll() tells of the socket.
    kEnded,    // Only Receive(): the other has closed, perhaps amid something.
    kFailed,   // `reason` says why.
    kForged,   // Only Receive(): what came is not what the other has sent. None
               // of it was handed out. `reason` says so.
  };
  struct Outcome {
    Result result = Result::kBlocked;
    // So many of the caller's bytes have moved. May be 0 if the result is
    // kMoved: a record went on and is not yet whole.
    size_t bytes = 0;
    const char* reason = "";  // Why kFailed or kForged; as of strerror().
  };

  explicit Stream(Descriptor socket) : socket_(std::move(socket)) {}
  virtual ~Stream() = default;

  const Descriptor& socket() const { return socket_; }

  // Takes the first bytes of `data`, which the caller may free or change when
  // this returns. Some of them may still wait in this stream, until further
  // calls, which may be with empty data, have sent them on.
  virtual Outcome Send(absl::Span<const std::byte> data) = 0;
  // Whether bytes wait in this stream: poll for room and call Send(). The
  // thread that sends asks.
  virtual bool has_unsent() const = 0;

  // Fills the front of `place`, which is not empty. What it does not report
  // may be overwritten as well.
  virtual Outcome Receive(absl::Span<std::byte> place) = 0;

 protected:
  // One system call each, with its result. `data` and `place` are not empty.
  Outcome SendSome(absl::Span<const std::byte> data);
  Outcome ReceiveSome(absl::Span<std::byte> place);

 private:
  const Descriptor socket_;
};

// Sends bytes as they are.
class PlainStream final : public Stream {
 public:
  using Stream::Stream;
  Outcome Send(absl::Span<const std::byte> data) override;
  bool has_unsent() const override { return false; }
  Outcome Receive(absl::Span<std::byte> place) override {
    return ReceiveSome(place);
  }
};

}  // namespace slackline
