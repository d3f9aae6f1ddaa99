// ClientWaiting: what a worker waits for, for the coordinator, which finds out
// who holds others up, and for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/ids.h"
#include "worker/client/client_links.h"
#include "worker/client/routes.h"

namespace slackline {

struct ClientWaiting {
  enum class Kind {
    kNothing,
    kWorkers,  // Steps of `rank`, as a shard has said.
    kServer,   // An answer of `server`.
  };
  Kind kind = Kind::kNothing;
  std::optional<Rank> rank;
  std::optional<int32_t> server;
  // kWorkers: the clock that the shard has seen of `rank`. kServer: the clock
  // of the pull or push. 0 with kNothing.
  Clock clock = 0;
  // How long ago the thing waited for has last come nearer.
  absl::Duration since_progress;
  std::string text = "nothing";  // Completes "waits for ...: ", for people.
};

// A parked pull makes it kWorkers, unless a shard thread has left something
// else unanswered for several time-outs: then whoever holds up that server may
// hold up the others as well.
ClientWaiting WaitingFor(const ClientLinks& links, const Routes& routes,
                         absl::Time now);

}  // namespace slackline
