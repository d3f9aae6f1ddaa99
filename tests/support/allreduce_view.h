// A view of a job in which the workers all-reduce, for tests of sums by
// servers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/view/shard_map.h"
#include "tests/support/modes.h"
#include "tests/support/must.h"

namespace slackline {

inline Incarnation IncarnationOf(int rank) {
  return 100 + static_cast<uint64_t>(rank);
}

// Ranks [0, workers) with IncarnationOf() have begun the group, in a job with
// these servers and one table of one shard.
inline std::shared_ptr<const View> AllReduceView(
    uint64_t run, uint64_t group, int workers,
    absl::Span<const wire::ServerMember> servers) {
  wire::View view;
  view.set_number(group);
  view.set_run(run);
  view.set_state(wire::RUNNING);
  view.set_steps_total(100);
  view.set_steps_per_epoch(100);
  view.set_group(group);
  *view.add_phase()->mutable_mode() = ModeOf("allreduce");
  for (const wire::ServerMember& server : servers) *view.add_server() = server;
  for (int rank = 0; rank < workers; ++rank) {
    wire::WorkerMember& worker = *view.add_worker();
    worker.set_rank(rank);
    worker.set_incarnation(IncarnationOf(rank));
    worker.set_founder(true);
  }
  wire::Table& table = *view.add_table();
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  table.set_name("weight");
  table.add_shape(4);
  table.set_shard_elements(4);
  view.add_owner_server(0);
  view.add_owner_thread(0);
  return Must(View::Create(view));
}

}  // namespace slackline
