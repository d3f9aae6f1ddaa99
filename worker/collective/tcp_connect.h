// The connections of a group of ranks over TCP.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/collective/mesh_collective.h"
#include "worker/collective/stream.h"

namespace slackline {

// What one rank has of the connections.
struct TcpConnections {
  std::vector<std::unique_ptr<Stream>> to_all;  // By rank; nullptr: this one.
  // The ring, in one direction each.
  std::unique_ptr<Stream> to_next;
  std::unique_ptr<Stream> from_previous;
};

// Listens on options.host, stores the address for the other ranks, and connects
// to all of them. In a world of two ranks or more. Both ends of a connection
// prove that they have read each other's entry in the store, so a process that
// has got the port of a rank that is gone is not taken for that rank. With
// options.key both prove as well that they have it, and what the connections
// carry is encrypted; see handshake.h and records.h.
//
// Who proves nothing of that is closed, and does not keep the others from
// connecting: at most 64 wait for their greeting at a time, and 64 for their
// proof.
//
// After a failure nothing is left of the attempt but the keys in the store, so
// the next one is another group.
//   InvalidArgument: the host is no name or address to which one can connect.
//   DeadlineExceeded: names the ranks whose addresses were not there in time.
//   Unavailable: this rank cannot listen on the host, or has no connection to
//     other ranks, which are named, and if they have another key or none. A
//     rank that gives up closes its connections, so this may be one that
//     noticed a dead rank earlier.
//   Others: what keep_trying or the store returned.
absl::StatusOr<TcpConnections> ConnectTcp(const GroupOptions& options);

}  // namespace slackline
