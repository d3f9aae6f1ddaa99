#include "server/shard/hand_over.h"

#include <algorithm>
#include <cstring>

#include "common/status.h"

namespace slackline {
namespace {

wire::ShardParticipant ToWire(const StalenessGate::Participant& participant) {
  wire::ShardParticipant message;
  message.set_rank(static_cast<int32_t>(participant.rank));
  message.set_incarnation(participant.incarnation);
  message.set_joined_at(participant.joined_at);
  message.set_clock(participant.clock);
  message.set_next_seq(participant.next_seq);
  return message;
}

StalenessGate::Participant FromWire(const wire::ShardParticipant& message) {
  return {.rank = Rank{message.rank()},
          .incarnation = message.incarnation(),
          .joined_at = message.joined_at(),
          .clock = message.clock(),
          .next_seq = message.next_seq()};
}

}  // namespace

// ---- Source ---------------------------------------------------------------

HandOverSource::HandOverSource(const HandOverOptions& options, Owner target,
                               uint64_t move, const ShardState& state,
                               absl::Time now)
    : options_(options),
      shard_(static_cast<int32_t>(state.shard.range().shard)),
      target_(target),
      move_(move),
      started_(now),
      backoff_(options.resend_initial) {
  Record begin;
  wire::ShardSnapshot& snapshot = *begin.header.mutable_snapshot();
  snapshot.set_version(state.shard.version());
  snapshot.set_min_clock(state.gate.MinClock());
  snapshot.set_bsp_clock(state.bsp_clock);
  for (const StalenessGate::Participant& participant :
       state.gate.participants()) {
    *snapshot.add_participant() = ToWire(participant);
  }
  for (const ShardState::Held& held : state.held) {
    wire::ShardParticipant& who = *snapshot.add_held();
    who.set_rank(static_cast<int32_t>(held.rank));
    who.set_incarnation(held.incarnation);
    begin.payloads.push_back(held.gradient);
    begin.bytes += held.gradient.size();
  }
  Add(std::move(begin));
  const auto add_tensor = [&](int index, const Payload& tensor) {
    for (size_t offset = 0; offset < tensor.size();
         offset += options_.part_bytes) {
      const size_t bytes =
          std::min(options_.part_bytes, tensor.size() - offset);
      Record part;
      part.header.mutable_part()->set_tensor(index);
      part.header.mutable_part()->set_offset(offset);
      part.payloads.push_back(tensor.Slice(offset, bytes));
      part.bytes = bytes;
      Add(std::move(part));
    }
  };
  add_tensor(0, state.shard.values());
  for (size_t slot = 0; slot < state.shard.slots().size(); ++slot) {
    add_tensor(static_cast<int>(slot) + 1, state.shard.slots()[slot]);
  }
  snapshot_records_ = records_.size();
  backlog_bytes_ = 0;
}

void HandOverSource::Add(Record record) {
  SL_CHECK(!gone_, "a record for a shard that was handed over");
  backlog_bytes_ += record.bytes;
  records_.push_back(std::move(record));
}

void HandOverSource::OnPush(Rank rank, Incarnation incarnation, Clock clock,
                            bool advance, const Payload& gradient,
                            double rate_factor) {
  Record record;
  wire::TakenPush& push = *record.header.mutable_push();
  push.set_rank(static_cast<int32_t>(rank));
  push.set_incarnation(incarnation);
  push.set_clock(clock);
  push.set_advance(advance);
  push.set_rate_factor(rate_factor);
  if (!advance) {
    record.payloads.push_back(gradient);
    record.bytes = gradient.size();
  }
  Add(std::move(record));
}

void HandOverSource::OnJoin(const StalenessGate::Participant& participant) {
  Record record;
  *record.header.mutable_join() = ToWire(participant);
  Add(std::move(record));
}

void HandOverSource::OnLeft(const std::vector<Incarnation>& incarnations) {
  Record record;
  for (const Incarnation incarnation : incarnations) {
    record.header.mutable_left()->add_incarnation(incarnation);
  }
  Add(std::move(record));
}

bool HandOverSource::MustWait(absl::Time now) const {
  return !gone_ && !records_.empty() &&
         (backlog_bytes_ > options_.backlog_bytes_max ||
          now - copied_ > options_.catch_up_max);
}

void HandOverSource::Go(absl::Time now) {
  Record record;
  record.header.set_go(true);
  Add(std::move(record));
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
    const Record& record = records_.front();
    bytes_in_flight_ -= record.bytes;
    --sent_;
    if (snapshot_records_ > 0) {
      if (--snapshot_records_ == 0) copied_ = now;
    } else {
      backlog_bytes_ -= record.bytes;
    }
    records_.pop_front();
    ++confirmed_;
  }
  if (progress) {
    backoff_ = options_.resend_initial;
    resend_at_ = sent_ == 0 ? absl::InfiniteFuture() : now + backoff_;
  }
  if (gone_ && reply.owned()) {
    owned_ = true;
    pause_ = now - gone_at_;
    records_.clear();
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
  while (sent_ < records_.size() &&
         (sent_ == 0 ||
          bytes_in_flight_ + records_[sent_].bytes <= options_.window_bytes)) {
    Message& message = sends->emplace_back();
    wire::HandOver& hand_over = *message.header.mutable_hand_over();
    hand_over.set_shard(shard_);
    hand_over.set_move(move_);
    hand_over.set_position(confirmed_ + sent_ + 1);
    // Small records share a message; a part has one of its own.
    size_t bytes = 0;
    const auto fits = [&](const Record& record) {
      return bytes + record.bytes <= options_.part_bytes &&
             bytes_in_flight_ + bytes + record.bytes <= options_.window_bytes;
    };
    do {
      const Record& record = records_[sent_++];
      *hand_over.add_record() = record.header;
      message.payloads.insert(message.payloads.end(), record.payloads.begin(),
                              record.payloads.end());
      bytes += record.bytes;
    } while (sent_ < records_.size() && fits(records_[sent_]));
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

absl::Status HandOverTarget::StartCopy(const wire::ShardSnapshot& snapshot,
                                       const std::vector<Payload>& held,
                                       const ShardRange& range,
                                       int slot_count) {
  for (int i = 1; i < snapshot.participant_size(); ++i) {
    if (snapshot.participant(i - 1).rank() >= snapshot.participant(i).rank()) {
      return absl::InvalidArgumentError(
          absl::StrCat("participants are not sorted by rank: ",
                       snapshot.participant(i - 1).rank(), " before ",
                       snapshot.participant(i).rank()));
    }
  }
  for (const Payload& gradient : held) {
    if (gradient.size() != range.bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a held gradient has ", gradient.size(),
                       " bytes, the shard ", range.bytes()));
    }
  }
  snapshot_ = snapshot;
  held_ = held;
  tensors_.clear();
  for (int i = 0; i < slot_count + 1; ++i) {
    tensors_.push_back(Payload::Allocate(range.bytes()));
  }
  bytes_missing_ = tensors_.size() * range.bytes();
  range_ = range;
  state_.reset();
  return absl::OkStatus();
}

absl::Status HandOverTarget::CopyPart(const wire::TensorPart& part,
                                      const Payload& payload) {
  const size_t tensor = static_cast<size_t>(part.tensor());
  if (tensor >= tensors_.size() || payload.size() > bytes_missing_ ||
      part.offset() > range_.bytes() ||
      payload.size() > range_.bytes() - part.offset()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a part of ", payload.size(), " bytes at ", part.offset(),
                     " of tensor ", part.tensor(), ": the shard has ",
                     tensors_.size(), " tensors of ", range_.bytes(),
                     " bytes, of which ", bytes_missing_, " are missing"));
  }
  std::memcpy(tensors_[tensor].MutableData() + part.offset(), payload.data(),
              payload.size());
  bytes_missing_ -= payload.size();
  if (bytes_missing_ > 0) return absl::OkStatus();

  Payload values = std::move(tensors_.front());
  tensors_.erase(tensors_.begin());
  state_.emplace(
      ShardState{.shard = Shard(range_, snapshot_.version(), std::move(values),
                                std::move(tensors_)),
                 .gate = {},
                 .bsp_clock = snapshot_.bsp_clock(),
                 .held = {},
                 .stale = {}});
  std::vector<StalenessGate::Participant> participants;
  for (const wire::ShardParticipant& participant : snapshot_.participant()) {
    participants.push_back(FromWire(participant));
  }
  state_->gate.Restore(snapshot_.min_clock(), std::move(participants));
  for (int i = 0; i < snapshot_.held_size(); ++i) {
    state_->held.push_back(
        {.rank = Rank{snapshot_.held(i).rank()},
         .incarnation = snapshot_.held(i).incarnation(),
         .gradient = std::move(held_[static_cast<size_t>(i)])});
  }
  held_.clear();
  tensors_.clear();
  return absl::OkStatus();
}

