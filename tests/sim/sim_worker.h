// One life of a simulated worker process: drives the product's WorkerCore, and
// performs its actions without models, sockets or threads. A worker that is
// started again is another one. Decides nothing about the job.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/job/sim_replica.h"
#include "tests/sim/sim_context.h"
#include "tests/sim/sim_link_trial.h"
#include "worker/core/action_line.h"
#include "worker/core/worker_core.h"

namespace slackline::sim {

class SimWorker {
 public:
  struct Counts : WorkerCore::Counts {
    int64_t final_pulls = 0;
    int64_t retries = 0;
    int64_t helped = 0;  // Took the state of another worker.
    int64_t gathered = 0;
    int64_t steps_lost = 0;  // To a new group, while a collective waited.
    int64_t states_asked = 0;
    int64_t states_asked_in_step = 0;  // Of these: between two gradients.
    int64_t states_compared = 0;       // With the parameters of a step.
    int64_t programs_restored = 0;
    int64_t at_work_after = 0;  // Their last step: scripts.
    int64_t states_asked_after = 0;

    void Add(const Counts& other);
  };
  // What may be broken on purpose.
  enum class Plant {
    kNone,
    kIgnoreFence,       // Pulls on where it has promised to wait.
    kKeepFailedStep,    // Applies its own gradients of a step that has failed.
    kBeginAlone,        // Keeps its own values where all begin with another's.
    kTakeNoHelp,        // Keeps its own state where another's is newer.
    kStepAlone,         // Goes on without the sum if the group fails.
    kNeverSkip,         // Is late for ever.
    kComputeAtOnce,     // Takes old parameters for those that have not come.
    kKeepLater,         // Of a cut it writes what it has by then.
    kKeepProgramLater,  // Likewise, of its program.
  };

  SimWorker(SimContext* context, Rank rank, uint64_t token);
  ~SimWorker();

  // Its process is told that its time is over; without effect if nobody can be
  // told of that.
  void Suspend();
  void SetPlant(Plant plant) { plant_ = plant; }
  void Crash(bool drop_sent);
  const PeerId& control_peer() const { return control_peer_; }
  const SimLinkTrial& links() const { return links_; }
  Incarnation incarnation() const { return core_.incarnation(); }
  const ProcessEnd& end() const { return end_; }
  Counts counts() const;
  std::string StatusLine() const;
  // For how long its trainer still does nothing: its process can neither end
  // nor be another one before. Infinite: for ever.
  absl::Duration stalls_for() const;
  // Its trainer does nothing for ever, and nobody else is in the job: nobody
  // waits for it, so nobody but a user can know.
  bool IsStuckAlone() const;

 private:
  // An event of the core, and what follows from it.
  template <typename Event>
  void Tell(const Event& event) {
    if (!alive()) return;
    WorkerCore::Effects effects;
    event(core_, now(), &effects);
    Carry(&effects);
  }
  void LookAt(int host);
  void Carry(WorkerCore::Effects* effects);
  // No job ends by itself before all scripts have come to their end.
  void CheckEnd();
  void OnShardMessage(const PeerId& from, const Message& message);
  void Attach();
  // Performs actions until one takes time.
  void Work();
  // These return true if the action is under way, so that the next one has to
  // wait for its event.
  bool Perform(const WorkerCore::Initialize& action);
  bool Perform(const WorkerCore::Compute& action);
  bool Perform(const WorkerCore::Reduce& action);
  bool Perform(const WorkerCore::Evaluate& action);
  bool Perform(const WorkerCore::TakeState& action);
  bool Perform(const WorkerCore::Connect& action);
  bool Perform(const WorkerCore::CatchUp& action);
  bool Perform(const WorkerCore::LeaveGroup& action);
  bool Perform(const WorkerCore::ReadState& action);
  bool Perform(const WorkerCore::KeepState& action);
  bool Perform(const WorkerCore::KeepProgram& action);
  // No KeepProgram was the last.
  void CheckStepComes(Clock clock);
  bool Perform(const WorkerCore::Conclude& action);
  bool Perform(const WorkerCore::Save& action);
  // True if the script calls a collective first, in the step of `clock`; then
  // it goes on with `next`.
  bool GathersFirst(Clock clock, std::function<void()> next);
  // The script is past its step, and may call a collective before the next.
  void LeaveStep();
  // After the last step it does something else for a while, and the job may not
  // end without it.
  void WorkAfterLast();
  void Gather(uint64_t place, std::function<void()> next);
  void WaitForGather();
  // The script stands at a collective: what is to be performed meanwhile, if
  // there is something.
  std::unique_ptr<const WorkerCore::Action> NextAtGather();
  // If its step cannot end: drops it with the group.
  void LoseStep(const absl::Status& why);
  void OnGathered(const MemberCore::CallResult& answer);
  // A script that wants the state of the optimizer stands still meanwhile.
  bool AsksState();
  void AskState(StateParts what = StateParts::kAll);
  void OnState(const WorkerCore::Parameters& state);
  // In BSP it is that of the parameters of the step.
  void CompareWithState(const WorkerCore::Compute& step);
  // The action that was under way is over; `event` tells the core how.
  template <typename Event>
  void Done(const Event& event) {
    if (!alive()) return;
    busy_ = false;
    Tell(event);
    Work();
  }

