// How a running job stands, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "proto/cluster.pb.h"
#include "proto/control.pb.h"

namespace slackline {

// What a config says of who and what should be there.
struct Configured {
  // The members by index and rank: their hosts. Empty: it is not known.
  std::vector<std::string> servers;
  std::vector<std::string> workers;
  int replicas = 0;                    // Copies of each shard.
  bool any_server_takes_over = false;  // As AnyServerTakesOver().
};
Configured ConfiguredBy(const config::ClusterConfig& config);

struct StatusTableOptions {
  bool shards = false;  // Also a table of the shards.
  int top = 20;         // Of shards, moves and changes, so many at most.
};
// A headline, who is missing, a table of the workers and one of the servers,
// and if there are any the moves that are ordered, and the last moves and
// changes of the mode that are done. Members that are not there have a line,
// too. Hosts are shown where they are not all this machine, copies where the
// shards are to have any, and where the coordinator is if that may change.
std::string StatusTable(const wire::StatusReply& status,
                        const Configured& configured = {},
                        const StatusTableOptions& options = {});

// Its parts that are lines of their own. Empty: there is nothing to say.
// "2 servers, 3 of 4 workers (worker 2: gone)".
std::string MembersText(const wire::StatusReply& status,
                        const Configured& configured);
// How far the copies are that shards are to have.
std::string CopiesLine(const wire::StatusReply& status,
                       const Configured& configured);
// The checkpoint that is under way, and the last one.
std::string CheckpointText(const wire::StatusReply& status);

// As ToJson(); under "gone" the names of the members that are not there, and
// under "redundancy" the CopiesState, null if there are to be none.
nlohmann::ordered_json StatusJson(const wire::StatusReply& status,
                                  const Configured& configured = {});

}  // namespace slackline
