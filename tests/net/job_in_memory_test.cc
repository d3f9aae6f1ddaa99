// Goal: a job needs nothing of a transport but common/net/transport.h: its
// threads, as the programs make them, work over memory, and over memory that
// delays.
// Method: a coordinator, a server with two shard threads and a worker in this
// process, without a socket. The worker pushes known gradients with SGD and
// checks what it pulls.
#include <gtest/gtest.h>

#include "common/net/delayed/delayed_transport.h"
#include "tests/support/job_in_process.h"
#include "tests/support/memory_transport.h"

namespace slackline::job_in_memory_test {

constexpr int kSteps = 5;
const JobShape kShape = {.threads = 2,
                         .shards = 4,
                         .shard_elements = 64,
                         .coordinator = "memory:coordinator"};

TEST(JobInMemory, TrainsWithoutASocket) {
  MemoryTransport transport;
  const auto coordinator = StartCoordinator(kShape, transport);
  const ServerInProcess server(kShape, 0, transport);
  ExpectTrains(kShape, kSteps, transport, transport);
}

TEST(JobInMemory, TrainsOverALinkNoFasterThanItsLatency) {
  constexpr absl::Duration kLatency = absl::Milliseconds(5);
  MemoryTransport transport;
  const auto coordinator = StartCoordinator(kShape, transport);
  const ServerInProcess server(kShape, 0, transport);
  DelayedTransport delayed(transport, {.latency = kLatency}, TimeSource());
  const absl::Time start = TimeSource().Now();
  ExpectTrains(kShape, kSteps, transport, delayed);
  // Each of the pulls is a message there and one back.
  EXPECT_GE(TimeSource().Now() - start, 2 * kSteps * kLatency);
}

}  // namespace slackline::job_in_memory_test
