// How many copies the shards of a running job have, of those that they are to
// have (docs/manual/replicas.md).
#pragma once

#include <cstdint>
#include <string>

#include "proto/control.pb.h"

namespace slackline {

struct CopiesState {
  int replicas = 0;  // Copies that each shard is to have.
  int shards = 0;
  int complete = 0;  // Shards with so many in sync.
  int alone = 0;     // Shards with none in sync: their server must not die.
  int copying = 0;   // Copies that are not in sync yet.
  // Sent for those so far, in all.
  int64_t copying_bytes = 0;
};
CopiesState CopiesOf(const wire::StatusReply& status, int replicas);

// "all of 24 shards have 1 in sync"
std::string CopiesText(const CopiesState& copies);

// The threads that follow a shard: "1.0 2.1", those that are not in sync in
// parentheses.
std::string FollowersText(const wire::View& view, int32_t shard);

}  // namespace slackline
