// PushUnit: one message of pushes to one shard thread, from the moment in which
// it is filled until all of it is accepted. PushEntry: what it says of one
// shard.
//
// A unit owns its entries, whose tensors are references, and what has become of
// its last transmission. It knows no other unit; PushLane keeps them in order.
// No I/O, threads or clocks. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/compress/gradient_code.h"
#include "common/ids.h"
#include "common/optim/step_options.h"
#include "common/payload.h"
#include "worker/client/push_sequences.h"
#include "worker/client/shard_split.h"

namespace slackline {

struct PushEntry {
  enum class Kind { kGradient, kAdvance, kInstallation };
  Kind kind = Kind::kGradient;
  int32_t shard = 0;
  uint64_t seq = 0;
  Clock clock = 0;
  Version version = 0;         // A gradient's base, or what is installed.
  StepOptions options = {};    // A gradient's.
  GradientCode code = {};      // How a gradient is in `values`,
  size_t elements = 0;         // and how many elements it has.
  Payload values;              // The gradient, or what is installed.
  std::vector<Payload> slots;  // What is installed.
  uint64_t hash = 0;           // What is installed has this StateHash().
  // The pull that asks for the shard behind the first transmission of this; 0
  // if none does.
  uint64_t then_pull = 0;
  bool sent = false;  // A shard thread was sent this, perhaps an owner before.

  size_t bytes() const { return values.size() * (1 + slots.size()); }
  bool AcceptedIn(const PushSequences& sequences) const {
    return seq <= sequences.accepted(shard);
  }
  // The shard is the one that is split in two. This becomes what it says of the
  // kept part; what it says of the other part is returned. A gradient's parts
  // are in its code, or floats where they do not end where blocks do.
  PushEntry SplitAt(const ShardSplit& split);
};

struct PushUnit {
  enum class State {
    kSent,     // The answer, if any, has not decided about all entries.
    kMissing,  // The shard thread does not have it: to be sent again now.
    kRefused,  // A shard has said RETRY or MOVED.
    kBehind,   // Refused, because an earlier push was missing.
  };
  // The tables of a message that has gradients of one clock only.
  struct Gradients {
    Clock clock = 0;
    TableId first{};
    TableId last{};
  };

  std::vector<PushEntry> entries;
  size_t bytes = 0;
  std::optional<Gradients> gradients;
  bool small = false;  // It was sent before it was full.
  // What follows is of the last transmission.
  State state = State::kSent;
  uint64_t request_id = 0;
  absl::Time sent;
  size_t under_way = 0;   // Bytes with it, if it was the first one.
  bool answered = false;  // It has an answer, perhaps in part.
  bool trial = false;     // It tries what was refused.

  void Add(PushEntry entry, TableId table);
  // Whether a message with these gradients, which is made later, goes first.
  bool IsOvertakenBy(const std::optional<Gradients>& later) const {
    return gradients.has_value() && later.has_value() &&
           gradients->clock == later->clock && later->last < gradients->first;
  }
  bool AcceptedIn(const PushSequences& sequences) const;
  // False if an earlier push to one of its shards is missing there.
  bool IsNextIn(const PushSequences& sequences) const;
  // The last transmission was refused for the shard, unless what it says of
  // that shard is accepted by now.
  void Refuse(int32_t shard, const PushSequences& sequences);
  // Splits what it says of the shard; the parts stand where the whole stood.
  // Returns by how many bytes the unit has grown.
  size_t SplitAt(const ShardSplit& split);
};

}  // namespace slackline
