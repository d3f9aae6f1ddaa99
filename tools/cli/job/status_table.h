// How a running job stands, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "proto/cluster.pb.h"
#include "proto/control.pb.h"

namespace slackline {

// The members that a config has, by index and rank: their hosts. Empty: it is
// not known who should be there.
struct ConfiguredMembers {
  std::vector<std::string> servers;
  std::vector<std::string> workers;
};
ConfiguredMembers MembersOf(const config::ClusterConfig& config);

struct StatusTableOptions {
  bool shards = false;  // Also a table of the shards.
  int top = 20;         // Of shards, moves and changes, so many at most.
};
// A headline, who is missing, a table of the workers and one of the servers,
// and if there are any the moves that are ordered, and the last moves and
// changes of the mode that are done. Members that are not there have a line,
// too. Hosts are shown where they are not all this machine.
std::string StatusTable(const wire::StatusReply& status,
                        const ConfiguredMembers& configured = {},
                        const StatusTableOptions& options = {});

// As ToJson(); and under "gone" the names of the members that are not there.
nlohmann::ordered_json StatusJson(const wire::StatusReply& status,
                                  const ConfiguredMembers& configured = {});

}  // namespace slackline
