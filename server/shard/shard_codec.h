// Snapshots and records of a shard as bytes, and back.
//
// What comes from outside is checked here by itself, before memory is allocated
// for what it announces; whether a record fits the shard as it is, says
// ShardMachine::Apply(). Errors are InvalidArgument. Pure functions.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/stored_turns.h"
#include "proto/shard.pb.h"
#include "server/shard/shard_machine.h"

namespace slackline {

wire::LogPosition EncodePosition(const LogPosition& position);
LogPosition DecodePosition(const wire::LogPosition& position);

// The snapshot without its tensors.
wire::ShardSnapshot EncodeSnapshot(const ShardSnapshot& snapshot);
// The values, the slots, the held gradients, and those of the turns: of a dense
// table each has a float for each element. None is empty.
std::vector<Payload> TensorsOf(const ShardSnapshot& snapshot);

// How many tensors belong to a snapshot.
size_t TensorCount(const wire::ShardSnapshot& snapshot, int slot_count);
// Everything but the tensors is there and makes sense, of a table with this
// rule.
absl::Status CheckSnapshot(const wire::ShardSnapshot& snapshot,
                           const UpdateRule& rule);
// The snapshot of a checked message with its TensorCount() tensors.
ShardSnapshot DecodeSnapshot(const wire::ShardSnapshot& snapshot,
                             int slot_count, std::vector<Payload> tensors);

// The turns of a snapshot by themselves, as a checkpoint has them.
StoredTurns EncodeTurns(const TurnState& turns);
// The turns with their TensorCount() tensors, each of the shard's elements.
// InvalidArgument: they make no sense for a shard of this version with these
// participants.
absl::StatusOr<TurnState> DecodeTurns(StoredTurns turns, const UpdateRule& rule,
                                      Version version,
                                      const Participants& participants);

// Appends the record's payload frames.
wire::ShardRecord EncodeRecord(const ShardRecord& record,
                               std::vector<Payload>* frames);
// The payload frames that a record of this kind has.
size_t FrameCount(const wire::ShardRecord& record, int slot_count);
// `frames` are as many as FrameCount() says.
absl::StatusOr<ShardRecord> DecodeRecord(const wire::ShardRecord& record,
                                         absl::Span<const Payload> frames);

}  // namespace slackline
