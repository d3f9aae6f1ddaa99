// GradientWatch: gradients that servers do not apply, because they have a NaN
// or an infinity or are above the job's bound, as the servers count them; and
// what the job does about them (config::Train::nonfinite,
// config::GradientBound::policy).
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

class GradientWatch {
 public:
  struct News {
    std::vector<std::string> log;     // The first of each worker and kind.
    std::optional<wire::JobEnd> end;  // If the job ends.
  };

  explicit GradientWatch(config::Train train) : train_(std::move(train)) {}

  // A server has said how many it has had from whom. `view` is RUNNING; ranks
  // and shards that it does not know are named by number.
  News OnReport(const run::ServerStats& stats, const wire::View& view);

 private:
  void Look(const run::NonfiniteGradients& bad, const wire::View& view,
            News* news);
  void Look(const run::OversizedGradients& bad, const wire::View& view,
            News* news);

  const config::Train train_;
  // Ranks of which a sentence has been said.
  std::set<int32_t> said_nonfinite_;
  std::set<int32_t> said_oversized_;
};

}  // namespace slackline
