// What shards, threads and servers are occupied with, from a status reply.
#pragma once

#include <string>

#include "proto/control.pb.h"

namespace slackline {

// Of one server, over its shard threads.
struct ServerLoad {
  bool known = false;   // It has reported its threads.
  double busiest = 0;   // The largest utilisation of a thread.
  double share = 0;     // Of all shard threads' busy time in the job.
  double queue_ms = 0;  // The longest mean wait at a thread.
};
ServerLoad LoadOf(const wire::StatusReply& status,
                  const run::ServerStats& server);

// A line for each shard, the one with the most load first, at most `top` of
// them; how many are left out stands below. Empty without shards.
std::string ShardsTable(const wire::StatusReply& status, int top);

}  // namespace slackline
