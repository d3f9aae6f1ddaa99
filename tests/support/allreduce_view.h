// A view of a job in which the workers all-reduce, for tests of sums by
// servers.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/view/shard_map.h"
#include "tests/support/must.h"
#include "tests/support/small_view.h"

namespace slackline {

inline Incarnation IncarnationOf(int rank) {
  return 100 + static_cast<uint64_t>(rank);
}

// Ranks [0, workers) with IncarnationOf() have begun the group, in a job with
// these servers; without any: with one that is nowhere.
inline std::shared_ptr<const View> AllReduceView(
    uint64_t run, uint64_t group, int workers,
    std::vector<wire::ServerMember> servers = {}) {
  SmallViewOptions options = {.number = group,
                              .run = run,
                              .group = group,
                              .mode = "allreduce",
                              .steps = 100,
                              .servers = std::move(servers)};
  for (int rank = 0; rank < workers; ++rank)
    options.workers.push_back(IncarnationOf(rank));
  return Must(View::Create(SmallView(options)));
}

}  // namespace slackline
