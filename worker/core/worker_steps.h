// WorkerSteps: from one step of a worker to the next, as long as the job runs:
// over servers, by all-reduce, the changes between the two, and what is due
// between two steps. PhaseFollower says what comes next; this class does it.
//
// | what comes next | states |
// | --- | --- |
// | join | kInitializing, or kJoinPull |
// | a step over servers | kPulling, kAwaitingExamples, kComputing |
// | a step by all-reduce | kAwaitingExamples, kReducing |
// | connect | kConnecting, kCatchingUp |
// | from servers to all-reduce | kPushed, kAskingState, kTakingState |
// | from all-reduce to servers | kReadingState, kGiving |
// | wait for a newer view | kWaiting |
// | finish | kDraining, then kTrained and the request StepsDone |
// | the final model, for the chief | kFinalPull, then kConcluding |
//
// An event that comes in another state than the one that it ends is ignored:
// the worker has gone on without it, or leaves.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/compress/gradient_code.h"
#include "common/optim/step_options.h"
#include "worker/client/client_core.h"
#include "worker/core/change_times.h"
#include "worker/core/cut_duties.h"
#include "worker/core/evaluations.h"
#include "worker/core/group_steps.h"
#include "worker/core/phase_follower.h"
#include "worker/core/program_place.h"
#include "worker/core/step_examples.h"
#include "worker/core/step_pulls.h"
#include "worker/core/step_tables.h"
#include "worker/core/worker_parts.h"

namespace slackline {

class WorkerSteps {
 public:
  explicit WorkerSteps(const WorkerCoreOptions& options);

  // The job runs, and the view has this worker: once, before all events below
  // but those of the program's place.
  void Begin(const WorkerParts& parts);
  bool has_begun() const { return client_.has_value(); }

  // What it does next. To be called when the request DecideNext has its turn.
  void Decide(const WorkerParts& parts);

  // ---- Events of the network

  // The client follows a newer view; OnView() follows when what the client has
  // said to it is done.
  void FollowView(const std::shared_ptr<const View>& view, absl::Time now,
                  ClientCore::Effects* effects);
  void OnView(const WorkerParts& parts);
  // The client has brought this, in this order; OnClient() after all of them.
  void OnBrought(const WorkerParts& parts,
                 const std::vector<BroughtTable>& brought);
  void OnPulled(const WorkerParts& parts, PullResult result);
  void OnClient(const WorkerParts& parts);
  // Whether this answers a call of the steps, and then what follows from it.
  bool OnAnswer(const WorkerParts& parts, const MemberCore::CallResult& answer);

  // ---- Ends of actions; as in WorkerCore

  void OnInitialized(const WorkerParts& parts);
  absl::Status OnGradient(const WorkerParts& parts, TableId table,
                          const CodedGradient& gradient,
                          const StepOptions& options);
  absl::Status OnSkippedTable(const WorkerParts& parts, TableId table);
  void OnComputed(const WorkerParts& parts, double loss);
  void OnReducing(const WorkerParts& parts);
  void OnReduced(const WorkerParts& parts, const worker_action::Reduced& step);
  void OnGroupLost(const WorkerParts& parts, const absl::Status& why);
  void OnStateTaken(const WorkerParts& parts,
                    const worker_action::Moved& moved);
  void OnConnected(const WorkerParts& parts);
  void OnCaughtUp(const WorkerParts& parts, Clock clock, bool took_state);
  void OnStateRead(const WorkerParts& parts,
                   std::vector<ClientCore::InstalledShard> shards,
                   const worker_action::Moved& moved);

  // ---- The program

  // The program asks what comes next. Each of its steps, and each step that is
  // lost, takes that back.
  void OnAsked() { asked_ = true; }
  bool is_asked() const { return asked_; }
  void OnGather(uint64_t call) { place_.OnGather(call); }
  void OnGatherForgotten(uint64_t call) { place_.OnCallOver(call); }
  void AskState(const WorkerParts& parts, StateParts what);
  bool KeepsModel(double test_loss, double test_accuracy) {
    return evaluations_.KeepsModel(options_.train, test_loss, test_accuracy);
  }

  // ---- What is due

  // Tells the coordinator what has waited for the end of a gather.
  void SayWhereItGoesOn(const WorkerParts& parts);
  // Says what there is to say of the group that was lost last. To be called
  // when lost_group_due() is over.
  void TellGroupLost(const WorkerParts& parts);
  absl::Time lost_group_due() const { return group_.tell_at(); }
  // This worker, which is the chief, evaluates and writes the final model.
  void Conclude(const WorkerParts& parts);

  // ---- Where it is

