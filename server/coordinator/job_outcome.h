// JobOutcome: what the job has come to: when it ran, what its workers have
// measured, and what ends it in peace: the chief's result once all workers are
// done, or a stop rule of the config (config::Stop).
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "proto/cluster.pb.h"
#include "proto/coordinator_state.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/member_accounts.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/mode_control.h"
#include "server/coordinator/part.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

// The clock that a coordinator is run by.
struct CoordinatorClock {
  // Two of one name show the same time: of one host, since it was booted.
  std::string name;
  // What is to be added for the time of day.
  absl::Duration to_wall;
};

class JobOutcome : public CoordinatorPart {
 public:
  // `clock` as in CoordinatorCore::Options; the others outlive it.
  JobOutcome(const config::Stop& stop, const CoordinatorClock& clock,
             const Membership* members, const MemberAccounts* accounts,
             const ModeControl* modes, ViewEditor* editor)
      : stop_(stop),
        clock_(clock),
        members_(members),
        accounts_(accounts),
        modes_(modes),
        editor_(editor) {}

  void OnStart(const JobStart& start, CoordinatorEffects*) override {
    data_ = members_->FindWorker(0)->join.data();
    data_hash_ = members_->model().data_hash();
    seconds_before_ = start.seconds_before;
  }
  const std::string& data() const { return data_; }
  const std::string& data_hash() const { return data_hash_; }
  void OnRunning(const Moment& moment, CoordinatorEffects*) override {
    running_since_ = moment.now;
  }
  void OnEnded(const Moment& moment, CoordinatorEffects* effects) override;
  // A record that has not been seen before. Its time is its age; the one that
  // is kept counts from the start of the job, and is not before that of the
  // worker's last record of the kind.
  void OnRecord(run::MetricRecord record, absl::Time now,
                CoordinatorEffects* effects);
  void OnResult(const run::Result& result) { result_ = result; }
  // Ends the job: a user wants it, or `member`, whose training has come to
  // nothing, perhaps; nullptr: a user.
  void OnStop(const wire::Stop& stop, const Member* member);
  // No worker has steps left to do. The job goes on until all of them are done.
  void OnTrained(absl::Time now) { trained_at_ = std::min(trained_at_, now); }
  void OnNews() override { news_ = true; }
  void OnGone(const GoneMember&, CoordinatorEffects*) override { news_ = true; }
  // Ends the job if all workers are done.
  bool Advance(const Moment& moment, CoordinatorEffects* effects) override;
  // When the job's time is up.
  WakeUp NextWakeUp() const override { return {.at = StopTime()}; }
  void OnTime(const Moment& moment, CoordinatorEffects* effects) override;

  // How long the job, which has begun to run, has run in all of its runs.
  double Seconds(absl::Time now) const {
    return seconds_before_ + SecondsHere(now);
  }
  void Keep(absl::Time now, KeptState* kept) override;
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;

  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const override;
  void PutSummary(run::Summary* summary) const override;

 private:
  // What all workers have done, for a job without a result of its own. The
  // summary has what the accounts say.
  Clock StepsOfAll(const run::Summary& summary) const;
  // InfiniteFuture: the job has as long as it takes.
  absl::Time StopTime() const;
  void OnAllDone(absl::Time now);
  // Stop rules hold while workers train.
  bool MayStop() const;
  // The mean loss of the workers' last training records, over those of the
  // latest step, in the order of ranks. Nothing: no worker has told a loss.
  std::optional<double> TrainLoss() const;
  // How long the job has run in this run.
  double SecondsHere(absl::Time now) const {
    return absl::ToDoubleSeconds(now - running_since_);
  }
  void StopIfRuleMet(const run::MetricRecord& evaluation);
  void StopByRule(const std::string& rule, double seconds,
                  const run::Result& result);

  const config::Stop stop_;
  const CoordinatorClock clock_;
  const Membership* const members_;
  const MemberAccounts* const accounts_;
  const ModeControl* const modes_;
  ViewEditor* const editor_;
  bool news_ = false;  // Workers may be done, or gone.
  std::string data_;
  std::string data_hash_;
  absl::Time running_since_ = absl::InfiniteFuture();
  double seconds_before_ = 0;
  absl::Time trained_at_ = absl::InfiniteFuture();
  std::map<int, run::MetricRecord> latest_;  // The last record, by kind.
  // The last record of training with a loss, by rank.
  std::map<int, run::MetricRecord> trained_;
  // The time of the last record, by rank and kind.
  std::map<std::pair<int, int>, double> recorded_at_;
  std::optional<run::Result> result_;
  std::string stopped_;        // By which rule.
  std::string stopped_early_;  // By a user: where and why.
  bool stopped_by_time_ = false;
  double stopped_seconds_ = 0;  // When a rule came true, since running_since_.
};

}  // namespace slackline
