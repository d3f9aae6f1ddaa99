// Which payloads of a message share a frame. A frame costs both ends some
// system calls, however large it is. So payloads that lie side by side in
// memory, as the shards of one gradient do, are sent as the one piece that they
// are, and small ones are copied together.
//
// A message of which no payloads share a frame has its header frame as it is.
// In another one the sizes of all payloads stand in front of the header:
//
//   a zero byte, which no Header begins with; then the number of payloads and
//   the bytes of each, in 8 bytes each, little-endian.
//
// A frame has the next payloads, at least one, that fill it exactly, and those
// without bytes that come next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/payload.h"

namespace slackline {

// Smaller payloads are copied: that is cheaper than a shared holder, and a
// small received frame would keep alive the whole buffer that it was read with.
inline constexpr size_t kZeroCopyBytes = 2048;

// Payloads that do not lie side by side share a frame of at most this size.
inline constexpr size_t kCopiedFrameBytesMax = size_t{64} << 10;

// Payloads in a row that are sent as one frame.
struct PayloadRun {
  size_t payloads = 0;
  size_t bytes = 0;      // All of them together have so many.
  bool adjacent = true;  // They lie side by side.
};
// The first ones of payloads, of which there is at least one.
PayloadRun FirstRun(absl::Span<const Payload> payloads);

// What stands in front of the header if payloads share frames: its size, and
// the thing itself.
size_t PayloadSizesBytes(size_t payloads);
void WritePayloadSizes(absl::Span<const Payload> payloads, std::byte* out);

// Tells which payloads the frames of a received message have.
class FrameSlicer {
 public:
  // Takes the sizes, if there are any, off the front of a header frame.
  // InvalidArgument, fit for an ErrorReply: they make no sense, or are more
  // than `payloads_max`.
  absl::Status ReadSizes(size_t payloads_max,
                         absl::Span<const std::byte>* header);
  // The sizes of the payloads in a frame of `bytes`; valid until the next call.
  // InvalidArgument, fit for an ErrorReply: the frame is none of those told.
  absl::StatusOr<absl::Span<const size_t>> Slice(size_t bytes);
  // InvalidArgument, fit for an ErrorReply: there should have been more.
  absl::Status End() const;

 private:
  bool told_ = false;
  std::vector<size_t> sizes_;  // Those told in front of the header.
  size_t next_ = 0;            // The index of the next one in sizes_.
  size_t whole_ = 0;  // If none were told: the size of the last frame sliced.
};

}  // namespace slackline