  // Steps completed; -1: the group knows.
  Clock clock() const { return clock_; }
  // As PhaseFollower::has_model().
  bool has_model() const {
    return follower_.has_value() && follower_->has_model();
  }
  // nullptr before Begin().
  ClientCore* client() { return client_.has_value() ? &*client_ : nullptr; }
  const ClientCore* client() const {
    return client_.has_value() ? &*client_ : nullptr;
  }
  // The group that it is in, or connects to, or was in last.
  uint64_t group() const { return group_.group(); }
  // The worker waits for the others' parts, in a step by all-reduce.
  bool waits_for_sum() const { return group_.waits_for_sum(); }
  // In kWaiting: completes "waits for ...".
  const std::string& waiting_for() const { return waiting_for_; }

 private:
  // ---- From one thing to do to the next

  void Do(const WorkerParts& parts, const PhaseFollower::Decision& decision);
  void Step(const WorkerParts& parts, StepKind kind);
  // Calls that PhaseFollower makes.
  void Notify(const WorkerParts& parts, std::vector<wire::Call> calls);
  void SayWhereItGoesOnAt(const WorkerParts& parts, Clock step);
  void KeepPartsOfCheckpoint(const WorkerParts& parts);
  void KeepProgramIfDue(const WorkerParts& parts);
  void EvaluateIfDue(const WorkerParts& parts,
                     const PulledParameters& parameters);
  void ActWhenAcknowledged(const WorkerParts& parts);
  void Finish(const WorkerParts& parts);
  void StepDone(const WorkerParts& parts, double loss);
  bool StopsAtNonfinite() const {
    return options_.train.nonfinite() != config::Train::SKIP;
  }

  // ---- Over servers

  void OnJoined(const WorkerParts& parts, PulledParameters pulled);
  void StepOverServers(const WorkerParts& parts);
  // The first table has come, and nothing but the computation needs the rest.
  bool CanBeginByTable(const WorkerParts& parts) const;
  void BeginComputing(const WorkerParts& parts, PulledParameters parameters);
  // A table of the step that has begun without all parameters.
  void TakeTable(const WorkerParts& parts, TableValues values);
  // In a mode that skips ahead, with parameters: if the others are ahead, so
  // that this worker's gradients would come too late, it skips the clocks until
  // theirs, at most once for each step that it does. Whether it has.
  bool SkipToTheOthers(const WorkerParts& parts);
  void SkipTo(const WorkerParts& parts, Clock clock);
  void AskForParameters(const WorkerParts& parts, Clock clock);
  void PullAhead(const WorkerParts& parts);
  // Before the first gradient of a step: has the parameters of the next one
  // asked for behind the gradients, unless something else may come first, or
  // they would miss gradients of others that they need not miss.
  void PullBehindPushes(const WorkerParts& parts);
  // Whether the next step surely begins with what the servers have, without
  // anything before it. Its phase is certain then, whatever changes.
  bool NextIsOverServers(const WorkerParts& parts);
  void AskStateIfFree(const WorkerParts& parts);

  // ---- Examples, with elastic sampling

  void AskForExamples(const WorkerParts& parts);
  void WaitForExamples(const WorkerParts& parts);
  // Over servers, at the parameters of a step that has none: it waits for some,
  // or skips to where there are some.
  void GoOnWithoutExamples(const WorkerParts& parts);
  void OnGranted(const WorkerParts& parts, const wire::CallReply& reply);
  void TellLaterClock(const WorkerParts& parts);

  // ---- By all-reduce, and between it and servers

  void StepByAllReduce(const WorkerParts& parts);
  // As worker_action::Reduce::keeps_model.
  bool KeepsModel(const View& view) const;
  void BeginConnecting(const WorkerParts& parts);
  void ReadShare(const WorkerParts& parts);
  void GoOnAfterGiving(const WorkerParts& parts);

  const WorkerCoreOptions options_;
  std::optional<ClientCore> client_;       // Once the job runs.
  std::optional<PhaseFollower> follower_;  // Once the job runs.
  Clock clock_ = 0;                        // As clock() says.
  StepKind step_{};  // The kind of the step that is open, due, or done last.
  StepPulls pulls_;
  StepTables tables_;
  StepExamples step_examples_;
  GroupSteps group_;
  ProgramPlace place_;
  Evaluations evaluations_;
  CutDuties cut_duties_;
  ChangeTimes change_times_;
  bool loss_was_finite_ = true;  // The loss of the step before.
  bool asked_ = false;           // As OnAsked() says.
  uint64_t waited_view_ = 0;     // In kWaiting: it waits for a newer view.
  std::string waiting_for_;
};

}  // namespace slackline
