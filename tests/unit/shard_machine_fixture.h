// What tests of a shard's state machine have in common: one small shard, which
// begins with zeros, and the records of gradients.
#pragma once

#include <memory>
#include <string>

#include "common/optim/optimizer.h"
#include "common/status.h"
#include "server/shard/shard_machine.h"
#include "server/shard/store/store_kinds.h"
#include "tests/support/dense_shard.h"
#include "tests/support/floats.h"
#include "tests/support/optimizers.h"

namespace slackline {

// With SGD of this rate, values show what was applied.
inline constexpr char kPlainSgd[] = "sgd { learning_rate: 1 }";
inline constexpr int kMachineElements = 4;

// In incarnation 10 + rank unless said otherwise.
inline WorkerLife Life(int rank, Incarnation incarnation = 0) {
  return {.rank = Rank{rank},
          .incarnation = incarnation == 0 ? static_cast<Incarnation>(10 + rank)
                                          : incarnation};
}

// With ranks [0, workers) as participants.
inline ShardMachine NewMachine(const std::string& optimizer, int workers) {
  const auto rule = std::make_shared<const TableRule>(
      TableRule{{.optimizer = MakeOptimizer(optimizer),
                 .schedule = *LearningRateSchedule::Create(
                     {}, {.steps_total = 100, .steps_per_epoch = 100})},
                DenseKind()});
  wire::Table table;
  table.add_shape(10);
  table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
  const ShardRange range{.shard = ShardId{3},
                         .region = {2, 2 + kMachineElements}};
  ShardMachine machine(rule, DenseShard(table, range, 1, rule->optimizer));
  for (int rank = 0; rank < workers; ++rank)
    SL_CHECK(machine.Apply(JoinRecord{.who = Life(rank)}).ok(), "no join");
  return machine;
}

inline GradientRecord Applied(int rank, Clock clock, float gradient,
                              double rate_factor = 1) {
  return {.who = Life(rank),
          .clock = clock,
          .gradient = Floats(gradient, kMachineElements),
          .options = {.rate_factor = rate_factor}};
}
inline GradientRecord Held(int rank, Clock clock, float gradient,
                           int spare = 0) {
  GradientRecord record = Applied(rank, clock, gradient);
  record.held = true;
  record.spare = spare;
  return record;
}

inline float ValueOf(const ShardMachine& machine) {
  return First(machine.shard().values());
}

}  // namespace slackline
