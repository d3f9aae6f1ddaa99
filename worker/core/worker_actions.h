// What a WorkerCore has its driver do. The driver performs the actions one
// after the other, each with its own event of WorkerCore at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/example_range.h"
#include "common/ids.h"
#include "common/sync/modes/step_kind.h"
#include "common/view/shard_map.h"
#include "worker/client/client_core.h"
#include "worker/core/catch_up.h"

namespace slackline {

using PulledParameters = std::shared_ptr<const PullResult>;

namespace worker_action {

// Begin with the initial values of all parameters, as every shard makes them.
// Ends with OnInitialized().
struct Initialize {};
// Gradients of step `clock` at `parameters`: OnGradient() once for each
// table, then OnComputed(). State of steps by all-reduce is not needed any
// more.
struct Compute {
  Clock clock = 0;
  // Null: they come in Effects::tables, from here on, each table once, and
  // OnGradient() of a table after that.
  PulledParameters parameters;
  // The examples of the step, with elastic sampling.
  std::optional<ExampleRange> examples = {};
  // When all gradients of the steps before were acknowledged; InfinitePast
  // if they are not yet.
  absl::Time acknowledged = absl::InfinitePast();
};
// Step `clock` by all-reduce in the group: OnReducing() when this worker has
// computed its own part, then OnReduced() or OnGroupLost(). A step that fails
// leaves no trace.
struct Reduce {
  Clock clock = 0;
  // This worker has computed its part already, at the state that it still
  // has, and only the sum failed: the same gradients count.
  bool again = false;
  // The examples of the step, with elastic sampling.
  std::optional<ExampleRange> examples = {};
  // There are no examples for this worker: it takes part without a gradient.
  bool empty = false;
  // After the step the workers have the model, all of them the same one. Else
  // it only brings the values of one worker to all, and to the servers.
  bool keeps_model = false;
};
// Evaluate, beside what comes next, the model of `clock`: these parameters,
// or without them those of the steps by all-reduce. Has no event.
struct Evaluate {
  Clock clock = 0;
  PulledParameters parameters;
};
// Keep values, optimizer slots and versions. Ends with OnStateTaken().
struct TakeState {
  PulledParameters state;
};
// Leave the group before, if there is one, and connect as `group` to the
// others. Ends with OnConnected() or OnGroupLost().
struct Connect {
  uint64_t group = 0;
  std::vector<int32_t> ranks;  // All, in order.
  int32_t self = 0;            // Index of this worker in `ranks`.
};
// Tell the group where this worker is, and take the state of one who is
// ahead. Ends with OnCaughtUp() or OnGroupLost().
struct CatchUp {
  Standing standing;
};
// Take leave of the group in order. Has no event.
struct LeaveGroup {};
// Copy these shards out, as `view` splits them. Ends with OnStateRead().
struct ReadState {
  std::shared_ptr<const View> view;
  std::vector<ShardId> shards;
};
// The state of the steps by all-reduce is that of a checkpoint: copy it out,
// and keep the copy beside what comes next. Has no event; once the part is on
// the disk, or cannot be there, OnCutPart() says so.
struct KeepState {
  int32_t cut = 0;  // The cut's number.
  Clock clock = 0;
};
// The worker is where a checkpoint has it, between two steps: write down what
// its program, and whatever makes its gradients, have beside the parameters,
// before the next step begins in them, and beside what comes next in the
// core. Has no event; OnCutPart() says what has become of it. Only with
// join.keeps_state.
struct KeepProgram {
  int32_t cut = 0;    // The cut's number.
  Clock clock = 0;    // This worker's.
  bool last = false;  // No step comes after it.
};
// Evaluate the final model (these parameters, or without them those of the
// steps by all-reduce) and write it. Ends with OnConcluded() or
// OnSaveFailed().
struct Conclude {
  PulledParameters parameters;
};
// Try once more to write the final model. Ends with OnConcluded() or
// OnSaveFailed().
struct Save {};

using Action = std::variant<Initialize, Compute, Reduce, Evaluate, TakeState,
                            Connect, CatchUp, LeaveGroup, ReadState, KeepState,
                            KeepProgram, Conclude, Save>;

// What the driver's program does in an action that is a step, if it has a part
// in it.
inline std::optional<StepKind> ProgramStepOf(const Action& action) {
  if (std::holds_alternative<Compute>(action)) return StepKind::kOverServers;
  const auto* const reduce = std::get_if<Reduce>(&action);
  if (reduce == nullptr || reduce->again || reduce->empty) return std::nullopt;
  return StepKind::kAllReduce;
}

// Whether the driver's program has a part in an action. Others a driver may
// perform while its program waits for something else (action_line.h).
inline bool NeedsProgram(const Action& action) {
  return ProgramStepOf(action).has_value() ||
         std::holds_alternative<Evaluate>(action) ||
         std::holds_alternative<Conclude>(action) ||
         std::holds_alternative<Save>(action);
}

// ---- What comes with the events --------------------------------------------

// What OnReduced() says of a step by all-reduce.
struct Reduced {
  double loss = 0;
  // The sum of the gradients has a NaN or an infinity, so nothing was applied.
  // The same on all ranks.
  bool nonfinite = false;
  // Whose gradients have it, as indices into Connect::ranks.
  std::vector<Rank> culprits;
};

// What has gone from servers to this worker, or from it to them.
struct Moved {
  int64_t bytes = 0;        // The state's.
  uint64_t model_hash = 0;  // ModelHash() of the state.
};

}  // namespace worker_action
}  // namespace slackline
