// How a shard's log gets from the thread that owns the shard (the source) to
// another one (the target), which then has the shard, too.
//
// The source sends a snapshot, its tensors in parts, and, while it goes on
// serving, the records that the shard applies from there on, in order. The
// target applies the same records, so it arrives at the same bits. A target
// that has the shard already, at the position where the source begins, needs no
// snapshot. What is lost is sent again, and nothing else (FeedLink says how
// that is known). A target that knows nothing of the feed yet declines it: then
// it is probed now and then, and sent the entries when it takes part.
//
// Two kinds of threads are fed: followers, for as long as the view lists them,
// and the thread to which the shard moves. When that one has confirmed
// everything there is, the source says "go" and stops serving; the target
// serves from then on. So nobody serves for the time of one small message.
// Before the go the source is the owner, after it the target is, whoever dies;
// the coordinator learns of it afterwards.
//
// Deterministic state machines without I/O. Thread-compatible; the shard thread
// is their only caller.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/message.h"
#include "proto/hand_over.pb.h"
#include "proto/run.pb.h"
#include "server/shard/feed_link.h"
#include "server/shard/shard_machine.h"

namespace slackline {

struct LogFeedOptions {
  size_t part_bytes = 256 << 10;  // So much of a tensor is in one entry.
  // Payload bytes sent and not yet confirmed; bounds what the target's other
  // work may have to wait behind.
  size_t window_bytes = 1 << 20;
  // While more than this waits to be confirmed, besides the snapshot, or when
  // the target has not caught up for so long, the source of a move lets
  // requests for the shard wait until the target has. For a follower only the
  // first one counts: from then on answers wait for it.
  size_t backlog_bytes_max = 64 << 20;
  absl::Duration catch_up_max = absl::Milliseconds(200);
  // While the gradients of a clock come within so long of each other, followers
  // are sent their sum, in place of each one: within gather_max, or, if that is
  // longer, four round trips to the followers, up to gather_limit.
  absl::Duration gather_max = absl::Milliseconds(20);
  absl::Duration gather_limit = absl::Seconds(1);
  // A target that declines the feed is asked again after the smaller one, which
  // doubles up to the larger one.
  absl::Duration declined_min = absl::Milliseconds(50);
  absl::Duration declined_max = absl::Seconds(1);
  // All feeds between two shard threads share a link.
  FeedLink::Options link = {};
};

// The source's side.
class LogFeed {
 public:
  // Begins with a snapshot of the shard as it is.
  LogFeed(const LogFeedOptions& options, Owner target, const wire::Feed& feed,
          const ShardMachine& shard, absl::Time now);
  // The target is thought to have the shard at `position`, which is as it is
  // now but perhaps for its term.
  LogFeed(const LogFeedOptions& options, Owner target, const wire::Feed& feed,
          ShardId shard, const LogPosition& position, absl::Time now);

  Owner target() const { return target_; }
  const wire::Feed& feed() const { return feed_; }

  // The owner has applied this record, and is at this position by it. Not after
  // Go().
  void OnRecord(const ShardRecord& record, const LogPosition& after);

  // `shard`: as it is now, for a target that lacks it; may be nullptr after
  // Go().
  void OnReply(const wire::HandOverReply& reply, const ShardMachine* shard,
               absl::Time now);
  // Sends what the window and the link to the target allow, and waits in turn
  // if it is the link that does not. Returns the payload bytes of it that had
  // been sent before.
  size_t Pump(FeedLink& link, absl::Time now, std::vector<Message>* sends);
  absl::Time NextWakeup() const { return ask_at_; }
  // The link does not know what has become of a message of `feed` up to this
  // number, and neither does this.
  bool IsInDoubt(const wire::Feed& feed, uint64_t number) const;

  // The target has all of the log up to this index; nullopt: it does not have
  // the shard yet.
  const std::optional<uint64_t>& confirmed() const { return confirmed_index_; }
  // The target has confirmed all there is: time for Go().
  bool CaughtUp() const { return entries_.empty() && !gone_; }
  // Requests for the shard have to wait, so that the target can catch up.
  bool MustWait(absl::Time now) const;
  // So much of the log waits to be confirmed that a follower holds up answers
  // even if it does not have the shard yet.
  bool TooFarBehind() const {
    return backlog_bytes_ > options_.backlog_bytes_max;
  }
  // The shard is to move to this follower from now on. The follower has the
  // shard, so nothing is sent for the move but the go.
  void BeginMove(absl::Time now);
  // The target owns the shard from here on.
  void Go(const wire::Go& go, absl::Time now);
  bool gone() const { return gone_; }
  bool owned_by_target() const { return owned_; }  // It has confirmed that.

  // What there is to say of a move, without its state, which the caller knows.
  run::HandOverState Report() const;
  // What there is to say of a follower, without what the caller knows of it.
  run::FollowerState ReportFollower() const;

