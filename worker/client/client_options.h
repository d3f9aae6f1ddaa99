// ClientOptions: what a ClientCore and its parts are told at their start. Fixed
// for their life.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/view/shard_map.h"

namespace slackline {

struct ClientOptions {
  Rank rank{};
  Incarnation incarnation = 0;
  uint64_t run = 0;  // Goes into every header; see wire.proto.
  // Payload bytes of pushes, and of pull answers asked for, in flight to one
  // shard thread. One message may exceed it when nothing else is in flight.
  size_t window_bytes = 4 << 20;
  size_t message_bytes = 256 << 10;  // A message is full at this payload,
  size_t message_entries = 256;      // and at so many entries.
  // Through a socket, shards that can go at once share a message of up to
  // this payload, if the link carries it in that time (MessageSize).
  size_t socket_message_bytes = 1 << 20;
  absl::Duration socket_message_time = absl::Milliseconds(1);
  // Whether messages to the shard thread go through a socket; null: none do.
  // Asked when the first one goes there.
  std::function<bool(const View& view, Owner to)> by_socket = nullptr;
  // Messages of pushes in flight to one shard thread that are not full.
  int small_messages_max = 8;
  // A probe asks about the shards of the oldest pushes, at most so many.
  size_t probe_shards_max = 1024;
  // Time-out of a probe before round trips are measured, and its smallest
  // value. It doubles while probes are not answered, up to retry_max, which
  // also bounds the measured time-out.
  absl::Duration retry_initial = absl::Milliseconds(250);
  absl::Duration retry_max = absl::Seconds(4);
  // The wait after the first RETRY or MOVED; it doubles up to retry_max.
  absl::Duration refused_delay = absl::Milliseconds(2);
  // How often a parked pull asks whom it waits for; at most retry_max.
  absl::Duration parked_delay = absl::Seconds(1);
};

}  // namespace slackline
