// One life of a simulated worker process: its member core, its client core, its
// phase follower, and the trainer's order of calls. A worker that is started
// again is another one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/membership/member_core.h"
#include "tests/sim/sim_context.h"
#include "tests/sim/sim_replica.h"
#include "worker/client/client_core.h"
#include "worker/train/phase_follower.h"

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
    int64_t reduced = 0;      // Of the steps: by all-reduce.
    int64_t connects = 0;     // That succeeded.
    int64_t regroups = 0;     // Calls.
    int64_t helped = 0;       // Took the state of another worker.
    int64_t group_joins = 0;  // Started in a group, while the job ran.
    int64_t states_taken = 0;
    int64_t states_given = 0;
    int64_t shares_again = 0;  // Installed somebody else's part, too.
    int64_t skips = 0;         // To the others' clock.
    int64_t uneven_skips = 0;  // Of those: some shard lagged behind.
    int64_t skipped = 0;       // Clocks.

    void Add(const Counts& other);
  };
  // What may be broken on purpose.
  enum class Plant {
    kNone,
    kIgnoreFence,     // Steps on where it has promised to wait.
    kKeepFailedStep,  // Applies its own gradients of a step that has failed.
    kTakeNoHelp,      // Keeps its own state where another's is newer.
    kStepAlone,       // Goes on without the sum if the group fails.
    kNeverSkip,       // Is late for ever.
  };

  SimWorker(SimContext* context, Rank rank, uint64_t token);
  ~SimWorker();

  void SetPlant(Plant plant) { plant_ = plant; }
  void Crash(bool drop_sent);
  const ProcessEnd& end() const { return end_; }
  Counts counts() const;
  std::string StatusLine() const;

 private:
  enum class State {
    kJoining,     // Until a view in which the job runs.
    kJoinPull,    // For the first parameters and the start clock.
    kDeciding,    // About to do the next thing.
    kPulling,     // For the next step's parameters.
    kComputing,   // A step; its pushes leave one after the other.
    kWaiting,     // For a newer view.
    kPushed,      // For acknowledgements, before it takes the state.
    kTaking,      // For the state.
    kConnecting,  // To the group.
    kCatchingUp,  // For the group's clock.
    kReducing,    // A step by all-reduce: computes, then waits for the sum.
    kGiving,      // Until the servers have the state of all.
    kDraining,    // Until the last pushes are acknowledged.
    kDone,        // Has left; perhaps as the chief it waits for the others.
    kFinalPull,   // The chief reads the final model.
    kReported,    // The chief has sent the result.
  };
  using Do = PhaseFollower::Do;

  void OnTick();
  void Perform(MemberCore::Effects* effects);
  void Perform(ClientCore::Effects* effects);
  void OnView(const std::shared_ptr<const View>& view);
  void StartClient();
  void OnPulled(const ClientCore::PullResult& result);
  // The trainer's loop, from one thing to do to the next.
  void Decide();
  void Act(const std::shared_ptr<const View>& view, Do what);
  void Notify(std::vector<wire::Call> calls);
  // Over servers.
  // As the Trainer's functions of these names.
  bool SkipToTheOthers();
  void StepOverServers();
  void StartStep();
  void PushTable(int table);
  // By all-reduce.
  void TakeState();
  void Connect(const View& view);
  void OnConnected(uint64_t number, bool connected);
  void OnCaughtUp(const std::vector<SimGroup::Share>* shares);
  void StartReduce();
  void Reduce();
  void OnReduced(const std::vector<SimGroup::Share>* shares);
  void LoseConnection();
  // What is under way in the group fails soon: the view has another one.
  void AbortGroup();
  void DropGroup(bool silent = false);
  void GiveState(const View& view);
  // The end.
  void Leave();
  void BeChief();
  void Report();
  void Fail(const std::string& why);
  void Stop(ProcessEnd end, bool drop_sent);

  bool alive() const { return end_.kind == ProcessEnd::Kind::kAlive; }
  absl::Time now() const { return context_->queue.now(); }
  const wire::View& view() const { return member_.view()->proto(); }
  absl::Duration ComputeTime();
  // Waits with the last step of all.
  bool Lingers() const;
  void At(PhaseStep step);
  SimGroup::Share ShareOf() const;

  SimContext* const context_;
  const Rank rank_;
  const PeerId control_peer_;
  PeerId data_peer_;
  MemberCore member_;
  Rng rng_;
  Plant plant_ = Plant::kNone;
  std::unique_ptr<ClientCore> client_;
  std::optional<PhaseFollower> follower_;
  State state_ = State::kJoining;
  Clock clock_ = 0;       // -1: the group knows.
  uint64_t pull_id_ = 0;  // The pull that is waited for, or runs ahead.
  std::optional<ClientCore::PullResult> parameters_;  // Of clock_.
  std::vector<Version> versions_;  // Of the parameters, by shard.
  bool skipped_ = false;           // Since the last step.
  std::optional<SimReplica> replica_;
  SimGroup* group_ = nullptr;
  uint64_t group_number_ = 0;
  bool group_aborted_ = false;
  int failed_connects_ = 0;
  uint64_t model_hash_ = 0;   // Of the change that is under way.
  uint64_t waited_view_ = 0;  // A newer one is waited for.
  Counts counts_;
  ProcessEnd end_;
  Alarm alarm_;
  Lifetime lifetime_;
};

}  // namespace slackline::sim
