#include "server/shard/hand_over.h"

#include <algorithm>
#include <cstring>

#include "common/status.h"
#include "server/shard/shard_codec.h"

namespace slackline {
// ---- Source ---------------------------------------------------------------

HandOverSource::HandOverSource(const HandOverOptions& options, Owner target,
                               uint64_t move, const ShardMachine& shard,
                               absl::Time now)
    : options_(options),
      shard_(static_cast<int32_t>(shard.shard().range().shard)),
      target_(target),
      move_(move),
      started_(now),
      backoff_(options.resend_initial) {
  const ShardSnapshot snapshot = shard.Snapshot();
  Entry begin;
  *begin.header.mutable_snapshot() = EncodeSnapshot(snapshot);
  Add(std::move(begin));
  int index = 0;
  for (const Payload& tensor : TensorsOf(snapshot)) {
    for (size_t offset = 0; offset < tensor.size();
         offset += options_.part_bytes) {
      const size_t bytes =
          std::min(options_.part_bytes, tensor.size() - offset);
      Entry part;
      part.header.mutable_part()->set_tensor(index);
      part.header.mutable_part()->set_offset(offset);
      part.payloads.push_back(tensor.Slice(offset, bytes));
      part.bytes = bytes;
      Add(std::move(part));
    }
    ++index;
  }
  snapshot_entries_ = entries_.size();
  backlog_bytes_ = 0;
}

void HandOverSource::Add(Entry entry) {
  SL_CHECK(!gone_, "a record for a shard that was handed over");
  backlog_bytes_ += entry.bytes;
  entries_.push_back(std::move(entry));
}

void HandOverSource::OnRecord(const ShardRecord& record) {
  Entry entry;
  *entry.header.mutable_record() = EncodeRecord(record, &entry.payloads);
  for (const Payload& payload : entry.payloads) entry.bytes += payload.size();
  Add(std::move(entry));
}

bool HandOverSource::MustWait(absl::Time now) const {
  return !gone_ && !entries_.empty() &&
         (backlog_bytes_ > options_.backlog_bytes_max ||
          now - copied_ > options_.catch_up_max);
}

void HandOverSource::Go(absl::Time now) {
  Entry entry;
  entry.header.set_go(true);
  Add(std::move(entry));
  gone_ = true;
  gone_at_ = now;
  backoff_ = options_.resend_initial;
}

void HandOverSource::OnReply(const wire::HandOverReply& reply, absl::Time now) {
  if (reply.move() != move_ || owned_) return;
  // Nothing beyond what was sent can have been taken.
  const uint64_t have = std::min<uint64_t>(reply.have(), confirmed_ + sent_);
  const bool progress = have > confirmed_;
  while (confirmed_ < have) {
    const Entry& entry = entries_.front();
    bytes_in_flight_ -= entry.bytes;
    --sent_;
    if (snapshot_entries_ > 0) {
      if (--snapshot_entries_ == 0) copied_ = now;
    } else {
      backlog_bytes_ -= entry.bytes;
    }
    entries_.pop_front();
    ++confirmed_;
  }
  if (progress) {
    backoff_ = options_.resend_initial;
    resend_at_ = sent_ == 0 ? absl::InfiniteFuture() : now + backoff_;
  }
  if (gone_ && reply.owned()) {
    owned_ = true;
    pause_ = now - gone_at_;
    entries_.clear();
    sent_ = 0;
    resend_at_ = absl::InfiniteFuture();
  }
}

void HandOverSource::Pump(absl::Time now, std::vector<Message>* sends) {
  if (now >= resend_at_) {  // Go-back-N.
    backoff_ = std::min(backoff_ * 2, options_.resend_max);
    resend_at_ = absl::InfiniteFuture();
    sent_ = 0;
    bytes_in_flight_ = 0;
  }
  while (sent_ < entries_.size() &&
         (sent_ == 0 ||
          bytes_in_flight_ + entries_[sent_].bytes <= options_.window_bytes)) {
    Message& message = sends->emplace_back();
    wire::HandOver& hand_over = *message.header.mutable_hand_over();
    hand_over.set_shard(shard_);
    hand_over.set_move(move_);
    hand_over.set_position(confirmed_ + sent_ + 1);
    // Small records share a message; a part has one of its own.
    size_t bytes = 0;
    const auto fits = [&](const Entry& entry) {
      return bytes + entry.bytes <= options_.part_bytes &&
             bytes_in_flight_ + bytes + entry.bytes <= options_.window_bytes;
    };
    do {
      const Entry& entry = entries_[sent_++];
      *hand_over.add_record() = entry.header;
      message.payloads.insert(message.payloads.end(), entry.payloads.begin(),
                              entry.payloads.end());
      bytes += entry.bytes;
    } while (sent_ < entries_.size() && fits(entries_[sent_]));
    bytes_in_flight_ += bytes;
    bytes_sent_ += static_cast<int64_t>(bytes);
    if (resend_at_ == absl::InfiniteFuture()) resend_at_ = now + backoff_;
  }
}

run::HandOverState HandOverSource::Report() const {
  run::HandOverState report;
  report.set_shard(shard_);
  report.set_move(move_);
  report.set_bytes(bytes_sent_);
  report.set_to_server(target_.server);
  if (gone_) {
    report.set_copy_micros(absl::ToInt64Microseconds(gone_at_ - started_));
    report.set_pause_micros(absl::ToInt64Microseconds(pause_));
  }
  return report;
}

// ---- Target ---------------------------------------------------------------

HandOverTarget::HandOverTarget(PeerId source, uint64_t move,
                               const ShardRange& range,
                               std::shared_ptr<const UpdateRule> rule)
    : source_(source),
      move_(move),
      range_(range),
      rule_(std::move(rule)),
      slot_count_(rule_->optimizer.slot_count()) {}

size_t HandOverTarget::FramesOf(const wire::HandOverRecord& entry) const {
  if (entry.has_part()) return 1;
  return entry.has_record() ? FrameCount(entry.record(), slot_count_) : 0;
}

absl::Status HandOverTarget::OnHandOver(const wire::HandOver& message,
                                        const std::vector<Payload>& payloads) {
  uint64_t position = message.position();
  absl::Span<const Payload> rest(payloads);
  for (const wire::HandOverRecord& entry : message.record()) {
    const uint64_t at = position++;
    const size_t count = FramesOf(entry);
    if (rest.size() < count) {
      return absl::InvalidArgumentError(
          absl::StrCat("record ", at, " needs ", count,
                       " payload frames, and has ", rest.size()));
    }
    const absl::Span<const Payload> frames = rest.first(count);
    rest.remove_prefix(count);
    if (go_ || at != have_ + 1) continue;  // Seen, or one before it was lost.
    SL_RETURN_IF_ERROR(
        Annotate(Take(entry, frames), absl::StrCat("record ", at)));
    have_ = at;
  }
  return absl::OkStatus();
}

absl::Status HandOverTarget::Take(const wire::HandOverRecord& entry,
                                  absl::Span<const Payload> frames) {
  switch (entry.kind_case()) {
    case wire::HandOverRecord::kSnapshot:
      return StartCopy(entry.snapshot());
    case wire::HandOverRecord::kPart:
      return CopyPart(entry.part(), frames.front());
    case wire::HandOverRecord::kRecord:
      return ApplyRecord(entry.record(), frames);
    case wire::HandOverRecord::kGo:
      if (!shard_.has_value()) break;
      go_ = true;
      return absl::OkStatus();
    case wire::HandOverRecord::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "it is of a kind that is not known, or has no place here");
}

absl::Status HandOverTarget::StartCopy(const wire::ShardSnapshot& snapshot) {
  SL_RETURN_IF_ERROR(CheckSnapshot(snapshot));
  snapshot_ = snapshot;
  tensors_.clear();
  bytes_copied_ = 0;
  shard_.reset();
  return absl::OkStatus();
}

absl::Status HandOverTarget::CopyPart(const wire::TensorPart& part,
                                      const Payload& payload) {
  if (have_ == 0 || shard_.has_value())
    return absl::InvalidArgumentError("a part without a snapshot before it");
  const size_t tensor_count = TensorCount(snapshot_, slot_count_);
  const size_t tensor = bytes_copied_ / range_.bytes();
  const size_t offset = bytes_copied_ % range_.bytes();
  if (static_cast<size_t>(part.tensor()) != tensor || part.offset() != offset ||
      payload.empty() || payload.size() > range_.bytes() - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("a part of ", payload.size(), " bytes at ", part.offset(),
                     " of tensor ", part.tensor(), ": the next one is at ",
                     offset, " of tensor ", tensor, "; the shard has ",
                     tensor_count, " tensors of ", range_.bytes(), " bytes"));
  }
  // Not before its first part: what is promised may never come.
  if (offset == 0) tensors_.push_back(Payload::Allocate(range_.bytes()));
  std::memcpy(tensors_.back().MutableData() + offset, payload.data(),
              payload.size());
  bytes_copied_ += payload.size();
  if (bytes_copied_ < tensor_count * range_.bytes()) return absl::OkStatus();
  shard_.emplace(rule_, range_,
                 DecodeSnapshot(snapshot_, slot_count_, std::move(tensors_)));
  tensors_.clear();
  return absl::OkStatus();
}

absl::Status HandOverTarget::ApplyRecord(const wire::ShardRecord& record,
                                         absl::Span<const Payload> frames) {
  if (!shard_.has_value()) {
    return absl::InvalidArgumentError(
        "it comes before the snapshot is complete");
  }
  SL_ASSIGN_OR_RETURN(const ShardRecord decoded, DecodeRecord(record, frames));
  if (std::holds_alternative<SplitRecord>(decoded)) {
    return absl::InvalidArgumentError("a shard on its way is not cut in two");
  }
  return shard_->Apply(decoded).status();
}

std::optional<ShardMachine> HandOverTarget::TakeIfGone() {
  if (!go_) return std::nullopt;
  return std::exchange(shard_, std::nullopt);
}

}  // namespace slackline
