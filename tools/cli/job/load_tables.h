// What shards, threads and servers are occupied with, from a status reply.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "proto/control.pb.h"

namespace slackline {

// Of one server, over its shard threads. To be busy means the same here, in the
// table of shards and in plans (server/coordinator/rebalancer.cc): a part of
// the time of a shard thread, with IoFactor() (common/metrics/server_stats.h).
struct ServerLoad {
  bool known = false;   // It has reported its threads.
  double busiest = 0;   // Of its busiest shard thread.
  double share = 0;     // Of the busy time of all shard threads in the job.
  double queue_ms = 0;  // The longest mean wait at a thread.
};
ServerLoad LoadOf(const wire::StatusReply& status,
                  const run::ServerStats& server);

// A line for each shard, the one that keeps its thread busiest first, at most
// `top` of them; how many are left out stands below. Empty without shards.
std::string ShardsTable(const wire::StatusReply& status, int top);
// The same shards in the same order: {"shard", "name", "at", "bytes", "pushes",
// "pulls" (per second), "busy"}. Empty also if the view cannot be read.
nlohmann::ordered_json ShardsJson(const wire::StatusReply& status, int top);

}  // namespace slackline
