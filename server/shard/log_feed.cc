#include "server/shard/log_feed.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/with_memory.h"
#include "server/shard/shard_codec.h"

namespace slackline {
// ---- Source ---------------------------------------------------------------

LogFeed::LogFeed(const LogFeedOptions& options, Owner target,
                 const wire::Feed& feed, const ShardMachine& shard,
                 absl::Time now)
    : options_(options),
      shard_(static_cast<int32_t>(shard.shard().range().shard)),
      target_(target),
      feed_(feed),
      started_(now),
      backoff_(options.declined_min),
      move_began_(now) {
  AddSnapshot(shard);
}

LogFeed::LogFeed(const LogFeedOptions& options, Owner target,
                 const wire::Feed& feed, ShardId shard,
                 const LogPosition& position, absl::Time now)
    : options_(options),
      shard_(static_cast<int32_t>(shard)),
      target_(target),
      feed_(feed),
      started_(now),
      backoff_(options.declined_min),
      move_began_(now) {
  Entry resume{.header = {}, .payloads = {}, .index = position.index};
  *resume.header.mutable_resume() = EncodePosition(position);
  Add(std::move(resume));
  snapshot_entries_ = 1;
}

void LogFeed::AddSnapshot(const ShardMachine& shard) {
  const ShardSnapshot snapshot = shard.Snapshot();
  Entry begin;
  *begin.header.mutable_snapshot() = EncodeSnapshot(snapshot);
  const Region& region = shard.shard().range().region;
  begin.header.mutable_snapshot()->set_begin(region.begin());
  begin.header.mutable_snapshot()->set_end(region.end());
  const std::vector<Payload> tensors = TensorsOf(snapshot);
  if (!std::ranges::all_of(tensors, [&](const Payload& tensor) {
        return tensor.size() == region.DenseBytes();
      })) {
    for (const Payload& tensor : tensors)
      begin.header.mutable_snapshot()->add_tensor_bytes(tensor.size());
  }
  Add(std::move(begin));
  int index = 0;
  for (const Payload& tensor : tensors) {
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
  entries_.back().index = snapshot.position.index;
  snapshot_entries_ = entries_.size();
  backlog_bytes_ = 0;
}

void LogFeed::Add(Entry entry) {
  SL_CHECK(!gone_, "a record for a shard that was handed over");
  // With a tag and a length.
  entry.header_bytes = entry.header.ByteSizeLong() + 4;
  backlog_bytes_ += entry.bytes;
  entries_.push_back(std::move(entry));
}

void LogFeed::OnRecord(const ShardRecord& record, const LogPosition& after) {
  Entry entry{.header = {}, .payloads = {}, .index = after.index};
  *entry.header.mutable_record() = EncodeRecord(record, &entry.payloads);
  for (const Payload& payload : entry.payloads) entry.bytes += payload.size();
  Add(std::move(entry));
}

bool LogFeed::MustWait(absl::Time now) const {
  return !gone_ && !entries_.empty() &&
         (TooFarBehind() || now - copied_ > options_.catch_up_max);
}

void LogFeed::BeginMove(absl::Time now) { move_began_ = now; }

void LogFeed::Go(const wire::Go& go, absl::Time now) {
  Entry entry;
  *entry.header.mutable_go() = go;
  Add(std::move(entry));
  move_ = go.move();
  gone_ = true;
  gone_at_ = now;
}

void LogFeed::Confirm(uint64_t have, absl::Time now) {
  const bool progress = have > confirmed_;
  while (confirmed_ < have) {
    const Entry& entry = entries_.front();
    bytes_in_flight_ -= entry.bytes;
    --sent_;
    if (entry.index.has_value()) confirmed_index_ = entry.index;
    if (snapshot_entries_ > 0) {
      if (--snapshot_entries_ == 0) copied_ = now;
    } else {
      backlog_bytes_ -= entry.bytes;
    }
    entries_.pop_front();
    ++confirmed_;
  }
  if (progress) backoff_ = options_.declined_min;
}

void LogFeed::GoBack() {
  sent_ = 0;
  bytes_in_flight_ = 0;
}

bool LogFeed::IsInDoubt(const wire::Feed& feed, uint64_t number) const {
  if (IsNewer(feed, feed_) || IsNewer(feed_, feed) || owned_) return false;
  const bool entries = sent_ > 0 && entries_.front().number <= number;
  const bool probe =
      declined_ && ask_at_ == absl::InfiniteFuture() && probe_ <= number;
  return entries || probe;
}

void LogFeed::OnReply(const wire::HandOverReply& reply,
                      const ShardMachine* shard, absl::Time now) {
  if (reply.feed().to_case() != feed_.to_case() ||
      IsNewer(reply.feed(), feed_) || IsNewer(feed_, reply.feed()) || owned_) {
    return;
  }
  const auto lost = [&] {
    return sent_ > 0 && entries_.front().number <= reply.number();
  };
  if (reply.declined()) {
    // Unless it is of long ago.
    if (entries_.empty() || (sent_ > 0 && !lost())) return;
    GoBack();
    declined_ = true;
    ask_at_ = now + backoff_;
    backoff_ = std::min(backoff_ * 2, options_.declined_max);
    return;
  }
  declined_ = false;
  ask_at_ = absl::InfiniteFuture();
  if (reply.lacks()) {
    // Nothing of this feed has been taken, and nothing can be before a
    // snapshot: one of now has what the records since then did. It is numbered
    // behind them, since copies of theirs may still be on their way.
    if (shard != nullptr && !entries_.empty() &&
        entries_.front().header.has_resume()) {
      confirmed_ += entries_.size();
      entries_.clear();
      GoBack();
      AddSnapshot(*shard);
    }
  } else {
    // Nothing beyond what was sent can have been taken.
    Confirm(std::min<uint64_t>(reply.have(), confirmed_ + sent_), now);
  }
  // The target takes entries in their order, so what is behind one that is lost
  // is lost, too.
  if (lost()) GoBack();
  if (gone_ && reply.owned()) {
    owned_ = true;
    pause_ = now - gone_at_;
    entries_.clear();
    GoBack();
  }
}

size_t LogFeed::Pump(FeedLink& link, absl::Time now,
                     std::vector<Message>* sends) {
  // Of what is the same in every message of the feed.
  constexpr size_t kMessageBytes = 96;
  if (now >= ask_at_) {
    ask_at_ = absl::InfiniteFuture();
    sends->push_back(link.Probe(Name(), now));
    probe_ = sends->back().header.hand_over().number();
  }
  size_t again = 0;
  if (declined_) return again;
  while (sent_ < entries_.size() &&
         (sent_ == 0 ||
          bytes_in_flight_ + entries_[sent_].bytes <= options_.window_bytes)) {
    size_t message_bytes = kMessageBytes;
    // The go is small, and from here on the shard is ours no more: it leaves at
    // once, or a target that dies takes the shard along without ever having
    // heard that it is its owner.
    if (!entries_[sent_].header.has_go() &&
        !link.HasRoom(message_bytes + entries_[sent_].bytes_in_message())) {
      link.Wait(ShardId{shard_});
      break;
    }
    Message& message = sends->emplace_back();
    wire::HandOver& hand_over = *message.header.mutable_hand_over();
    hand_over.set_shard(shard_);
    *hand_over.mutable_feed() = feed_;
    hand_over.set_position(confirmed_ + sent_ + 1);
    // Small records share a message; a part has one of its own.
    const size_t first = sent_;
    size_t bytes = 0;
    const auto fits = [&](const Entry& entry) {
      return bytes + entry.bytes <= options_.part_bytes &&
             bytes_in_flight_ + bytes + entry.bytes <= options_.window_bytes &&
             link.HasRoomBehind(message_bytes, entry.bytes_in_message());
    };
    do {
      const Entry& entry = entries_[sent_++];
      *hand_over.add_record() = entry.header;
      message.payloads.insert(message.payloads.end(), entry.payloads.begin(),
                              entry.payloads.end());
      bytes += entry.bytes;
      message_bytes += entry.bytes_in_message();
    } while (sent_ < entries_.size() && fits(entries_[sent_]));
    const uint64_t number = link.OnSend(Name(), message_bytes, now);
    hand_over.set_number(number);
    for (size_t i = first; i < sent_; ++i) {
      if (entries_[i].number != 0) again += entries_[i].bytes;
      entries_[i].number = number;
    }
    bytes_in_flight_ += bytes;
    bytes_sent_ += static_cast<int64_t>(bytes);
  }
  return again;
}

run::HandOverState LogFeed::Report() const {
  run::HandOverState report;
  report.set_shard(shard_);
  report.set_move(move_ > 0 ? move_ : feed_.move());
  // What a follower was sent, it was not sent for a move.
  report.set_bytes(feed_.has_move() ? bytes_sent_ : 0);
  report.set_to_server(target_.server);
  if (gone_) {
    report.set_copy_micros(absl::ToInt64Microseconds(gone_at_ - move_began_));
    report.set_pause_micros(absl::ToInt64Microseconds(pause_));
  }
  return report;
}

run::FollowerState LogFeed::ReportFollower() const {
  run::FollowerState report;
  report.set_shard(shard_);
  report.set_server(target_.server);
  report.set_since(feed_.follower());
  report.set_bytes(bytes_sent_);
  if (copied_ < absl::InfiniteFuture())
    report.set_copy_micros(absl::ToInt64Microseconds(copied_ - started_));
  return report;
}

// ---- Target ---------------------------------------------------------------

bool IsNewer(const wire::Feed& a, const wire::Feed& b) {
  // Of a move there is one feed.
  const auto order = [](const wire::Feed& feed) {
    return std::make_tuple(feed.term(),
                           feed.has_move() ? feed.move() : feed.follower());
  };
  return order(a) > order(b);
}

LogCopy::LogCopy(PeerId source, const wire::Feed& feed, const ShardRange& range,
                 const Region& most, std::shared_ptr<const TableRule> rule)
    : source_(source),
      feed_(feed),
      range_(range),
      most_(most),
      rule_(std::move(rule)),
      slot_count_(rule_->optimizer.slot_count()) {}

LogCopy::LogCopy(PeerId source, const wire::Feed& feed, const Region& most,
                 ShardMachine machine)
    : LogCopy(source, feed, machine.shard().range(), most, machine.rule()) {
  machine_ = std::move(machine);
}

void LogCopy::Follow(const PeerId& source, const wire::Feed& feed) {
  source_ = source;
  feed_ = feed;
  have_ = 0;
  lacks_ = begun_ = false;
  snapshot_.reset();
  tensors_.clear();
  bytes_copied_ = 0;
  go_.reset();
}

size_t LogCopy::FramesOf(const wire::HandOverRecord& entry) const {
  if (entry.has_part()) return 1;
  return entry.has_record() ? FrameCount(entry.record(), slot_count_) : 0;
}

absl::Status LogCopy::OnHandOver(const wire::HandOver& message,
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
    if (lacks_ && entry.has_snapshot()) have_ = std::max(have_, at - 1);
    // Seen, or one before it was lost.
    if (go_.has_value() || at != have_ + 1) continue;
    SL_RETURN_IF_ERROR(
        Annotate(Take(entry, frames), absl::StrCat("record ", at)));
    if (!lacks_) have_ = at;
  }
  return absl::OkStatus();
}

absl::Status LogCopy::Take(const wire::HandOverRecord& entry,
                           absl::Span<const Payload> frames) {
  switch (entry.kind_case()) {
    case wire::HandOverRecord::kSnapshot:
      return StartCopy(entry.snapshot());
    case wire::HandOverRecord::kPart:
      return CopyPart(entry.part(), frames.front());
    case wire::HandOverRecord::kRecord:
      return ApplyRecord(entry.record(), frames);
    case wire::HandOverRecord::kGo:
      if (!begun_) break;
      go_ = entry.go();
      return absl::OkStatus();
    case wire::HandOverRecord::kResume:
      return Resume(entry.resume());
    case wire::HandOverRecord::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "it is of a kind that is not known, or has no place here");
}

absl::Status LogCopy::Resume(const wire::LogPosition& at) {
  if (have_ > 0)
    return absl::InvalidArgumentError("a feed resumes that has begun already");
  if (!machine_.has_value() || !(machine_->position() == DecodePosition(at))) {
    lacks_ = true;
    return absl::OkStatus();
  }
  machine_->BeginTerm(feed_.term());
  begun_ = true;
  return absl::OkStatus();
}

absl::Status LogCopy::StartCopy(const wire::ShardSnapshot& snapshot) {
  if (begun_)
    return absl::InvalidArgumentError("a snapshot of a shard that is here");
  if (snapshot_.has_value())
    return absl::InvalidArgumentError(
        "a second snapshot before all of the first");
  const Region region(snapshot.begin(), snapshot.end());
  if (region.begin() != most_.begin() || !most_.Contains(region)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a snapshot of elements ", region.Text(),
                     "; a beginning of ", most_.Text(), " is required"));
  }
  SL_RETURN_IF_ERROR(CheckSnapshot(snapshot, *rule_));
  const size_t count = TensorCount(snapshot, slot_count_);
  std::vector<uint64_t> tensor_bytes(snapshot.tensor_bytes().begin(),
                                     snapshot.tensor_bytes().end());
  if (tensor_bytes.empty()) tensor_bytes.assign(count, region.DenseBytes());
  if (tensor_bytes.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("a snapshot with the sizes of ", tensor_bytes.size(),
                     " tensors, and it has ", count));
  }
  for (const uint64_t bytes : tensor_bytes)
    SL_RETURN_IF_ERROR(rule_->store->CheckBytes(region, bytes));
  range_.region = region;
  snapshot_ = snapshot;
  tensor_bytes_ = std::move(tensor_bytes);
  tensors_.clear();
  bytes_copied_ = 0;
  lacks_ = false;
  return absl::OkStatus();
}

