// Which shards, and which place for them, a user means.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/view/shard_map.h"

namespace slackline {

// Every one of `words` is a shard id ("3"), a range of ids with both ends
// ("3-7"), a table ("mlp.0.weight": all its shards) or a shard as it is shown
// ("mlp.0.weight[0, 65536)"). Each shard once, in the order in which it was
// named first. InvalidArgument names the word and what there is instead.
absl::StatusOr<std::vector<int32_t>> SelectShards(
    const View& view, const std::vector<std::string>& words);

// "SERVER" or "SERVER.THREAD"; without a thread that is -1. InvalidArgument,
// naming those there are, if the view does not have it.
absl::StatusOr<Owner> SelectTarget(const View& view, const std::string& text);

// InvalidArgument, naming those there are, if the view does not have it.
absl::Status CheckServer(const View& view, int server);

}  // namespace slackline
