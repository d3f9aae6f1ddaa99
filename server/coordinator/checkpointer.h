// Checkpointer: when a checkpoint is taken, of whom its parts have come, and
// who waits for it (docs/manual/checkpoints.md). At which clocks it is, is the
// CutAgreement's (cut_agreement.h).
//
// A checkpoint is wanted, because the config's time has come or a user asks;
// then it is cut, when the view has the clocks; then its parts come, one of
// each shard thread, or one of the chief that steps by all-reduce, and what the
// workers' programs keep, of each worker that has such a thing; then the driver
// completes it, which gives its folder a name. One at a time. It is
// given up if a part cannot come any more, is not what it should be, or does
// not come. A disk that hangs while one is completed keeps all later ones from
// beginning, so that is said, again and again.
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/checkpoint.pb.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/coordinator_state.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/best_evaluation.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/job_outcome.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/mode_control.h"
#include "server/coordinator/part.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class Checkpointer : public CoordinatorPart {
 public:
  struct Options {
    config::Checkpoint config;
    std::string root;  // Empty: no checkpoint can be written.
    // How long after a cut, or the last part of it, it is given up.
    absl::Duration part_timeout = absl::Seconds(660);
    // What each manifest says of the job: all but what is of one checkpoint.
    checkpoint::Manifest manifest;
    // The best one of the runs whose checkpoints are in the root and that this
    // one goes on from. Only with config.best_by, and of its measure.
    std::optional<run::BestCheckpoint> best = std::nullopt;
  };
  struct Caller {
    PeerId peer;
    uint64_t call_id = 0;
    auto operator<=>(const Caller&) const = default;
  };
  struct Answer {
    Caller to;
    absl::StatusOr<std::string> text;  // For people.
  };
  static constexpr size_t kCallersMax = 64;

  // All of them outlive it.
  Checkpointer(Options options, const Membership* members,
               const JobOutcome* outcome, ModeControl* modes,
               ViewEditor* editor);

  void OnRunning(const Moment& moment, CoordinatorEffects* effects) override;
  void OnJoined(const Member&, CoordinatorEffects*) override { news_ = true; }
  // If others own the shards of a server now, what shards have of a cut that is
  // under way does not fit together any more.
  void OnGone(const GoneMember& gone, CoordinatorEffects* effects) override;
  // A user wants a checkpoint. OK: the caller gets an Answer, of the checkpoint
  // that is under way if that has no clocks yet, else of the next one. However
  // often the same call comes, it is one. Else, here and in an Answer, why
  // there is none; OutOfRange: the job ends by itself before it could be;
  // ResourceExhausted: too many wait; Unavailable: the next one may be whole.
  absl::Status Ask(const Caller& caller);
  // What is repeated, late, or from whom no part is expected is no error, and
  // changes nothing.
  void OnPart(const Member& member, const wire::CutPart& part,
              absl::Time awake_now);
  // A worker has said how far it is.
  void OnWorker(const Member& worker);
  // A shard was lost on its way to a server that is gone, as the sentence says.
  // What follows is as for OnGone().
  void OnServerLost(const std::string& sentence);
  // With config.best_by: an evaluation that is better than all before it makes
  // a checkpoint due at once, unless a later one than it is there already.
  void OnEvaluation(const run::MetricRecord& evaluation,
                    CoordinatorEffects* effects);
  // What the driver has made of CoordinatorEffects::best.
  void OnBest(const run::BestCheckpoint& best, CoordinatorEffects* effects);
  // What the driver has made of CoordinatorEffects::complete.
  void OnCompleted(int32_t cut, const absl::StatusOr<std::string>& folder,
                   absl::Time now, CoordinatorEffects* effects);

  // True if what waited for the cut may go on, or there are answers. It asks
  // ModeControl for the cut, and follows when the view has it.
  bool Advance(const Moment& moment, CoordinatorEffects* effects) override;
  // What is on the disk is still completed.
  void OnEnded(const Moment& moment, CoordinatorEffects* effects) override;
  std::vector<Answer> TakeAnswers() { return std::exchange(answers_, {}); }
  // Takes the answer to this caller alone.
  std::optional<absl::StatusOr<std::string>> TakeAnswerTo(const Caller& caller);

  WakeUp NextWakeUp() const override;

  // For the next coordinator, of a job that runs. A checkpoint that is under
  // way is given up by it, as one that may be whole the next time; users who
  // wait for it ask again.
  void Keep(absl::Time now, KeptState* kept) override;
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;
  // ModeControl is loaded, too, and knows of the same cut. DataLoss as of
  // Load().
  absl::Status CheckLoaded(const StateReader& reader) const;

  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const override;
  void PutSummary(run::Summary* summary) const override;
  // The last one that is whole; nullptr: none was completed.
  const run::CheckpointRecord* last() const {
    return completed_ > 0 ? &last_ : nullptr;
  }
  size_t waiting() const { return callers_.size(); }

 private:
  enum class State {
    kIdle,
    kWanted,      // The view is to get the cut.
    kCollecting,  // The view has it; parts are to come.
    kCompleting,  // All parts have come; the driver has it.
  };
  struct Waiting {
    Caller caller;
    int32_t cut = 0;  // The call is answered with this one, or a later one.
  };
  // A part that is to come, or has.
  struct Part {
    Incarnation incarnation = 0;
    int32_t shards = 0;  // Their number in the view.
    bool here = false;
    checkpoint::Part part = {};
  };

  // What a worker's program keeps; of one that is there when the view has the
  // cut, and says that its program keeps something.
  struct Kept {
    Incarnation incarnation = 0;
    bool here = false;
    checkpoint::Kept kept = {};
  };

  // Why no checkpoint can be taken, now or later; OK: one can.
  absl::Status MayBegin() const;
  // Empty, or who wants one now and why.
  std::string WhyDue(absl::Time now);
  // The clock of the last checkpoint that is whole; -1: there is none.
  Clock LastClock() const;
  bool AllHaveComeTo(Clock clock);
  // The clock of the present cut for this worker; 0: the cut is without it.
  Clock CutOf(int32_t rank) const;
  // The next one is due as the config says, counted from here.
  void Schedule(Clock clock, absl::Time now);
  void BeginIfDue(absl::Time now);
  // True if the present one is over, or only the disk is waited for.
  bool AdvancePresent(absl::Time now, absl::Time awake_now,
                      CoordinatorEffects* effects);
  // The view may have the cut, or never get it. `seconds`: as in Moment.
  void FollowCut(double seconds, absl::Time awake_now);
  void ExpectParts();
  void OnKept(const Member& member, const wire::CutPart& part,
              absl::Time awake_now);
  std::string WhyUnfit(const Member& member,
                       const checkpoint::Kept& kept) const;
  bool IsTaken(const std::string& file) const;
  // Empty, or why the part is not what was expected.
  std::string WhyUnfit(const Part& expected,
                       const checkpoint::Part& part) const;
  // Empty, or why the parts that lack do not come.
  std::string WhyNoneComes(absl::Time awake_now);
  // When the next one is to be begun.
  absl::Time NextDue() const;
  // When parts that lack are given up, or a disk is said to hang, in awake
  // time.
  absl::Time GivesUpAt() const;
  absl::Time NextDueAwake() const;
  // What the disk has kept the driver from completing, and for how long.
  std::string HungText(absl::Time awake_now) const;
  std::vector<std::string> Missing() const;
  void Complete(absl::Time awake_now, CoordinatorEffects* effects);
  // Returns a sentence about it.
  std::string GiveUp(const std::string& why, CoordinatorEffects* effects);
  // Answers those who wait for this cut, or an earlier one.
  void AnswerAll(int32_t cut, const absl::StatusOr<std::string>& text);

  const Options options_;
  const Membership* const members_;
  const JobOutcome* const outcome_;
  ModeControl* const modes_;
  ViewEditor* const editor_;

  State state_ = State::kIdle;
  bool news_ = false;             // Parts have come, or will not.
  std::vector<Waiting> callers_;  // In the order of their calls.
  std::vector<Answer> answers_;

  // When the next one is due.
  Clock stride_ = 0;  // Every so many steps; 0: not by steps.
  Clock due_clock_ = kClockMax;
  absl::Time due_time_ = absl::InfiniteFuture();
  int32_t laggard_ = 0;  // Rank of a worker that was last seen before it.
  bool came_ = false;    // Some worker has come to it.
  // What waits for cuts has the time until then: as much as the last one took.
  // Users' do not wait.
  absl::Time rests_until_ = absl::InfinitePast();

  BestEvaluation best_;

  // The present one.
  absl::Time wanted_at_;
  int32_t cut_ = 0;  // Its number; that of the last one, if it is over.
  checkpoint::Manifest manifest_;
  // By index and thread of the server; the chief's by rank, and thread 0.
  std::map<std::pair<int32_t, int32_t>, Part> parts_;
  std::map<int32_t, Kept> kept_;  // By rank, of workers that are there.
  // When, in awake time, something was last heard of the cut: that it is there,
  // a part of it, or a worker that has yet to come to it.
  absl::Time heard_;
  bool comes_nearer_ = false;    // A worker was heard that is before the cut.
  absl::Time completing_since_;  // When the driver was given it, in awake time.
  absl::Duration say_hung_after_;  // The time since then at which it is said.
  std::string last_failure_;  // Empty: the last one that was over is there.
  // Why the present one cannot be whole. Unavailable: the next one may be.
  absl::Status failure_;

  run::CheckpointRecord last_;  // The last one that was completed.
  int32_t completed_ = 0;
  int32_t failed_ = 0;
};

}  // namespace slackline