absl::Status LogCopy::CopyPart(const wire::TensorPart& part,
                               const Payload& payload) {
  if (!snapshot_.has_value())
    return absl::InvalidArgumentError("a part without a snapshot before it");
  const size_t tensor = tensors_.size() - (bytes_copied_ > 0 ? 1 : 0);
  const size_t offset = bytes_copied_;
  const uint64_t bytes = tensor_bytes_[tensor];
  if (static_cast<size_t>(part.tensor()) != tensor || part.offset() != offset ||
      payload.empty() || payload.size() > bytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a part of ", payload.size(), " bytes at ", part.offset(),
        " of tensor ", part.tensor(), ": the next one is at ", offset,
        " of tensor ", tensor, "; the shard has ", tensor_bytes_.size(),
        " tensors, and this one ", bytes, " bytes"));
  }
  // Not before its first part: what is promised may never come.
  if (offset == 0) {
    SL_RETURN_IF_ERROR(WithMemory(bytes, "a tensor that comes to it", [&] {
      tensors_.push_back(Payload::Allocate(bytes));
    }));
  }
  std::memcpy(tensors_.back().MutableData() + offset, payload.data(),
              payload.size());
  bytes_copied_ += payload.size();
  if (bytes_copied_ < bytes) return absl::OkStatus();
  bytes_copied_ = 0;
  return tensors_.size() < tensor_bytes_.size() ? absl::OkStatus()
                                                : FinishCopy();
}