absl::Status HandOverTarget::OnRecords(const wire::HandOver& message,
                                       const std::vector<Payload>& payloads,
                                       const ShardRange& range, int slot_count,
                                       Replay* replay) {
  uint64_t position = message.position();
  size_t next_payload = 0;
  for (const wire::HandOverRecord& record : message.record()) {
    using Kind = wire::HandOverRecord;
    size_t count = 0;
    if (record.kind_case() == Kind::kSnapshot) {
      count = static_cast<size_t>(record.snapshot().held_size());
    } else if (record.kind_case() == Kind::kPart ||
               (record.kind_case() == Kind::kPush &&
                !record.push().advance())) {
      count = 1;
    }
    if (payloads.size() - next_payload < count) {
      return absl::InvalidArgumentError(absl::StrCat(
          "record ", position, " lacks ", count, " payload frames"));
    }
    const std::vector<Payload> own(
        payloads.begin() + static_cast<std::ptrdiff_t>(next_payload),
        payloads.begin() + static_cast<std::ptrdiff_t>(next_payload + count));
    next_payload += count;
    const uint64_t at = position++;
    if (go_ || at != have_ + 1) continue;  // Seen, or one before it was lost.

    if (record.kind_case() == Kind::kSnapshot) {
      SL_RETURN_IF_ERROR(StartCopy(record.snapshot(), own, range, slot_count));
    } else if (record.kind_case() == Kind::kPart && !state_.has_value()) {
      SL_RETURN_IF_ERROR(CopyPart(record.part(), own.front()));
    } else if (!state_.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "record ", at, " comes before the snapshot is complete"));
    } else if (record.kind_case() == Kind::kPush) {
      if (!record.push().advance() && own.front().size() != range.bytes()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "record ", at, " has a gradient of ", own.front().size(),
            " bytes, the shard ", range.bytes()));
      }
      replay->Push(*state_, record.push(),
                   own.empty() ? Payload() : own.front());
    } else if (record.kind_case() == Kind::kJoin) {
      const StalenessGate::Participant who = FromWire(record.join());
      for (const auto& other : state_->gate.participants()) {
        if (other.rank != who.rank) continue;
        return absl::InvalidArgumentError(absl::StrCat("record ", at, ": rank ",
                                                       record.join().rank(),
                                                       " takes part already"));
      }
      state_->gate.Join(who.rank, who.incarnation, who.joined_at);
    } else if (record.kind_case() == Kind::kLeft) {
      replay->Left(*state_, record.left());
    } else if (record.kind_case() == Kind::kGo) {
      go_ = true;
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "record ", at,
          " is of a kind that is not known, or has no place here"));
    }
    have_ = at;
  }
  return absl::OkStatus();
}

std::optional<ShardState> HandOverTarget::TakeIfGone() {
  if (!go_) return std::nullopt;
  return std::exchange(state_, std::nullopt);
}

}  // namespace slackline
