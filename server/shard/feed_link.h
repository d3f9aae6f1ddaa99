// FeedLink: what one shard thread has under way to another one, over all feeds
// between the two: of followers and of moves, of all shards.
//
// One budget. The other thread's listener ends a connection on which too much
// lies unread (ChannelOptions::unread_bytes_max), and everything that one
// thread feeds another one goes over one connection. So the bytes that the
// other thread may not have read yet are bounded here, however many shards are
// fed and whatever the other thread does. Feeds for which there is no room wait
// in turn.
//
// What is lost, and how that is found out. The transport keeps the order of a
// connection and repeats what the network loses; a message is lost only when
// its connection breaks, a queue is full, or the receiver has no use for it
// yet. No time-out can tell a loss from a queue that is long. So every message
// has a number, and its reply repeats it: what left before it has come before
// it, or is lost. A late reply is no reason to send entries again; it is a
// reason for a probe, a message without entries, whose reply is as certain. A
// message that was passed over, since a later one was answered first, leaves
// its feed in doubt, and the feed is probed at once.
//
// Deterministic state machine without I/O. Thread-compatible; the shard thread
// is its only caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/message.h"
#include "common/time/round_trip.h"
#include "proto/hand_over.pb.h"

namespace slackline {

class FeedLink {
 public:
  struct Options {
    // Under way at once: bytes of entries and their headers, and messages. One
    // entry may exceed the bytes when nothing else is under way. Probes, and
    // the last entry of a move, go in any case.
    size_t window_bytes = size_t{8} << 20;
    // Fewer than ChannelOptions::send_queue_max, so that the queue to the
    // connection has room for probes.
    int messages_max = 512;
    // After so long without a reply there is a probe. The round trip is
    // measured; before that, and at least, it is the smaller one. It doubles
    // while nothing is answered, up to the larger one.
    absl::Duration probe_min = absl::Milliseconds(50);
    absl::Duration probe_max = absl::Seconds(1);
  };
  // One of the feeds to the other thread.
  struct Feed {
    int32_t shard = 0;
    wire::Feed feed;
  };

  explicit FeedLink(const Options& options)
      : options_(options),
        round_trip_({.timeout_min = options.probe_min,
                     .timeout_max = options.probe_max}) {}

  // Whether so many bytes more may go now in a message of their own. False as
  // long as others wait in turn.
  bool HasRoom(size_t bytes) const {
    return waiting_.empty() && (under_way_.empty() || Fits(bytes));
  }
  // Whether so many bytes may be added to a message of `begun` bytes.
  bool HasRoomBehind(size_t begun, size_t bytes) const {
    return Fits(begun + bytes);
  }
  // A message of the feed leaves. Returns its number.
  uint64_t OnSend(const Feed& feed, size_t bytes, absl::Time now);
  // A message that asks what the other thread has of the feed. It leaves.
  Message Probe(const Feed& feed, absl::Time now);

  // A reply has come. Returns the feeds of messages before the one that it
  // answers which had no reply so far. Without effect if none of this feed with
  // this number is under way: numbers begin at 1 in each life of a server, and
  // the reply may be one of a life before.
  std::vector<Feed> OnReply(const wire::HandOverReply& reply, absl::Time now);
  // Returns the feed of the oldest message, if its reply is late, to be probed.
  // Call it at NextWakeup() or later.
  std::optional<Feed> OnTick(absl::Time now);
  // InfiniteFuture if nothing is under way.
  absl::Time NextWakeup() const { return probe_at_; }

  // A feed of the shard has something to send, and there is no room. Once is
  // enough.
  void Wait(ShardId shard);
  // The shards that wait, the first one first, if there may be room for one.
  // They wait no longer: those that still find no room call Wait() again, and
  // the rest keep their turns by that, too.
  std::deque<ShardId> TakeWaiting();

  // For tests.
  size_t bytes_under_way() const { return bytes_under_way_; }
  size_t messages_under_way() const { return under_way_.size(); }
  const RoundTrip& round_trip() const { return round_trip_; }

 private:
  struct Sent {
    uint64_t number = 0;
    Feed feed;
    size_t bytes = 0;
    absl::Time at;
  };
  bool Fits(size_t bytes) const {
    return bytes_under_way_ + bytes <= options_.window_bytes &&
           under_way_.size() < static_cast<size_t>(options_.messages_max);
  }

  Options options_;
  RoundTrip round_trip_;
  uint64_t last_number_ = 0;
  // Messages in the order of their numbers, without gaps: no later one has been
  // answered.
  std::deque<Sent> under_way_;
  size_t bytes_under_way_ = 0;
  int unanswered_ = 0;  // Probes since the last reply.
  absl::Time probe_at_ = absl::InfiniteFuture();
  std::deque<ShardId> waiting_;  // No shard twice.
};

}  // namespace slackline
