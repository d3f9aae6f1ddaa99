// What a checkpoint has of a shard's turns, in a job whose delays are given:
// how many are over, the gradients that wait for theirs, and the earlier
// versions from which gradients are still to be computed (server/shard has it
// as TurnState).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/optim/gradient_bound.h"
#include "common/payload.h"
#include "proto/shard.pb.h"

namespace slackline {

// The message says what the tensors are.
struct StoredTurns {
  wire::Turns turns;
  std::vector<Payload> tensors;
};

// How many tensors belong to turns.
inline size_t TensorCount(const wire::Turns& turns) {
  return static_cast<size_t>(turns.waiting_size()) +
         static_cast<size_t>(turns.kept_size()) + (turns.remembers() ? 1 : 0);
}

// Hexadecimal digits, for the header of a file. nullopt: the text is no turns,
// or they are written in another way than TurnsText() does.
std::string TurnsText(const wire::Turns& turns);
std::optional<wire::Turns> ParseTurnsText(absl::string_view text);

// What the pieces of one shard have, put together: pieces that came apart when
// shards were split in two. Each takes the same turns, but what is discarded of
// a gradient may be one piece of it.
class TurnsOfPieces {
 public:
  // `turns` are those of the next piece, with so many elements; nullptr: it has
  // none. FailedPrecondition says in what it differs from those before it, so
  // that they make no shard.
  absl::Status Add(const wire::Turns* turns, int64_t elements);
  // At least one has been added. nullopt: no piece has turns. Of several
  // versions the largest, of several sizes that of all elements. Of one piece:
  // the same.
  std::optional<wire::Turns> Whole() const;

 private:
  int pieces_ = 0;
  std::optional<wire::Turns> whole_;
  std::vector<RunningRmsOfParts> rms_;  // Of each gradient that waits.
};

}  // namespace slackline
