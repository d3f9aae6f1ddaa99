// WorkerCore: everything that a worker decides between joining a job and
// leaving it. It hands each event to one of its parts, and does what they ask
// for; worker_parts.h lists them. WorkerSteps goes from one step to the next;
// the core itself has the membership (MemberCore), and ends the job for this
// worker.
//
// Deterministic state machine: messages, the time, and the ends of actions go
// in; messages and actions come out. No sockets, threads, clocks, randomness,
// tensors or models. Thread-compatible. The built-in trainer and the simulation
// are drivers of this same class.
//
// A driver performs the actions in the order in which they come, one after the
// other, each with its own event at the end. It goes on handing in messages and
// the time meanwhile, and carries out everything else in Effects at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/membership/member_core.h"
#include "common/optim/step_options.h"
#include "proto/cluster.pb.h"
#include "worker/client/client_core.h"
#include "worker/core/conclusion.h"
#include "worker/core/departure.h"
#include "worker/core/notices.h"
#include "worker/core/patience.h"
#include "worker/core/worker_actions.h"
#include "worker/core/worker_core_options.h"
#include "worker/core/worker_counts.h"
#include "worker/core/worker_effects.h"
#include "worker/core/worker_parts.h"
#include "worker/core/worker_progress.h"
#include "worker/core/worker_stage.h"
#include "worker/core/worker_steps.h"

namespace slackline {

class WorkerCore {
 public:
  using Options = WorkerCoreOptions;

  static constexpr absl::Duration kSuspendJoinMax = Departure::kSuspendJoinMax;

  // ---- What goes in and comes out (worker_actions.h, worker_effects.h) ------

  using Parameters = PulledParameters;
  using Initialize = worker_action::Initialize;
  using Compute = worker_action::Compute;
  using Reduce = worker_action::Reduce;
  using Evaluate = worker_action::Evaluate;
  using TakeState = worker_action::TakeState;
  using Connect = worker_action::Connect;
  using CatchUp = worker_action::CatchUp;
  using LeaveGroup = worker_action::LeaveGroup;
  using ReadState = worker_action::ReadState;
  using KeepState = worker_action::KeepState;
  using KeepProgram = worker_action::KeepProgram;
  using Conclude = worker_action::Conclude;
  using Save = worker_action::Save;
  using Action = worker_action::Action;
  using Effects = WorkerEffects;

  explicit WorkerCore(const Options& options);

  // ---- Events ---------------------------------------------------------------

  void Start(absl::Time now, Effects* effects);
  void OnCoordinatorMessage(const Message& message, absl::Time now,
                            Effects* effects);
  void OnShardMessage(Owner from, const Message& message, absl::Time now,
                      Effects* effects);
  // As MemberCore::OnLink().
  void OnLink(LinkState link, absl::Time now) { member_.OnLink(link, now); }
  // As MemberCore::OnLinks().
  void OnLinks(const wire::LinksTried& tried, absl::Time now, Effects* effects);
  // As MemberCore::AnswerInspection().
  void AnswerInspection(wire::Inspected inspected, Payload frame,
                        absl::Time now, Effects* effects);
  // Repeats what has waited too long, and lets deadlines run out. Call it at
  // NextWakeup() or later.
  void OnTick(absl::Time now, Effects* effects);
  absl::Time NextWakeup() const;

  // The driver's program asks what comes next. Each of its steps, and each step
  // that is lost, takes that back. A worker that has done its last step leaves
  // once its program asks: until then the job goes on for it, and answers
  // AskState() and Call() for example. To be called before an action is waited
  // for; of no effect if nothing depends on it.
  void OnAsked(absl::Time now, Effects* effects);

