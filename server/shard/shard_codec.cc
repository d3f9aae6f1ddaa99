#include "server/shard/shard_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/optim/step_options.h"
#include "common/status.h"
#include "proto/step_options.pb.h"

namespace slackline {
namespace {

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

wire::ShardParticipant::Id ToWire(const WorkerLife& life) {
  wire::ShardParticipant::Id id;
  id.set_rank(static_cast<int32_t>(life.rank));
  id.set_incarnation(life.incarnation);
  return id;
}

WorkerLife FromWire(const wire::ShardParticipant::Id& id) {
  return {.rank = Rank{id.rank()}, .incarnation = id.incarnation()};
}

wire::ShardParticipant ToWire(const Participant& participant) {
  wire::ShardParticipant message;
  *message.mutable_id() =
      ToWire(WorkerLife{participant.rank, participant.incarnation});
  message.set_joined_at(participant.joined_at);
  message.set_clock(participant.clock);
  message.set_next_seq(participant.next_seq);
  return message;
}

Participant FromWire(const wire::ShardParticipant& message) {
  return {.rank = Rank{message.id().rank()},
          .incarnation = message.id().incarnation(),
          .joined_at = message.joined_at(),
          .clock = message.clock(),
          .next_seq = message.next_seq()};
}

absl::Status CheckLife(const wire::ShardParticipant::Id& id) {
  if (id.rank() >= 0 && id.incarnation() > 0) return absl::OkStatus();
  return Bad("a worker of rank ", id.rank(), " and incarnation ",
             id.incarnation(), "; at least 0 and 1 are required");
}

absl::Status CheckClock(Clock clock, Clock least = 0) {
  if (clock >= least && clock <= kClockMax) return absl::OkStatus();
  return Bad("clock ", clock, " is outside [", least, ", 2^60]");
}

absl::Status CheckVersion(Version version) {
  if (version <= kVersionMax) return absl::OkStatus();
  return Bad("version ", version, " is above 2^60");
}

absl::Status CheckSpare(int spare) {
  if (spare >= 0) return absl::OkStatus();
  return Bad("spare is ", spare, "; at least 0 is required");
}

// Views are numbered from 1, and a term is about twice the number of one.
absl::Status CheckPosition(const wire::LogPosition& position) {
  if (position.term() <= kVersionMax && position.index() <= kVersionMax)
    return absl::OkStatus();
  return Bad("log position ", position.index(), " in term ", position.term(),
             "; at most 2^60 each are required");
}

template <typename Message>
void SetOptions(const StepOptions& options, Message* message) {
  if (options != StepOptions()) *message->mutable_options() = ToWire(options);
}

absl::Status CheckOptions(const wire::StepOptions& options) {
  const std::string fault = FaultOfJudged(slackline::FromWire(options));
  return fault.empty() ? absl::OkStatus() : Bad("it has ", fault);
}

// Sizes as RunningRms takes them.
absl::Status CheckRms(double rms) {
  if (std::isfinite(rms) && rms >= 0) return absl::OkStatus();
  return Bad("a root mean square of ", rms,
             "; a number of at least 0 is required");
}

absl::Status CheckRunningRms(const wire::ShardSnapshot& snapshot) {
  SL_RETURN_IF_ERROR(CheckRms(snapshot.running_rms()));
  if (snapshot.running_gradients() <= kVersionMax) return absl::OkStatus();
  return Bad("a root mean square of ", snapshot.running_gradients(),
             " gradients; at most 2^60 are required");
}

absl::Status CheckParticipants(const wire::ShardSnapshot& snapshot) {
  const wire::ShardParticipant* before = nullptr;
  Clock min_clock = kClockMax;
  for (const wire::ShardParticipant& who : snapshot.participant()) {
    SL_RETURN_IF_ERROR(CheckLife(who.id()));
    SL_RETURN_IF_ERROR(CheckClock(who.joined_at()));
    SL_RETURN_IF_ERROR(CheckClock(who.clock(), who.joined_at()));
    if (who.next_seq() < 1 || who.next_seq() > kVersionMax)
      return Bad("sequence number ", who.next_seq(), " is outside [1, 2^60]");
    if (before != nullptr && before->id().rank() >= who.id().rank()) {
      return Bad("participants are not sorted by rank: ", before->id().rank(),
                 " before ", who.id().rank());
    }
    before = &who;
    min_clock = std::min(min_clock, who.clock());
  }
  if (before != nullptr && min_clock != snapshot.min_clock()) {
    return Bad("the smallest clock is said to be ", snapshot.min_clock(),
               "; it is ", min_clock);
  }
  return absl::OkStatus();
}

wire::Turns MessageOf(const TurnState& turns) {
  wire::Turns message;
  message.set_plan(static_cast<int32_t>(turns.plan));
  message.set_over(turns.over);
  for (const auto& [key, waiting] : turns.waiting) {
    wire::Turns::Waiting& gradient = *message.add_waiting();
    gradient.set_clock(key.first);
    gradient.set_rank(static_cast<int32_t>(key.second));
    gradient.set_base(waiting.base);
    SetOptions(waiting.options, &gradient);
    gradient.set_rms(waiting.rms);
  }
  for (const auto& [turns_before, kept] : turns.kept) {
    wire::Turns::Kept& version = *message.add_kept();
    version.set_turns(turns_before);
    version.set_version(kept.version);
  }
  message.set_remembers(!turns.memory.mean.empty());
  return message;
}

std::vector<Payload> TensorsOf(const TurnState& turns) {
  std::vector<Payload> tensors;
  for (const auto& [key, waiting] : turns.waiting)
    tensors.push_back(waiting.gradient);
  for (const auto& [turns_before, kept] : turns.kept)
    tensors.push_back(kept.values);
  if (const std::vector<float>& mean = turns.memory.mean; !mean.empty()) {
    tensors.push_back(
        Payload::Copy(reinterpret_cast<const std::byte*>(mean.data()),
                      mean.size() * sizeof(float)));
  }
  return tensors;
}

// Takes the tensors, which are in the order of TensorsOf(), or are none yet.
TurnState StateOf(const wire::Turns& message, absl::Span<Payload> tensors) {
  size_t next = 0;
  const auto tensor = [&] {
    return tensors.empty() ? Payload() : std::move(tensors[next++]);
  };
  TurnState turns{.plan = ShardId{message.plan()}, .over = message.over()};
  for (const wire::Turns::Waiting& waiting : message.waiting()) {
    turns.waiting.insert_or_assign(
        {waiting.clock(), Rank{waiting.rank()}},
        WaitingGradient{.base = waiting.base(),
                        .gradient = tensor(),
                        .options = slackline::FromWire(waiting.options()),
                        .rms = waiting.rms()});
  }
  for (const wire::Turns::Kept& kept : message.kept()) {
    turns.kept.insert_or_assign(
        kept.turns(),
        ShardVersion{.version = kept.version(), .values = tensor()});
  }
  if (message.remembers() && !tensors.empty()) {
    const Payload mean = tensor();
    turns.memory.mean.resize(mean.size() / sizeof(float));
    std::memcpy(turns.memory.mean.data(), mean.data(), mean.size());
  }
  return turns;
}

absl::Status CheckTurns(const wire::Turns& turns, const UpdateRule& rule,
                        Version version, const Participants& participants) {
  // Before anything is made of them: there are no more turns than gradients,
  // and a version is kept of a turn that is over.
  const int64_t gradients = rule.delays->steps() * rule.delays->workers();
  if (turns.over() < 0 || turns.over() > gradients ||
      turns.kept_size() > turns.over() || turns.waiting_size() > gradients) {
    return Bad(absl::StrCat(turns.over(), " turns, ", turns.kept_size(),
                            " kept versions and ", turns.waiting_size(),
                            " gradients that wait; the delays have ", gradients,
                            " gradients"));
  }
  const auto order = [](const wire::Turns::Waiting& waiting) {
    return std::make_tuple(waiting.clock(), waiting.rank());
  };
  for (int i = 0; i < turns.waiting_size(); ++i) {
    const wire::Turns::Waiting& waiting = turns.waiting(i);
    SL_RETURN_IF_ERROR(CheckOptions(waiting.options()));
    SL_RETURN_IF_ERROR(CheckRms(waiting.rms()));
    if (i > 0 && order(turns.waiting(i - 1)) >= order(waiting)) {
      return Bad(
          "gradients that wait for their turn are not sorted, each once");
    }
  }
  for (int i = 0; i < turns.kept_size(); ++i) {
    if (turns.kept(i).version() > version ||
        (i > 0 && turns.kept(i - 1).turns() >= turns.kept(i).turns())) {
      return Bad("kept versions are not sorted, or larger than the present");
    }
  }
  return GivenTurns::Check(rule, StateOf(turns, {}), version, participants);
}

absl::Status CheckTurns(const wire::ShardSnapshot& snapshot,
                        const UpdateRule& rule) {
  if (snapshot.has_turns() != (rule.delays != nullptr)) {
    return Bad(snapshot.has_turns()
                   ? "turns, and the job's delays are not given"
                   : "no turns, and the job's delays are given");
  }
  if (!snapshot.has_turns()) return absl::OkStatus();
  if (snapshot.held_size() > 0)
    return Bad("held gradients, and the job's delays are given");
  std::vector<Participant> participants;
  for (const wire::ShardParticipant& who : snapshot.participant())
    participants.push_back(FromWire(who));
  return CheckTurns(
      snapshot.turns(), rule, snapshot.version(),
      Participants(snapshot.min_clock(), std::move(participants)));
}

absl::Status CheckHeld(const wire::ShardSnapshot& snapshot) {
  const auto order = [](const wire::ShardParticipant::Id& id) {
    return std::make_tuple(id.rank(), id.incarnation());
  };
  for (int i = 0; i < snapshot.held_size(); ++i) {
    const wire::ShardParticipant::Id& id = snapshot.held(i).who();
    SL_RETURN_IF_ERROR(CheckLife(id));
    SL_RETURN_IF_ERROR(CheckOptions(snapshot.held(i).options()));
    SL_RETURN_IF_ERROR(CheckRms(snapshot.held(i).rms()));
    if (i > 0 && order(snapshot.held(i - 1).who()) >= order(id)) {
      return Bad("held gradients are not sorted, each worker once: rank ",
                 snapshot.held(i - 1).who().rank(), " before ", id.rank());
    }
    // Who has left cannot be looked up, and its gradient still counts.
    const auto who = std::lower_bound(
        snapshot.participant().begin(), snapshot.participant().end(), id.rank(),
        [](const wire::ShardParticipant& other, int32_t rank) {
          return other.id().rank() < rank;
        });
    if (who != snapshot.participant().end() && order(who->id()) == order(id) &&
        who->clock() <= snapshot.complete_clock()) {
      return Bad("a gradient of clock ", snapshot.complete_clock(),
                 " is held of rank ", id.rank(), ", which is at clock ",
                 who->clock());
    }
  }
  return absl::OkStatus();
}

}  // namespace

// ---- Snapshots --------------------------------------------------------------

wire::LogPosition EncodePosition(const LogPosition& position) {
  wire::LogPosition message;
  message.set_term(position.term);
  message.set_index(position.index);
  return message;
}

LogPosition DecodePosition(const wire::LogPosition& position) {
  return {.term = position.term(), .index = position.index()};
}

wire::ShardSnapshot EncodeSnapshot(const ShardSnapshot& snapshot) {
  wire::ShardSnapshot message;
  message.set_version(snapshot.version);
  message.set_min_clock(snapshot.min_clock);
  message.set_complete_clock(snapshot.complete_clock);
  message.set_spare(snapshot.spare);
  *message.mutable_position() = EncodePosition(snapshot.position);
  for (const Participant& participant : snapshot.participants)
    *message.add_participant() = ToWire(participant);
  for (const HeldGradient& held : snapshot.held) {
    wire::HeldGradient& gradient = *message.add_held();
    *gradient.mutable_who() = ToWire(held.who);
    SetOptions(held.options, &gradient);
    gradient.set_rms(held.rms);
  }
  message.set_running_rms(snapshot.running_rms.mean());
  message.set_running_gradients(snapshot.running_rms.count());
  if (snapshot.turns.has_value())
    *message.mutable_turns() = MessageOf(*snapshot.turns);
  return message;
}

std::vector<Payload> TensorsOf(const ShardSnapshot& snapshot) {
  std::vector<Payload> tensors = {snapshot.values};
  tensors.insert(tensors.end(), snapshot.slots.begin(), snapshot.slots.end());
  for (const HeldGradient& held : snapshot.held)
    tensors.push_back(held.gradient);
  if (!snapshot.turns.has_value()) return tensors;
  for (Payload& tensor : TensorsOf(*snapshot.turns))
    tensors.push_back(std::move(tensor));
  return tensors;
}

size_t TensorCount(const wire::ShardSnapshot& snapshot, int slot_count) {
  return 1 + static_cast<size_t>(slot_count) +
         static_cast<size_t>(snapshot.held_size()) +
         TensorCount(snapshot.turns());
}

absl::Status CheckSnapshot(const wire::ShardSnapshot& snapshot,
                           const UpdateRule& rule) {
  SL_RETURN_IF_ERROR(CheckVersion(snapshot.version()));
  SL_RETURN_IF_ERROR(CheckClock(snapshot.min_clock()));
  SL_RETURN_IF_ERROR(
      CheckClock(snapshot.complete_clock(), snapshot.min_clock()));
  SL_RETURN_IF_ERROR(CheckSpare(snapshot.spare()));
  SL_RETURN_IF_ERROR(CheckPosition(snapshot.position()));
  SL_RETURN_IF_ERROR(CheckRunningRms(snapshot));
  SL_RETURN_IF_ERROR(CheckParticipants(snapshot));
  SL_RETURN_IF_ERROR(CheckHeld(snapshot));
  return CheckTurns(snapshot, rule);
}

ShardSnapshot DecodeSnapshot(const wire::ShardSnapshot& snapshot,
                             int slot_count, std::vector<Payload> tensors) {
  SL_CHECK(tensors.size() == TensorCount(snapshot, slot_count),
           "another number of tensors");
  ShardSnapshot decoded{
      .version = snapshot.version(),
      .values = std::move(tensors[0]),
      .min_clock = snapshot.min_clock(),
      .complete_clock = snapshot.complete_clock(),
      .spare = snapshot.spare(),
      .position = DecodePosition(snapshot.position()),
      .running_rms =
          RunningRms(snapshot.running_rms(), snapshot.running_gradients())};
  const auto first_held = tensors.begin() + 1 + slot_count;
  decoded.slots.assign(std::make_move_iterator(tensors.begin() + 1),
                       std::make_move_iterator(first_held));
  for (const wire::ShardParticipant& who : snapshot.participant())
    decoded.participants.push_back(FromWire(who));
  for (int i = 0; i < snapshot.held_size(); ++i) {
    decoded.held.push_back(
        {.who = FromWire(snapshot.held(i).who()),
         .gradient = std::move(*(first_held + i)),
         .options = slackline::FromWire(snapshot.held(i).options()),
         .rms = snapshot.held(i).rms()});
  }
  if (snapshot.has_turns()) {
    decoded.turns = StateOf(
        snapshot.turns(),
        absl::MakeSpan(tensors).subspan(
            1 + static_cast<size_t>(slot_count + snapshot.held_size())));
  }
  return decoded;
}

StoredTurns EncodeTurns(const TurnState& turns) {
  return {.turns = MessageOf(turns), .tensors = TensorsOf(turns)};
}

absl::StatusOr<TurnState> DecodeTurns(StoredTurns turns, const UpdateRule& rule,
                                      Version version,
                                      const Participants& participants) {
  SL_CHECK(turns.tensors.size() == TensorCount(turns.turns),
           "another number of tensors");
  SL_RETURN_IF_ERROR(CheckTurns(turns.turns, rule, version, participants));
  return StateOf(turns.turns, absl::MakeSpan(turns.tensors));
}

// ---- Records ----------------------------------------------------------------

namespace {

void Encode(const JoinRecord& join, wire::ShardRecord* message,
            std::vector<Payload>*) {
  *message->mutable_join()->mutable_who() = ToWire(join.who);
  message->mutable_join()->set_clock(join.clock);
}

void Encode(const GradientRecord& push, wire::ShardRecord* message,
            std::vector<Payload>* frames) {
  wire::ShardRecord::Gradient& gradient = *message->mutable_gradient();
  *gradient.mutable_who() = ToWire(push.who);
  gradient.set_clock(push.clock);
  gradient.set_held(push.held);
  gradient.set_spare(push.spare);
  SetOptions(push.options, &gradient);
  gradient.set_rms(push.rms);
  frames->push_back(push.gradient);
}

void Encode(const SumRecord& record, wire::ShardRecord* message,
            std::vector<Payload>* frames) {
  wire::ShardRecord::Sum& sum = *message->mutable_sum();
  for (const WorkerLife& who : record.who) *sum.add_who() = ToWire(who);
  sum.set_clock(record.clock);
  sum.set_spare(record.spare);
  SetOptions(record.options, &sum);
  sum.mutable_rms()->Add(record.rms.begin(), record.rms.end());
  frames->push_back(record.sum);
}

void Encode(const AdvanceRecord& advance, wire::ShardRecord* message,
            std::vector<Payload>*) {
  *message->mutable_advance()->mutable_who() = ToWire(advance.who);
  message->mutable_advance()->set_clock(advance.clock);
}

void Encode(const InstallRecord& record, wire::ShardRecord* message,
            std::vector<Payload>* frames) {
  wire::ShardRecord::Install& install = *message->mutable_install();
  *install.mutable_who() = ToWire(record.who);
  install.set_clock(record.clock);
  install.set_version(record.version);
  for (const WorkerLife& joining : record.joining)
    *install.add_joining() = ToWire(joining);
  frames->push_back(record.values);
  frames->insert(frames->end(), record.slots.begin(), record.slots.end());
}

void Encode(const LeaveRecord& leave, wire::ShardRecord* message,
            std::vector<Payload>*) {
  message->mutable_leave()->mutable_incarnation()->Add(
      leave.incarnations.begin(), leave.incarnations.end());
}

void Encode(const SplitRecord& split, wire::ShardRecord* message,
            std::vector<Payload>*) {
  message->mutable_split()->set_at(split.at);
  message->mutable_split()->set_part(static_cast<int32_t>(split.part));
}

absl::StatusOr<ShardRecord> Decode(const wire::ShardRecord::Gradient& gradient,
                                   const Payload& frame) {
  SL_RETURN_IF_ERROR(CheckLife(gradient.who()));
  SL_RETURN_IF_ERROR(CheckClock(gradient.clock()));
  SL_RETURN_IF_ERROR(CheckClock(gradient.clock() + 1));
  SL_RETURN_IF_ERROR(CheckOptions(gradient.options()));
  SL_RETURN_IF_ERROR(CheckSpare(gradient.spare()));
  SL_RETURN_IF_ERROR(CheckRms(gradient.rms()));
  return GradientRecord{.who = FromWire(gradient.who()),
                        .clock = gradient.clock(),
                        .gradient = frame,
                        .held = gradient.held(),
                        .spare = gradient.spare(),
                        .options = slackline::FromWire(gradient.options()),
                        .rms = gradient.rms()};
}

absl::StatusOr<ShardRecord> Decode(const wire::ShardRecord::Sum& sum,
                                   const Payload& frame) {
  SL_RETURN_IF_ERROR(CheckClock(sum.clock()));
  SL_RETURN_IF_ERROR(CheckClock(sum.clock() + 1));
  SL_RETURN_IF_ERROR(CheckOptions(sum.options()));
  SL_RETURN_IF_ERROR(CheckSpare(sum.spare()));
  for (const double rms : sum.rms()) SL_RETURN_IF_ERROR(CheckRms(rms));
  SumRecord record{.clock = sum.clock(),
                   .who = {},
                   .sum = frame,
                   .spare = sum.spare(),
                   .options = slackline::FromWire(sum.options()),
                   .rms = {sum.rms().begin(), sum.rms().end()}};
  for (const wire::ShardParticipant::Id& who : sum.who()) {
    SL_RETURN_IF_ERROR(CheckLife(who));
    record.who.push_back(FromWire(who));
  }
  return record;
}

absl::StatusOr<ShardRecord> Decode(const wire::ShardRecord::Install& install,
                                   absl::Span<const Payload> frames) {
  SL_RETURN_IF_ERROR(CheckLife(install.who()));
  SL_RETURN_IF_ERROR(CheckClock(install.clock()));
  SL_RETURN_IF_ERROR(CheckVersion(install.version()));
  InstallRecord record{.who = FromWire(install.who()),
                       .clock = install.clock(),
                       .version = install.version(),
                       .values = frames.front(),
                       .slots = {frames.begin() + 1, frames.end()}};
  for (const wire::ShardParticipant::Id& joining : install.joining()) {
    SL_RETURN_IF_ERROR(CheckLife(joining));
    record.joining.push_back(FromWire(joining));
  }
  return record;
}

}  // namespace

wire::ShardRecord EncodeRecord(const ShardRecord& record,
                               std::vector<Payload>* frames) {
  wire::ShardRecord message;
  std::visit([&](const auto& kind) { Encode(kind, &message, frames); }, record);
  return message;
}

size_t FrameCount(const wire::ShardRecord& record, int slot_count) {
  if (record.has_gradient() || record.has_sum()) return 1;
  return record.has_install() ? 1 + static_cast<size_t>(slot_count) : 0;
}

absl::StatusOr<ShardRecord> DecodeRecord(const wire::ShardRecord& record,
                                         absl::Span<const Payload> frames) {
  switch (record.kind_case()) {
    case wire::ShardRecord::kJoin:
      SL_RETURN_IF_ERROR(CheckLife(record.join().who()));
      SL_RETURN_IF_ERROR(CheckClock(record.join().clock()));
      return JoinRecord{.who = FromWire(record.join().who()),
                        .clock = record.join().clock()};
    case wire::ShardRecord::kGradient:
      return Decode(record.gradient(), frames.front());
    case wire::ShardRecord::kSum:
      return Decode(record.sum(), frames.front());
    case wire::ShardRecord::kAdvance:
      SL_RETURN_IF_ERROR(CheckLife(record.advance().who()));
      SL_RETURN_IF_ERROR(CheckClock(record.advance().clock()));
      return AdvanceRecord{.who = FromWire(record.advance().who()),
                           .clock = record.advance().clock()};
    case wire::ShardRecord::kInstall:
      return Decode(record.install(), frames);
    case wire::ShardRecord::kLeave:
      return LeaveRecord{.incarnations = {record.leave().incarnation().begin(),
                                          record.leave().incarnation().end()}};
    case wire::ShardRecord::kSplit:
      if (record.split().part() < 0)
        return Bad("a part with the id ", record.split().part());
      return SplitRecord{.at = record.split().at(),
                         .part = ShardId{record.split().part()}};
    case wire::ShardRecord::KIND_NOT_SET:
      break;
  }
  return Bad("a record of a kind that is not known");
}

}  // namespace slackline
