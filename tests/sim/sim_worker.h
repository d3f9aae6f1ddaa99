// One life of a simulated worker process: its member core, its client core, and
// the trainer's order of calls. A worker that is started again is another one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/membership/member_core.h"
#include "tests/sim/sim_context.h"
#include "worker/client/client_core.h"

namespace slackline::sim {

class SimWorker {
 public:
  struct Counts {
    int64_t steps = 0;
    int64_t pulls_ahead = 0;
    int64_t uneven_starts = 0;  // Some shard lagged behind the start clock.
    int64_t late_starts = 0;    // Started at a clock above 0.
    int64_t final_pulls = 0;
    int64_t retries = 0;

    void Add(const Counts& other);
  };

  SimWorker(SimContext* context, Rank rank, uint64_t token);
  ~SimWorker();

  void Crash(bool drop_sent);
  const ProcessEnd& end() const { return end_; }
  Counts counts() const;
  std::string StatusLine() const;

 private:
  enum class State {
    kJoining,    // Until a view in which the job runs.
    kJoinPull,   // For the first parameters and the start clock.
    kEvenPull,   // The start clock's parameters, where some shard lagged.
    kComputing,  // A step; its pushes leave one after the other.
    kPulling,    // For the next step's parameters.
    kDraining,   // Until the last pushes are acknowledged.
    kDone,       // Has left; perhaps as the chief it waits for the others.
    kFinalPull,  // The chief reads the final model.
    kReported,   // The chief has sent the result.
  };

  void OnTick();
  void Perform(MemberCore::Effects* effects);
  void Perform(ClientCore::Effects* effects);
  void OnView(const std::shared_ptr<const View>& view);
  void StartClient();
  void OnPulled(const ClientCore::PullResult& result);
  void UseParameters(const ClientCore::PullResult& result);
  void StartStep();
  void PushTable(int table);
  void EndStep();
  void Drain();
  void BeChief();
  void Stop(ProcessEnd end, bool drop_sent);
  bool alive() const { return end_.kind == ProcessEnd::Kind::kAlive; }
  absl::Time now() const { return context_->queue.now(); }

  SimContext* const context_;
  const Rank rank_;
  const PeerId control_peer_;
  PeerId data_peer_;
  MemberCore member_;
  std::unique_ptr<ClientCore> client_;
  State state_ = State::kJoining;
  Clock clock_ = 0;
  uint64_t pull_id_ = 0;  // The pull that is waited for, or runs ahead.
  std::optional<ClientCore::PullResult> pulled_ahead_;
  std::vector<Version> versions_;  // Of the parameters, by shard.
  Counts counts_;
  ProcessEnd end_;
  Alarm alarm_;
  Lifetime lifetime_;
};

}  // namespace slackline::sim