 private:
  // A piece of the snapshot, or a record of the log, as it is sent.
  struct Entry {
    wire::HandOverRecord header;
    std::vector<Payload> payloads;
    size_t bytes = 0;
    // Where in the log the target is by it; nullopt: it does not have the shard
    // yet.
    std::optional<uint64_t> index;
    uint64_t number = 0;  // The message with which it left last has this one.
    // With its header, in a message.
    size_t bytes_in_message() const { return header_bytes + bytes; }
    size_t header_bytes = 0;
  };
  FeedLink::Feed Name() const { return {.shard = shard_, .feed = feed_}; }
  // What was sent and is not confirmed is to be sent again.
  void GoBack();
  void Add(Entry entry);
  void AddSnapshot(const ShardMachine& shard);
  void Confirm(uint64_t have, absl::Time now);

  LogFeedOptions options_;
  int32_t shard_;
  Owner target_;
  wire::Feed feed_;
  absl::Time started_;
  uint64_t confirmed_ = 0;  // Position of an entry.
  std::optional<uint64_t> confirmed_index_;
  std::deque<Entry> entries_;    // The first one is at confirmed_ + 1.
  size_t sent_ = 0;              // So many entries, from the front, were sent.
  size_t bytes_in_flight_ = 0;   // The entries that were sent have so many.
  size_t snapshot_entries_ = 0;  // So many, from the front, are the snapshot's.
  size_t backlog_bytes_ = 0;     // Bytes of entries that are no snapshot's.
  absl::Time copied_ = absl::InfiniteFuture();  // The target has the shard.
  // The target declines the feed: nothing is sent but a probe at ask_at_.
  bool declined_ = false;
  uint64_t probe_ = 0;  // The number of the last probe.
  absl::Time ask_at_ = absl::InfiniteFuture();
  absl::Duration backoff_;
  uint64_t move_ = 0;  // The go names this move.
  bool gone_ = false;
  bool owned_ = false;
  absl::Time gone_at_;
  absl::Duration pause_;
  int64_t bytes_sent_ = 0;
  absl::Time move_began_;
};

// Whether `a` began after `b`. Both are feeds of one shard to one follower.
bool IsNewer(const wire::Feed& a, const wire::Feed& b);

// The target's side: its copy, until it owns the shard.
class LogCopy {
 public:
  // Has nothing yet. The source may have more than `range`, up to `most`, which
  // begins where it does, if it has yet to hear that the shard was split in
  // two.
  LogCopy(PeerId source, const wire::Feed& feed, const ShardRange& range,
          const Region& most, std::shared_ptr<const TableRule> rule);
  // Has the shard, as the source has it.
  LogCopy(PeerId source, const wire::Feed& feed, const Region& most,
          ShardMachine machine);

  const PeerId& source() const { return source_; }
  const wire::Feed& feed() const { return feed_; }
  uint64_t have() const { return have_; }
  // The feed resumes where this is not: a snapshot is needed.
  bool lacks() const { return lacks_; }

  // A newer feed begins, from this source. What is here stays until the feed
  // brings a whole snapshot.
  void Follow(const PeerId& source, const wire::Feed& feed);

  // Takes the entries that are next; ignores others. InvalidArgument: the
  // message makes no sense, and nothing of the entry at fault was taken. Other
  // errors are those of the shard's store.
  absl::Status OnHandOver(const wire::HandOver& message,
                          const std::vector<Payload>& payloads);

  // nullptr: it is not whole yet.
  const ShardMachine* machine() const {
    return machine_.has_value() ? &*machine_ : nullptr;
  }
  // What the go says, once it has come.
  const std::optional<wire::Go>& go() const { return go_; }
  // The shard, once; machine() is not nullptr.
  ShardMachine Take();
  // Shards that records of a follower's feed have split off since the last
  // call.
  std::vector<ShardMachine> TakeParts();
  // Bytes that records have brought to updates since the last call.
  size_t TakeBytesApplied() { return std::exchange(bytes_applied_, 0); }

 private:
  size_t FramesOf(const wire::HandOverRecord& entry) const;
  absl::Status Take(const wire::HandOverRecord& entry,
                    absl::Span<const Payload> frames);
  absl::Status Resume(const wire::LogPosition& at);
  absl::Status StartCopy(const wire::ShardSnapshot& snapshot);
  absl::Status CopyPart(const wire::TensorPart& part, const Payload& payload);
  // The shard, once all tensors are there.
  absl::Status FinishCopy();
  absl::Status ApplyRecord(const wire::ShardRecord& record,
                           absl::Span<const Payload> frames);

  PeerId source_;
  wire::Feed feed_;
  ShardRange range_;
  Region most_;
  std::shared_ptr<const TableRule> rule_;
  int slot_count_ = 0;
  uint64_t have_ = 0;
  bool lacks_ = false;
  // The feed has brought the shard, or resumed it: records may come.
  bool begun_ = false;
  // A checked snapshot whose tensors are on their way.
  std::optional<wire::ShardSnapshot> snapshot_;
  std::vector<uint64_t> tensor_bytes_;  // The bytes of each of its tensors.
  std::vector<Payload> tensors_;  // Tensors that have begun to come, in order.
  size_t bytes_copied_ = 0;       // The last tensor has these; 0: it is whole.
  std::optional<ShardMachine> machine_;  // Once no byte is missing.
  std::vector<ShardMachine> parts_;
  size_t bytes_applied_ = 0;
  std::optional<wire::Go> go_;
};

}  // namespace slackline
