// What a coordinator and shard threads say to a worker, in the middle of a job
// that is as it should be: real cores answer it when the input says so.
#include <array>
#include <memory>
#include <variant>
#include <vector>

#include "common/status.h"
#include "server/shard/shard_core.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/small_job.h"
#include "worker/core/worker_core.h"

namespace slackline::fuzz {
namespace {

class World {
 public:
  World() : coordinator_(JobOptions()), worker_(WorkerOptions()) {
    for (int t = 0; t < kThreads; ++t) {
      ShardCore::Options options;
      options.self = {.server = 0, .thread = t};
      threads_[static_cast<size_t>(t)] =
          std::make_unique<ShardCore>(options, config::LearningRateSchedule());
    }
    coordinator_.Start(now_);
    CoordinatorCore::Effects effects;
    JoinAll(&coordinator_, now_, &effects);
    worker_.Start(now_, &effects_);
    worker_.OnAsked(now_, &effects_);
    Pump();
  }

  void Pass(absl::Duration time) {
    now_ += time;
    if (!Over() && now_ >= worker_.NextWakeup())
      worker_.OnTick(now_, &effects_);
  }

  // A message that says `from`: the coordinator, or a shard thread.
  void Deliver(int from, const Message& message) {
    if (Over()) return;
    if (from == 0) {
      worker_.OnCoordinatorMessage(message, now_, &effects_);
    } else {
      worker_.OnShardMessage({.server = 0, .thread = from - 1}, message, now_,
                             &effects_);
    }
  }

  // Everything that the worker has sent is handled, and everything that it is
  // to do is done.
  void Pump() {
    WorkerCore::Effects effects;
    std::swap(effects, effects_);
    for (const Message& message : effects.to_coordinator) {
      CoordinatorCore::Effects answers;
      coordinator_.OnMessage(WorkerPeer(0), message, now_, &answers);
      for (const Outgoing& answer : answers.sends)
        if (answer.to == WorkerPeer(0)) Deliver(0, answer.message);
    }
    if (effects.view != nullptr) {
      ShardCore::Effects ignored;
      for (const auto& thread : threads_)
        thread->OnView(effects.view, &ignored);
      if (const wire::WorkerMember* const self =
              effects.view->FindWorker(Rank{0})) {
        self_ = {PeerId::Kind::kWorker, 0, self->incarnation()};
      }
    }
    for (const ClientSend& send : effects.to_shards) {
      if (send.to.server != 0 || send.to.thread >= kThreads) continue;
      ShardCore& thread = *threads_[static_cast<size_t>(send.to.thread)];
      ShardCore::Effects answers;
      thread.OnTick(now_, &answers);
      thread.OnMessage(self_, send.message, &answers);
      thread.Flush(&answers);
      for (const Outgoing& answer : answers.sends)
        if (answer.to == self_) Deliver(1 + send.to.thread, answer.message);
    }
    for (const WorkerCore::Action& action : effects.actions) Do(action);
  }

 private:
  static WorkerCore::Options WorkerOptions() {
    WorkerCore::Options options;
    options.member.join = WorkerJoin(0);
    options.member.coordinators = {"head:7700"};
    return options;
  }

  bool Over() const { return worker_.ended(); }

  void Do(const WorkerCore::Action& action) {
    if (Over()) return;
    if (std::holds_alternative<WorkerCore::Initialize>(action)) {
      worker_.OnInitialized(now_, &effects_);
    } else if (std::holds_alternative<WorkerCore::Compute>(action)) {
      static const std::vector<float> gradient(kElements, 1.0f);
      (void)worker_.OnGradient(
          TableId{0},
          Payload::Copy(gradient.data(), gradient.size() * sizeof(float)),
          StepOptions(), now_, &effects_);
      if (!Over()) worker_.OnComputed(0.5, now_, &effects_);
      worker_.OnAsked(now_, &effects_);
    } else if (std::holds_alternative<WorkerCore::Conclude>(action)) {
      worker_.OnConcluded(run::Result(), now_, &effects_);
    }
  }

  absl::Time now_ = absl::UnixEpoch();
  CoordinatorCore coordinator_;
  std::array<std::unique_ptr<ShardCore>, kThreads> threads_;
  PeerId self_;  // As the shard threads know the worker.
  WorkerCore worker_;
  WorkerCore::Effects effects_;  // Not performed yet.
};

}  // namespace
}  // namespace slackline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slackline;
  fuzz::Input input(data, size);
  fuzz::World world;
  while (!input.empty()) {
    const uint8_t what = input.Byte();
    world.Pass(absl::Milliseconds(what >> 4) * (what >> 4));
    const int from = what & 3;
    Message message;
    if (!input.TakeMessage(&message)) continue;
    if (from == 3) {
      world.Pump();
      continue;
    }
    if ((what & 4) == 0) message.header.set_run(fuzz::kRun);
    world.Deliver(from, message);
  }
  world.Pump();
  return 0;
}
