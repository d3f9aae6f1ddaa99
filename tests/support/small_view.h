// A view of a job that runs, with one table of four elements in one shard, on
// the first thread of the first server.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "proto/view.pb.h"
#include "tests/support/modes.h"

namespace slackline {

struct SmallViewOptions {
  uint64_t number = 1;
  uint64_t run = 0;
  uint64_t group = 1;
  std::string mode = "asp";
  Clock steps = 10;
  // None: one, at an address that nobody connects to.
  std::vector<wire::ServerMember> servers = {};
  // By rank; all founders.
  std::vector<Incarnation> workers = {};
};

inline wire::View SmallView(const SmallViewOptions& options) {
  wire::View view;
  view.set_number(options.number);
  view.set_run(options.run);
  view.set_state(wire::RUNNING);
  view.set_steps_total(options.steps);
  view.set_steps_per_epoch(options.steps);
  view.set_group(options.group);
  *view.add_phase()->mutable_mode() = ModeOf(options.mode);
  for (const wire::ServerMember& server : options.servers)
    *view.add_server() = server;
  if (options.servers.empty())
    view.add_server()->add_thread()->add_endpoint("tcp://here:1");
  for (size_t rank = 0; rank < options.workers.size(); ++rank) {
    wire::WorkerMember& worker = *view.add_worker();
    worker.set_rank(static_cast<int32_t>(rank));
    worker.set_incarnation(options.workers[rank]);
    worker.set_founder(true);
  }
  wire::Table& table = *view.add_table();
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  table.set_name("weight");
  table.add_shape(4);
  table.set_shard_elements(4);
  view.add_owner_server(0);
  view.add_owner_thread(0);
  return view;
}

}  // namespace slackline
