// How one shard gets from the thread that owns it (the source) to the next one
// (the target).
//
// The source sends a snapshot, its tensors in parts, and, while it goes on
// serving, the shard's log from there on, in order. The target applies the same
// records, so it arrives at the same bits. When the target has confirmed
// everything there is, the source says "go" and stops serving; the target
// serves from then on. So nobody serves for the time of one small message.
// Before the go the source is the owner, after it the target is, whoever dies;
// the coordinator learns of it afterwards.
//
// Deterministic state machines without I/O. Thread-compatible; the shard thread
// is their only caller.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/message.h"
#include "proto/run.pb.h"
#include "server/shard/shard_machine.h"

namespace slackline {

struct HandOverOptions {
  size_t part_bytes = 256 << 10;  // Of a tensor, in one record.
  // Payload bytes sent and not yet confirmed; bounds what the target's other
  // work may have to wait behind.
  size_t window_bytes = 1 << 20;
  // While more than this waits to be confirmed, besides the snapshot, or when
  // the target has not caught up for so long, the source lets requests for the
  // shard wait until the target has.
  size_t backlog_bytes_max = 64 << 20;
  absl::Duration catch_up_max = absl::Milliseconds(200);
  absl::Duration resend_initial = absl::Milliseconds(50);
  absl::Duration resend_max = absl::Seconds(1);  // Doubles up to this.
};

class HandOverSource {
 public:
  HandOverSource(const HandOverOptions& options, Owner target, uint64_t move,
                 const ShardMachine& shard, absl::Time now);

  Owner target() const { return target_; }
  uint64_t move() const { return move_; }

  // The owner has applied this record. Not after Go().
  void OnRecord(const ShardRecord& record);

  void OnReply(const wire::HandOverReply& reply, absl::Time now);
  // Sends what the window allows, and again what was not confirmed in time.
  void Pump(absl::Time now, std::vector<Message>* sends);
  absl::Time NextWakeup() const { return resend_at_; }

  // The target has confirmed all there is: time for Go().
  bool CaughtUp() const { return entries_.empty() && !gone_; }
  // Requests for the shard have to wait, so that the target can catch up.
  bool MustWait(absl::Time now) const;
  // From here on the target owns the shard.
  void Go(absl::Time now);
  bool gone() const { return gone_; }
  bool owned_by_target() const { return owned_; }  // It has confirmed that.

  // Without the state, which the caller knows.
  run::HandOverState Report() const;

 private:
  // Of the snapshot or of the log, as it is sent.
  struct Entry {
    wire::HandOverRecord header;
    std::vector<Payload> payloads;
    size_t bytes = 0;
  };
  void Add(Entry entry);

  const HandOverOptions options_;
  const int32_t shard_;
  const Owner target_;
  const uint64_t move_;
  const absl::Time started_;
  uint64_t confirmed_ = 0;       // Position.
  std::deque<Entry> entries_;    // From position confirmed_ + 1 on.
  size_t sent_ = 0;              // Of entries_, from the front.
  size_t bytes_in_flight_ = 0;   // Of those.
  size_t snapshot_entries_ = 0;  // Of entries_, from the front.
  size_t backlog_bytes_ = 0;     // Behind the snapshot.
  absl::Time copied_ = absl::InfiniteFuture();  // The snapshot was confirmed.
  absl::Time resend_at_ = absl::InfiniteFuture();
  absl::Duration backoff_;
  bool gone_ = false;
  bool owned_ = false;
  absl::Time gone_at_;
  absl::Duration pause_;
  int64_t bytes_sent_ = 0;
};

// The target's copy, until it owns the shard.
class HandOverTarget {
 public:
  HandOverTarget(PeerId source, uint64_t move, const ShardRange& range,
                 std::shared_ptr<const UpdateRule> rule);

  const PeerId& source() const { return source_; }
  uint64_t move() const { return move_; }
  uint64_t have() const { return have_; }

  // Takes the entries that are next; ignores others. InvalidArgument: the
  // message makes no sense, and nothing of the entry at fault was taken.
  absl::Status OnHandOver(const wire::HandOver& message,
                          const std::vector<Payload>& payloads);
  // After the go: the shard, once.
  std::optional<ShardMachine> TakeIfGone();

 private:
  size_t FramesOf(const wire::HandOverRecord& entry) const;
  absl::Status Take(const wire::HandOverRecord& entry,
                    absl::Span<const Payload> frames);
  absl::Status StartCopy(const wire::ShardSnapshot& snapshot);
  absl::Status CopyPart(const wire::TensorPart& part, const Payload& payload);
  absl::Status ApplyRecord(const wire::ShardRecord& record,
                           absl::Span<const Payload> frames);

  const PeerId source_;
  const uint64_t move_;
  const ShardRange range_;
  const std::shared_ptr<const UpdateRule> rule_;
  const int slot_count_;
  uint64_t have_ = 0;
  wire::ShardSnapshot snapshot_;  // Checked.
  std::vector<Payload> tensors_;  // Those that have begun to come, in order.
  size_t bytes_copied_ = 0;       // Of the tensors.
  std::optional<ShardMachine> shard_;  // Once no byte is missing.
  bool go_ = false;
};

}  // namespace slackline
