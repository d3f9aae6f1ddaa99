// How a running job stands, for people and for programs.
#pragma once

#include <string>

#include "proto/wire.pb.h"

namespace slackline {

// A headline, who is missing, a table of the workers and one of the servers.
std::string StatusTable(const wire::StatusReply& status);

// The whole reply in Protobuf's JSON form with the names of the schema.
std::string StatusJson(const wire::StatusReply& status);

}  // namespace slackline
