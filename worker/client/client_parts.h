// ClientParts: the parts of a ClientCore as its links know them, for the length
// of one call.
//
// | part | has |
// | --- | --- |
// | Routes | which shard thread owns which shard |
// | PushSequences | which pushes each shard has accepted |
// | PendingPulls | pulls that somebody waits for |
// | RequestNumbers | the number of the next transmission |
// | ClientCounts | what was counted |
//
// Beside these the core has a PushClock, which tables of a clock are pushed,
// ClientLinks, what is under way to each shard thread, and, for each message
// that comes, ClientReplies, what it does to all of these.
//
// Thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "worker/client/client_counts.h"
#include "worker/client/client_effects.h"
#include "worker/client/client_options.h"
#include "worker/client/pending_pulls.h"
#include "worker/client/push_sequences.h"
#include "worker/client/routes.h"

namespace slackline {

// Every transmission has a number of its own, and so has every message of a
// pull. They grow in the order of the sends to a shard thread.
class RequestNumbers {
 public:
  uint64_t Next() { return next_++; }

 private:
  uint64_t next_ = 1;  // 0 stands for none.
};

struct ClientParts {
  const ClientOptions& options;
  const Routes& routes;
  const PushSequences& sequences;
  const PendingPulls& pulls;
  RequestNumbers& numbers;
  ClientCounts& counts;
  absl::Time now;
  ClientEffects& effects;

  // A message to the shard thread that says as of which view it speaks.
  ClientSend NewSend(Owner to) const {
    ClientSend send{.to = to, .message = {}};
    send.message.header.set_view_number(routes.view().number());
    send.message.header.set_run(options.run);
    return send;
  }
  // The wait after so many refusals in a row.
  absl::Duration RefusedDelay(int refusals) const {
    absl::Duration delay = options.refused_delay;
    for (int i = 0; i < refusals && delay < options.retry_max; ++i) delay *= 2;
    return std::max(options.refused_delay, std::min(delay, options.retry_max));
  }
};

}  // namespace slackline