absl::Status LogCopy::FinishCopy() {
  ShardSnapshot snapshot = DecodeSnapshot(*std::exchange(snapshot_, {}),
                                          slot_count_, std::move(tensors_));
  tensors_.clear();
  SL_RETURN_IF_ERROR(
      rule_->store->Check(range_.region, snapshot.values, snapshot.slots));
  SL_ASSIGN_OR_RETURN(ShardMachine machine,
                      ShardMachine::Create(rule_, range_, std::move(snapshot)));
  SL_RETURN_IF_ERROR(machine.accepted().Check(machine.shard().store()));
  machine_ = std::move(machine);
  begun_ = true;
  return absl::OkStatus();
}

absl::Status LogCopy::ApplyRecord(const wire::ShardRecord& record,
                                  absl::Span<const Payload> frames) {
  if (!begun_) {
    return absl::InvalidArgumentError(
        "it comes before the snapshot is complete");
  }
  SL_ASSIGN_OR_RETURN(const ShardRecord decoded, DecodeRecord(record, frames));
  if (std::holds_alternative<SplitRecord>(decoded) && feed_.has_move()) {
    return absl::InvalidArgumentError("a shard on its way is not split in two");
  }
  SL_ASSIGN_OR_RETURN(ShardOutcome outcome, machine_->Apply(decoded));
  for (const ShardOutcome::Update& update : outcome.updates)
    bytes_applied_ += update.bytes;
  if (outcome.part.has_value()) {
    range_ = machine_->shard().range();
    parts_.push_back(*std::move(outcome.part));
  }
  return absl::OkStatus();
}

ShardMachine LogCopy::Take() {
  begun_ = false;
  return *std::exchange(machine_, std::nullopt);
}

std::vector<ShardMachine> LogCopy::TakeParts() {
  return std::exchange(parts_, {});
}

}  // namespace slackline
