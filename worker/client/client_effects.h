// ClientEffects: what comes out of a ClientCore and its parts. Each call
// appends to it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/message.h"
#include "worker/client/pull_result.h"

namespace slackline {

// A message to a shard thread.
struct ClientSend {
  Owner to;
  Message message;
};

// All shards of a table have come, of a pull that may be under way.
struct BroughtTable {
  uint64_t pull_id = 0;
  TableId table{};
};

struct ClientEffects {
  std::vector<ClientSend> sends;
  std::vector<BroughtTable> brought;
  std::vector<PullResult> pulled;
  // The servers no longer know this incarnation: join again, with a new core.
  bool fenced = false;
  // A server refused something as wrong. The core is unusable from here on.
  absl::Status failure;
};

}  // namespace slackline