  // Ends of actions. The driver drops the group before OnGroupLost().
  void OnInitialized(absl::Time now, Effects* effects);
  // `options` and InvalidArgument as of ClientCore::Push().
  absl::Status OnGradient(TableId table, const CodedGradient& gradient,
                          const StepOptions& options, absl::Time now,
                          Effects* effects);
  // In place of OnGradient(). InvalidArgument as of ClientCore::SkipTable().
  absl::Status OnSkippedTable(TableId table, absl::Time now, Effects* effects);
  void OnComputed(double loss, absl::Time now, Effects* effects);
  void OnReducing(absl::Time now);
  using Reduced = worker_action::Reduced;
  void OnReduced(const Reduced& step, absl::Time now, Effects* effects);
  void OnGroupLost(const absl::Status& why, absl::Time now, Effects* effects);
  using Moved = worker_action::Moved;
  void OnStateTaken(const Moved& moved, absl::Time now, Effects* effects);
  void OnConnected(absl::Time now, Effects* effects);
  // All of the group are at this clock; whether this worker took another's
  // state.
  void OnCaughtUp(Clock clock, bool took_state, absl::Time now,
                  Effects* effects);
  void OnStateRead(std::vector<ClientCore::InstalledShard> shards,
                   const Moved& moved, absl::Time now, Effects* effects);
  void OnConcluded(const run::Result& result, absl::Time now, Effects* effects);
  void OnSaveFailed(const absl::Status& why, absl::Time now, Effects* effects);
  // What has become of a KeepState or KeepProgram: for the coordinator. At any
  // time.
  void OnCutPart(const wire::CutPart& part, absl::Time now, Effects* effects);
  // An action cannot be done at all, or the user interrupts: leaves the job and
  // ends with this status.
  // `traceback`, of several lines, goes into the summary; may be empty.
  void Fail(const absl::Status& why, absl::Time now, Effects* effects,
            const std::string& traceback = "");
  // The process will have to end soon: asks for a checkpoint, after which the
  // job ends, and goes on until then. Fail() with Cancelled if nobody is there
  // to be asked. One that joins again asks when it has joined; if that takes
  // longer than kSuspendJoinMax, it fails with Cancelled, too.
  void Suspend(const std::string& reason, absl::Time now, Effects* effects);
  // As Fail(), and the job ends, whether or not it could do without this
  // worker.
  void StopJob(const absl::Status& why, absl::Time now, Effects* effects,
               const std::string& traceback = "");

  // ---- Beside the actions ---------------------------------------------------

  // The figures of training so far; the rest is filled in.
  void SetStats(const run::WorkerStats& stats) { stats_ = stats; }
  // An action that takes long has come further.
  void OnProgress(absl::Time now) { patience_.CameFurther(now); }
  // As MemberCore::AddRecord().
  void AddRecord(const run::MetricRecord& record, absl::Time made_at) {
    member_.AddRecord(record, made_at);
  }
  // Whether an evaluation's model is to be written, because it meets a stop
  // rule: true at most once.
  bool KeepsModel(double test_loss, double test_accuracy) {
    return steps_.KeepsModel(test_loss, test_accuracy);
  }
  // As MemberCore::Call(), answered in Effects::answers.
  uint64_t Call(wire::Call call, Payload value, absl::Time now,
                Effects* effects);
  // Nobody waits for the answer any more.
  void CancelCall(uint64_t call) {
    member_.Cancel(call);
    steps_.OnGatherForgotten(call);
  }
  // As MemberCore::ObstacleOf().
  std::string ObstacleOf(uint64_t call) const {
    return member_.ObstacleOf(call);
  }
  // Whether OnGradient() may bring so many bytes now.
  bool HasRoom(size_t bytes) const;
  // Asks the servers for parameters, and slots if `what` says so, as they are
  // when a pull of the next step, or of the open one, is answered. It comes in
  // Effects::state, unless the worker ends before. One question at a time, by a
  // worker that has joined and whose state is on the servers.
  void AskState(StateParts what, absl::Time now, Effects* effects);
  using Need = WorkerNeed;
  void SetNeed(Need need, absl::Time now);

  // ---- Where it is ----------------------------------------------------------

