// Where two processes of a host meet before they share memory, and how one
// wakes the other: Unix sockets with abstract names, which leave no file and
// pass descriptors. Packets keep their bounds.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/io/descriptor.h"

namespace slackline {

// `name` without the zero byte that makes it abstract. Unavailable: somebody
// listens there; the error names it.
absl::StatusOr<Descriptor> ListenShm(const std::string& name);
// NotFound: nobody listens there. Unavailable: too many wait to be accepted, or
// another reason that may pass.
absl::StatusOr<Descriptor> ConnectShm(const std::string& name);
// Processes of other users that wanted to connect, and the user of the last
// one.
struct TurnedAway {
  uint64_t count = 0;
  uid_t last_uid = 0;
};
// Not valid() if nobody of this user wants to connect now; others are turned
// away, and added to `*turned_away`. Unavailable: somebody waits for whom there
// is no room now, as with too many open files.
absl::StatusOr<Descriptor> AcceptShm(const Descriptor& listener,
                                     TurnedAway* turned_away);

// Sends a packet with descriptors. False: the other end takes none now, or is
// gone.
bool SendPacket(const Descriptor& socket, absl::Span<const std::byte> bytes,
                absl::Span<const int> descriptors);

enum class PacketKind { kNone, kPacket, kGone };
struct Packet {
  PacketKind kind = PacketKind::kNone;
  size_t bytes = 0;
  std::vector<Descriptor> descriptors;
};
// The next packet, of which at most bytes.size() are kept, and the first few
// descriptors.
Packet ReceivePacket(const Descriptor& socket, absl::Span<std::byte> bytes);

}  // namespace slackline
