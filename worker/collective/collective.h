// Sums float buffers over the ranks of a fixed group, or copies them from one
// rank to all, while the caller goes on with other work.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/status.h"

namespace slackline {

// A group lives for one membership. When a member is lost, everybody destroys
// its Collective and makes a new one.
//
// Order: all ranks start the same operations, with the same sizes, in the same
// order. The operations run in that order beside the caller; the order in which
// it waits for them is free. Different sizes or roots on different ranks are a
// bug of the caller and may end the process.
//
// Buffers are in the memory of the host or of a GPU, as the implementation
// says.
//
// Failure: the first one, of whatever operation or by Abort(), is final. The
// operation in flight is given up, the other ranks see the connections close
// and fail as well, and from then on every Wait() returns that first status,
// for finished operations too. A rank can therefore fail at an operation that
// another rank has finished: after a failure, compare steps before going on.
//
// Threads: Abort() from any thread at any time before destruction. The other
// calls from one thread. The destructor ends what is in flight as a failure; it
// waits for no other rank.
class Collective {
 public:
  // One operation of one collective.
  enum class Ticket : int64_t {};

  virtual ~Collective() = default;

  virtual Rank rank() const = 0;
  virtual int32_t world_size() const = 0;

  // Starts replacing each element of `data` by its sum over all ranks, and
  // returns at once. Every rank gets the same bits, and gets them again from
  // the same inputs in a later run of the same world size. `data` stays
  // allocated and untouched until Wait() on the ticket returns; it may be
  // empty. How many operations wait is bounded by the caller's buffers. After a
  // failure nothing is started, which Wait() then tells.
  virtual Ticket AllReduceAsync(absl::Span<float> data) = 0;

  // Whether the group is connected to the servers of the job, which then sum.
  virtual bool has_servers() const { return false; }
  // AllReduceAsync() by the servers: each rank sends its elements and receives
  // the sum. Runs beside the operations among the ranks, each of the two kinds
  // in its own order. Fatal without servers.
  virtual Ticket SumByServersAsync(absl::Span<float> /*data*/) {
    SL_CHECK(has_servers(), "this group is not connected to servers");
    return Ticket{};
  }

  // Starts replacing the elements of `data` by those that `root`, a rank of the
  // group, has: in the end every rank has its bits, those of NaN and -0 as
  // well. Else as AllReduceAsync().
  virtual Ticket BroadcastAsync(absl::Span<float> data, Rank root) = 0;

  // Returns when the operation is done, or the collective has failed and no
  // longer touches any buffer; their contents are undefined then. Returns at
  // the latest when for the collective's timeout no byte of an operation has
  // moved. Other than the status given to Abort(), with
  // ranks named where the implementation can tell:
  //   Unavailable: connections were lost; names the ranks at their other ends.
  //     A rank that gives up closes its connections too, a little later, so
  //     under load this may be one that noticed a dead rank earlier.
  //   DeadlineExceeded: names the neighbour in the ring that did not answer.
  virtual absl::Status Wait(Ticket ticket) = 0;

  // Makes the collective fail with `reason`, which is not OK, and wakes up who
  // waits. Without effect after an earlier failure. Does not block.
  virtual void Abort(absl::Status reason) = 0;
};

}  // namespace slackline
