// What tests of the shard core have in common: messages of the data plane, and
// one core of a small job.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/message.h"
#include "common/optim/optimizer.h"
#include "common/optim/stale/stale_rule.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/support/floats.h"

namespace slackline {

constexpr int kElements = 4;  // Of shards 0 and 1, ours; shard 2 is another's.
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

config::Optimizer Sgd();
config::Optimizer Adam();

// The rules of a sync block, for every table.
StaleRules StaleOf(const config::Sync& sync);

// A worker hands the shard back as it is after all steps before `clock`.
Message InstallOf(uint64_t view_number, Clock clock, uint64_t seq,
                  Version version, const Payload& values,
                  const std::vector<Payload>& slots = {}, int32_t shard = 0);

// Of `worker` in its incarnation; 10 + rank unless said otherwise.
PeerId Worker(int rank, Incarnation incarnation = 0);

// Of a message with one push, or with one pull.
wire::Push& TheOnly(Message& message);
wire::Pull& TheOnlyPull(Message& message);

std::string BytesOf(const Payload& payload);

// Everything about a shard, to the last bit.
std::vector<std::string> Portrait(const ShardMachine& machine);

// Members of a view that is being made.
void AddWorker(wire::View* view, int rank, Incarnation incarnation,
               bool founder);
void RemoveWorker(wire::View* view, int rank);

class ShardCoreTest : public ::testing::Test {
 protected:
  // Whatever happened, the counters say what became of each gradient.
  void TearDown() override;

  // A running job with these founders, rank r in incarnation 10 + r. Returns
  // what its first view does.
  ShardCore::Effects Start(absl::string_view mode, int workers);

  // Of the next view.
  void AddPhase(absl::string_view mode, Clock from);

  void AddWorker(int rank, Incarnation incarnation, bool founder) {
    slackline::AddWorker(&view_, rank, incarnation, founder);
  }
  void RemoveWorker(int rank) { slackline::RemoveWorker(&view_, rank); }

  ShardCore::Effects Publish();

  Message PushOf(Clock clock, uint64_t seq, float gradient, int32_t shard = 0);
  Message PullOf(Clock clock, uint64_t request_id = 1, int32_t shard = 0,
                 bool join = false);
  Message AdvanceOf(Clock clock, uint64_t seq, int32_t shard = 0);

  // One batch with this message.
  ShardCore::Effects Send(const PeerId& from, const Message& message);

  wire::PushReply Push(const PeerId& from, const Message& message);
  Outcome PushCode(const PeerId& from, const Message& message);

  // The present value of the shard, as its own first element says.
  float Value(const PeerId& from, int32_t shard = 0);

  config::Optimizer optimizer_ = Sgd();
  wire::Encoding::Kind pulled_as_ = wire::Encoding::FLOAT32;
  config::Sync stale_;
  config::Train::Nonfinite nonfinite_ = config::Train::SKIP;
  GradientBound bound_;
  // Of a job that has these in place of a mode.
  std::shared_ptr<const DelaySource> delays_;
  // Of a job that goes on from a checkpoint, and where its founders begin, by
  // rank; of those that are not there, 0.
  std::shared_ptr<const StoredShards> stored_;
  std::vector<Clock> begins_at_;
  Clock steps_total_ = 100;
  std::shared_ptr<PayloadMemory> memory_ = std::make_shared<PayloadMemory>();
  wire::View view_;
  std::optional<ShardCore> core_;
};

class ShardPhasesTest : public ShardCoreTest {
 protected:
  Message PullAt(Clock clock, uint64_t request_id = 1, int32_t shard = 0);
  Message StatePullAt(Clock clock, uint64_t request_id = 1, int32_t shard = 0);
  Message InstallAt(Clock clock, uint64_t seq, Version version, float value,
                    int32_t shard = 0);
  // The value that answers one of the pulls of this number, if one is answered.
  static std::optional<float> AnswerIn(const ShardCore::Effects& effects,
                                       uint64_t request_id);
  Outcome PullCode(const PeerId& from, const Message& message);
  const ShardMachine& State(int32_t shard = 0);
  // Without a pull, which might wait.
  float Now(int32_t shard = 0) { return First(State(shard).shard().values()); }

  // Both workers push both shards at clocks below `clock`.
  void PushUpTo(Clock clock, float gradient = 1);
  // Two workers, BSP, by all-reduce from 2 on and from 5 on asynchronous; both
  // have pushed what they do before that.
  void StartAllReduce();
};

}  // namespace slackline
