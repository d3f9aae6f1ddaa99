// The header frame of a message: bytes to wire::Header and back.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire.pb.h"

namespace slackline {

// A larger header frame is refused before it is parsed.
inline constexpr size_t kHeaderBytesMax = size_t{64} << 20;

// InvalidArgument, with a reason fit for an ErrorReply, if `bytes` is no Header
// or one without a body that this version knows; `*header` is then unspecified.
// Says nothing about what the body means: that is for the receiving core.
absl::Status ParseHeader(absl::Span<const std::byte> bytes,
                         wire::Header* header);

// Bytes that SerializeHeader will write. Fatal above kHeaderBytesMax.
size_t HeaderBytes(const wire::Header& header);
// `out` has room for HeaderBytes(header), called just before on this header.
void SerializeHeader(const wire::Header& header, void* out);

}  // namespace slackline
