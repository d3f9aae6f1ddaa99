// The ids under which shard threads and workers are sent messages.
#pragma once

#include <cstdint>

#include "common/ids.h"
#include "common/sync/staleness_gate.h"

namespace slackline {

inline PeerId PeerOf(Owner thread) {
  return {.kind = PeerId::Kind::kShardThread,
          .index = thread.server,
          .instance = static_cast<uint64_t>(thread.thread)};
}

// Who has asked for that.
inline PeerId PeerOf(const GatedPull& pull) {
  return {.kind = PeerId::Kind::kWorker,
          .index = static_cast<int32_t>(pull.rank),
          .instance = pull.incarnation};
}

// `thread` is of a shard thread.
inline Owner OwnerOf(const PeerId& thread) {
  return {.server = thread.index,
          .thread = static_cast<int32_t>(thread.instance)};
}

}  // namespace slackline
