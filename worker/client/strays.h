// Strays: what waits at the link to one shard thread for shards that another
// one owns by now, on its way to the link to that one.
#pragma once

#include <map>
#include <vector>

#include "common/ids.h"
#include "worker/client/pull_unit.h"
#include "worker/client/push_unit.h"

namespace slackline {

struct Strays {
  std::vector<PushUnit> pushes;
  std::vector<PullUnit> pulls;
};
using StraysByOwner = std::map<Owner, Strays>;

}  // namespace slackline
