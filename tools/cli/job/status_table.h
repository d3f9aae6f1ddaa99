// How a running job stands, for people and for programs.
#pragma once

#include <string>

#include "proto/control.pb.h"

namespace slackline {

struct StatusTableOptions {
  bool shards = false;  // Also a table of the shards.
  int top = 20;         // Of shards, moves and changes, so many at most.
};
// A headline, who is missing, a table of the workers and one of the servers,
// and if there are any the moves that are ordered, and the last moves and
// changes of the mode that are done.
std::string StatusTable(const wire::StatusReply& status,
                        const StatusTableOptions& options = {});

// The whole reply in Protobuf's JSON form with the names of the schema.
std::string StatusJson(const wire::StatusReply& status);

}  // namespace slackline