  // Not OK from the moment in which the worker is to stop whatever it does,
  // with the reason; a job that has finished is OutOfRange.
  const absl::Status& ending() const { return ending_; }
  // Nothing comes any more; ending() is how it ended:
  //   Aborted            given up though it lives: join again with a new core
  //   OutOfRange         the job has FINISHED
  //   FailedPrecondition the coordinator refused us, or the job FAILED
  //   DeadlineExceeded   names what was waited for
  //   Unavailable        the coordinator is gone
  //   others             what was handed to Fail()
  bool ended() const { return state_ == State::kEnded; }
  const std::shared_ptr<const View>& view() const { return member_.view(); }
  Incarnation incarnation() const { return member_.incarnation(); }
  Clock clock() const { return steps_.clock(); }
  // Why whatever is under way in this group cannot end; OK: it can. The driver
  // asks when it begins something in the group, and after each event, and
  // makes it fail: OnGroupLost() follows.
  absl::Status WhyGroupIsOver(uint64_t group) const;
  // WhyGroupIsOver() of the step by all-reduce that the worker is in; OK also
  // if it is in none. ActionLine asks for a program that stands at a gather.
  absl::Status WhyStepIsLost() const;
  // The worker has done its last step, and its program has not asked what comes
  // next.
  bool has_trained() const { return state_ == State::kTrained; }
  // As PhaseFollower::has_model().
  bool has_model() const { return steps_.has_model(); }
  run::WorkerStats Stats(absl::Time now) const;
  run::WorkerProgress Progress(absl::Time now) const;
  const ClientCore* client() const { return steps_.client(); }
  const MemberCore& member() const { return member_; }

  using Counts = WorkerCounts;
  const Counts& counts() const { return counts_; }

 private:
  using State = WorkerStage;

  // What the parts get of an event. Goes with `effects`.
  WorkerParts Parts(absl::Time now, Effects* effects);
  // Does what parts have asked for, one after the other. After every call of a
  // part that may ask.
  void Run(const WorkerParts& parts);
  void Do(const DecideNext& request, const WorkerParts& parts);
  void Do(const StepsDone& request, const WorkerParts& parts);
  void Do(const CannotGoOn& request, const WorkerParts& parts);
  void Do(const HasDiverged& request, const WorkerParts& parts);
  template <typename Event>
  void InSteps(absl::Time now, Effects* effects, const Event& event) {
    const WorkerParts parts = Parts(now, effects);
    event(parts);
    Run(parts);
  }
  void Perform(MemberCore::Effects* member, absl::Time now, Effects* effects);
  void Perform(ClientCore::Effects* client, absl::Time now, Effects* effects);
  void OnView(const std::shared_ptr<const View>& view, absl::Time now,
              Effects* effects);
  void OnAnswer(MemberCore::CallResult answer, absl::Time now,
                Effects* effects);
  // OnTick() begins: time in which this worker itself did not run is no time in
  // which it waited.
  void Wake(absl::Time now);
  // Whoever it waits for may have got on.
  void NoticeOthers(absl::Time now);
  // Says for whom it waits when that has lasted for some leases, and then more
  // and more rarely.
  void SayForWhomItWaits(absl::Time now, Effects* effects);

  // The worker's steps are done, and its program has asked for what comes next.
  void Leave(const WorkerParts& parts);
  // In kDone: the chief concludes the job when all have left.
  void ConcludeIfDue(const WorkerParts& parts);
  // What Suspend() says, of a worker that has joined or will never have.
  void AskForCheckpoint(const std::string& reason, const WorkerParts& parts);
  // Tells the coordinator with this call, which is answered or not, and ends.
  void LeaveWith(wire::Call call, const absl::Status& why,
                 const WorkerParts& parts);
  void End(const absl::Status& why);
  // This worker was given up, though it lives: says why, and ends.
  void EndGivenUp(const std::string& why, Effects* effects);
  std::string WhyRemoved(absl::Time now) const;

  bool WaitsForOthers() const;
  WorkerWhereabouts Whereabouts() const;

  const Options options_;
  const Rank rank_;
  MemberCore member_;
  WorkerSteps steps_;
  State state_ = State::kJoining;
  absl::Status ending_;  // As ending() says.
  Patience patience_;
  Departure departure_;
  Conclusion conclusion_;
  Notices notices_;
  std::deque<WorkerRequest> requests_;  // Empty between two events.
  Need need_ = Need::kNothing;
  run::WorkerStats stats_;
  Counts counts_;
};

}  // namespace slackline
