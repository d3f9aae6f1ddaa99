// Goal: a job can have more than 1,000 shard threads: there are descriptors and
// sockets for them, and each one serves its shards.
// Method: four servers of 256 shard threads each and a worker, with ZeroMQ over
// TCP, in this process; every thread owns a shard. The worker pushes known
// gradients with SGD and checks what it pulls.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/net/zmq/zmq_transport.h"
#include "common/process/file_limit.h"
#include "tests/support/job_in_process.h"

namespace slackline::many_shard_threads_test {

// Where a coordinator can listen: a port that nobody has just now.
std::string FreeEndpoint() {
  ZmqTransport transport;  // It is free when this has ended.
  return Must(Must(transport.Listen({}))->Bind("tcp://127.0.0.1:0"));
}

TEST(ManyShardThreads, OverAThousandServeAJob) {
  ASSERT_TRUE(RaiseFileLimit().ok());
  const JobShape shape = {.servers = 4,
                          .threads = 256,
                          .shards = 4 * 256,
                          .shard_elements = 16,
                          .lease = absl::Seconds(10),
                          .coordinator = FreeEndpoint()};
  ZmqTransport transport;
  const auto coordinator = StartCoordinator(shape, transport);
  // Each with sockets and I/O threads of its own, as processes have them.
  std::vector<std::unique_ptr<ZmqTransport>> transports;
  std::vector<std::unique_ptr<ServerInProcess>> servers;
  for (int s = 0; s < shape.servers; ++s) {
    transports.push_back(std::make_unique<ZmqTransport>());
    servers.push_back(
        std::make_unique<ServerInProcess>(shape, s, *transports.back()));
  }
  ExpectTrains(shape, /*steps=*/5, transport, transport);
}

}  // namespace slackline::many_shard_threads_test
