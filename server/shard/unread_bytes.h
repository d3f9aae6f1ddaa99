// The bound on what one peer of a shard thread may have sent that the thread
// has not read (ChannelOptions::unread_bytes_max). It follows from the budgets
// that the peers keep, so that only who is no member goes beyond it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/net/transport.h"
#include "proto/cluster.pb.h"
#include "server/shard/feed_link.h"

namespace slackline {

// Each peer has a connection of its own, and on it
//   - a worker: its pushes, limits.window_kib (ClientCore). What it sends again
//     goes once more before the first copy may be read;
//   - a rank whose gradients are summed here: 4 MiB (SumClientCore), less than
//     what any bound is;
//   - a shard thread: its feeds of all shards together (FeedLink), and one
//   entry
//     that is larger: a shard with the slots of its optimizer.
// Frames, headers and probes are the rest.
inline int64_t UnreadBytesMax(const config::Limits& limits,
                              const FeedLink::Options& link) {
  constexpr int64_t kTensorsMax = 5;
  const int64_t worker = 2 * int64_t{1024} * limits.window_kib();
  const int64_t shard_thread = static_cast<int64_t>(link.window_bytes) +
                               kTensorsMax * int64_t{1024} * limits.shard_kib();
  return std::max(ChannelOptions().unread_bytes_max,
                  2 * std::max(worker, shard_thread));
}

}  // namespace slackline