  void OnKept(int32_t cut, const SimReplica& kept, const View& view);
  // The program begins, with what it has in the checkpoint.
  void BeginProgram();
  // It is done with the step of this clock.
  void FinishInProgram(Clock clock);
  void OnProgramKept(int32_t cut, const std::string& kept);

  // Over servers.
  void StartStep(const WorkerCore::Compute& step);
  // A gradient is computed, as soon as it has the parameters for it.
  void PushTable(int table);
  bool CanCompute(int table) const;
  void ComputeHeld();
  // By all-reduce.
  void OnConnected(bool connected);
  void OnCaughtUp(const std::vector<SimShare>* shares);
  void StartReduce(Clock clock);
  void Reduce();
  void SumGradients();
  void OnReduced(const std::vector<SimShare>* shares);
  void LoseGroup();
  // What is under way in the group fails soon.
  void AbortGroup();
  void DropGroup(bool silent = false);

  void Stop(ProcessEnd end, bool drop_sent);
  bool alive() const { return end_.kind == ProcessEnd::Kind::kAlive; }
  absl::Time now() const { return machine_->now(); }
  absl::Duration ComputeTime(Clock clock);
  // Waits with the last step of all.
  bool Lingers(Clock clock) const;
  void At(PhaseStep step);
  SimShare ShareOf() const;
  std::vector<SimReplica::Tensor> Gradients() const;
  void PullBeyondTheFence();
  // Parameters of the step that begins, or has begun.
  void Take(const TableValues& values);

  SimContext* const context_;
  SimMachine* const machine_;
  const Rank rank_;
  const PeerId control_peer_;
  PeerId coordinator_;  // That it is connected with.
  PeerId data_peer_;
  WorkerCore core_;
  SimLinkTrial links_;
  Rng rng_;
  Rng keeping_;
  Rng after_last_;
  bool program_begun_ = false;
  std::string program_;  // What it keeps.
  Plant plant_ = Plant::kNone;
  bool attached_ = false;  // The data peer.
  bool started_ = false;   // Its start clock is known.
  ActionLine actions_;
  bool busy_ = false;
  bool after_last_at_work_ = false;
  bool working_ = false;
  Clock clock_ = 0;                       // Of the step, or of the replica.
  std::optional<ExampleRange> examples_;  // Of the step.
  // Of the step over servers, by table.
  std::vector<bool> has_come_;  // Parameters.
  std::vector<int> held_;       // Their gradients wait for parameters.
  int pushed_ = 0;              // Gradients.
  bool uses_all_ = true;        // Each gradient depends on all parameters.
  Clock gathered_ = -1;         // The last step with a collective that is done.
  bool gathering_ = false;
  uint64_t gather_ = 0;  // The call that waits; its place, and what then.
  uint64_t gather_place_ = 0;
  std::function<void()> after_gather_;
  std::optional<Clock> script_step_;  // That the script is in.
  Rng asking_;
  bool has_stepped_ = false;                   // Over servers.
  bool kept_last_ = false;                     // A KeepProgram was the last.
  std::optional<WorkerCore::Reduce> reduced_;  // The last step, if by that.
  bool asks_ = false;
  bool asks_in_step_ = false;  // Between two gradients.
  // The clock and the versions of the state that it was told last.
  std::optional<std::pair<Clock, std::vector<Version>>> told_;
  std::optional<SimReplica> replica_;
  std::optional<SimReplica> computed_at_;  // Gradients for all-reduce.
  absl::Time stalled_until_ = absl::InfinitePast();  // Its trainer.
  SimGroup* group_ = nullptr;
  uint64_t group_number_ = 0;
  bool connecting_ = false;
  bool catching_up_ = false;
  bool reducing_ = false;
  bool group_aborted_ = false;
  Counts counts_;  // Those that the core does not have.
  std::optional<ClientSend> last_pull_;
  ProcessEnd end_;
  Alarm alarm_;
  Lifetime lifetime_;
};

}  // namespace slackline::sim
