// How one shard gets from the thread that owns it (the source) to the next one
// (the target).
//
// The source sends a snapshot and, while it goes on serving, everything that
// happens to the shard since, as records in order. The target does with its
// copy what the source did, so it arrives at the same bits. When the target has
// confirmed every record there is, the source says "go" and stops serving; the
// target serves from then on. So nobody serves for the time of one small
// message. Before the go the source is the owner, after it the target is,
// whoever dies; the coordinator learns of it afterwards.
//
// Deterministic state machines without I/O. Thread-compatible; the shard thread
// is their only caller.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/message.h"
#include "server/shard/shard_state.h"

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
                 const ShardState& state, absl::Time now);

  Owner target() const { return target_; }
  uint64_t move() const { return move_; }

  // The owner has taken this over. Not after Go(). `gradient` is what was
  // applied, at the usual rate times `rate_factor`, after the rule for stale
  // gradients.
  void OnPush(Rank rank, Incarnation incarnation, Clock clock, bool advance,
              const Payload& gradient, double rate_factor);
  void OnJoin(const StalenessGate::Participant& participant);
  void OnLeft(const std::vector<Incarnation>& incarnations);

  void OnReply(const wire::HandOverReply& reply, absl::Time now);
  // Sends what the window allows, and again what was not confirmed in time.
  void Pump(absl::Time now, std::vector<Message>* sends);
  absl::Time NextWakeup() const { return resend_at_; }

  // The target has confirmed all there is: time for Go().
  bool CaughtUp() const { return records_.empty() && !gone_; }
  // Requests for the shard have to wait, so that the target can catch up.
  bool MustWait(absl::Time now) const;
  // From here on the target owns the shard.
  void Go(absl::Time now);
  bool gone() const { return gone_; }
  bool owned_by_target() const { return owned_; }  // It has confirmed that.

  // Without the state, which the caller knows.
  run::HandOverState Report() const;

 private:
  struct Record {
    wire::HandOverRecord header;
    std::vector<Payload> payloads;
    size_t bytes = 0;
  };
  void Add(Record record);

  const HandOverOptions options_;
  const int32_t shard_;
  const Owner target_;
  const uint64_t move_;
  const absl::Time started_;
  uint64_t confirmed_ = 0;       // Position.
  std::deque<Record> records_;   // From position confirmed_ + 1 on.
  size_t sent_ = 0;              // Of records_, from the front.
  size_t bytes_in_flight_ = 0;   // Of those.
  size_t snapshot_records_ = 0;  // Of records_, from the front.
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
  HandOverTarget(PeerId source, uint64_t move) : source_(source), move_(move) {}

  const PeerId& source() const { return source_; }
  uint64_t move() const { return move_; }
  uint64_t have() const { return have_; }

  // What a record is to the shard thread, which alone knows how to apply it.
  class Replay {
   public:
    virtual ~Replay() = default;
    virtual void Push(ShardState& state, const wire::TakenPush& push,
                      const Payload& gradient) = 0;
    virtual void Left(ShardState& state, const wire::LeftWorkers& left) = 0;
  };
  // Takes the records that are next; ignores others. InvalidArgument: the
  // message makes no sense, and nothing of the record at fault was taken.
  absl::Status OnRecords(const wire::HandOver& message,
                         const std::vector<Payload>& payloads,
                         const ShardRange& range, int slot_count,
                         Replay* replay);
  // After the go record: the shard, once.
  std::optional<ShardState> TakeIfGone();

 private:
  absl::Status StartCopy(const wire::ShardSnapshot& snapshot,
                         const std::vector<Payload>& held,
                         const ShardRange& range, int slot_count);
  absl::Status CopyPart(const wire::TensorPart& part, const Payload& payload);

  const PeerId source_;
  const uint64_t move_;
  uint64_t have_ = 0;
  wire::ShardSnapshot snapshot_;
  std::vector<Payload> held_;
  std::vector<Payload> tensors_;  // Values, then slots.
  size_t bytes_missing_ = 0;      // Of the tensors.
  ShardRange range_;
  std::optional<ShardState> state_;  // Once no byte is missing.
  bool go_ = false;
};

}  // namespace slackline
