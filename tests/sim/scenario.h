// Everything that one seed draws before a run begins: the cluster, the job, and
// what goes wrong when. The same seed is the same run, event by event.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/payload.h"
#include "proto/wire.pb.h"

namespace slackline::sim {

// Machines are numbered: servers first (the coordinator is in server 0), then
// workers. A worker that is started again is on the same machine.
using Node = int;

struct NetworkFaults {
  double loss = 0;       // Chance of a message to vanish.
  double duplicate = 0;  // To arrive once more, perhaps much later.
  double reorder = 0;    // To be overtaken by later ones of its own link.
  double slow = 0;       // To take 20 times longer than usual.
  absl::Duration delay_min = absl::Microseconds(50);
  absl::Duration delay_max = absl::Milliseconds(1);
};

struct FaultEvent {
  enum class Kind { kIsolate, kCutLink, kCrash };
  Kind kind{};
  absl::Duration at;
  Node node = 0;
  Node peer = 0;            // Other end of a link that is cut.
  absl::Duration duration;  // How long a partition lasts.
  bool one_way = false;     // Only what goes from `node` to `peer` is cut.
  // Messages sent across a cut arrive after it, as TCP would have them;
  // otherwise they are lost.
  bool held = false;
  bool restart = false;    // A crashed worker comes back `duration` later.
  bool drop_sent = false;  // What a crashed process had sent is lost.
};

struct Scenario {
  uint64_t seed = 0;
  int servers = 1;
  int threads = 1;  // Shard threads of each server.
  int workers = 1;
  std::vector<int64_t> table_elements;
  int64_t shard_elements = 16;
  wire::Mode mode = wire::BSP;
  Clock staleness = 0;  // For SSP.
  bool pull_ahead = false;
  // Where a shard lagged behind a late joiner's start, it pulls once more.
  bool even_pull = true;
  Clock steps = 5;
  size_t window_bytes = 1024;
  size_t message_bytes = 256;
  absl::Duration lease = absl::Milliseconds(500);
  absl::Duration start_timeout = absl::Seconds(10);
  absl::Duration retry_initial = absl::Milliseconds(50);
  absl::Duration retry_max = absl::Milliseconds(800);
  std::vector<absl::Duration> compute;   // Of one step, by rank.
  std::vector<absl::Duration> start_at;  // By node; the future: never.
  NetworkFaults network;
  std::vector<FaultEvent> faults;
  absl::Duration heal_at;  // From here on nothing goes wrong any more.

  // Any cluster and job; about one in eight is without faults.
  static Scenario Random(uint64_t seed);

  std::vector<wire::Table> Tables() const;  // As a worker's join has them.
  Node WorkerNode(int rank) const { return servers + rank; }
  Clock StalenessBound() const;  // kUnboundedStaleness for ASP.
  std::string ToString() const;

  // What this incarnation pushes, for elements [begin, end) of the table:
  // different for everything that has a name, of magnitudes from 2^-24 to 128,
  // so that every float sum of them tells in which order it was made.
  std::vector<float> Gradient(Rank rank, Incarnation incarnation, Clock clock,
                              TableId table, int64_t begin, int64_t end) const;
};

}  // namespace slackline::sim
