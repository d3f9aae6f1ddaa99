// NonfiniteWatch: gradients with a NaN or an infinity, as the servers count
// them, and what the job does about them (config::Train::nonfinite). Servers
// never apply them.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/view/shard_map.h"
#include "proto/cluster.pb.h"
#include "proto/run.pb.h"

namespace slackline {

class NonfiniteWatch {
 public:
  struct News {
    std::vector<std::string> log;  // The first of each worker.
    std::optional<wire::JobEnd> end;  // If the job ends.
  };

  explicit NonfiniteWatch(config::Train::Nonfinite policy) : policy_(policy) {}

  // A server has said how many it has had from whom. `view` is RUNNING; ranks
  // and shards that it does not know are named by number.
  News OnReport(const run::ServerStats& stats, const wire::View& view);

 private:
  const config::Train::Nonfinite policy_;
  std::set<int32_t> said_;  // Ranks.
};

}  // namespace slackline
