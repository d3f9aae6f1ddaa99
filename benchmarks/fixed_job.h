// A job without a coordinator, for benchmarks of the data path alone: one shard
// thread in a process of its own, and workers that are always there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "proto/view.pb.h"

namespace slackline::bench {

inline constexpr uint64_t kFixedRun = 1;

// One table, SGD; all of its shards are of the same size.
struct FixedJob {
  int shards = 1;
  int workers = 1;
  int64_t shard_bytes = 64;  // A multiple of 4.
  bool lockstep = false;     // BSP; else ASP.
};

Incarnation IncarnationOf(int rank);

// What all processes of the job have.
wire::View ViewOf(const FixedJob& job, const wire::Endpoints& server);

// The server's process; killed with this object, and by itself after five
// minutes, when something is stuck.
class FixedServer {
 public:
  // Returns when it has its shards.
  static absl::StatusOr<std::unique_ptr<FixedServer>> Start(
      const FixedJob& job);
  ~FixedServer();
  FixedServer(const FixedServer&) = delete;
  FixedServer& operator=(const FixedServer&) = delete;

  // Where it can be reached, by whatever transport.
  const wire::Endpoints& endpoints() const { return endpoints_; }
  pid_t pid() const { return pid_; }

 private:
  explicit FixedServer(pid_t pid) : pid_(pid) {}
  const pid_t pid_;
  wire::Endpoints endpoints_;
};

}  // namespace slackline::bench
