// MemberAccounts: what the run's summary says of its members: sums over all
// that ever were (run_totals.h), and which programs they are (programs.h).
//
// Deterministic. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/control.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/part.h"
#include "server/coordinator/programs.h"
#include "server/coordinator/run_totals.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class MemberAccounts : public CoordinatorPart {
 public:
  // `members` and `editor` outlive it. `own`: of the coordinator.
  MemberAccounts(wire::Build own, const Membership* members,
                 const ViewEditor* editor)
      : members_(members), editor_(editor), programs_(std::move(own)) {}

  // Warns of a program that is of another version than the coordinator.
  void OnJoined(const Member& member, CoordinatorEffects* effects) override;
  // These are added to the RunTotals.
  void AddTraceback(int32_t rank, const std::string& text) {
    totals_.AddTraceback(rank, text);
  }
  void AddStraggler(const std::string& sentence) {
    totals_.AddStraggler(sentence);
  }
  // Counts what a member of a running job has done. That of a server that the
  // job has ended for is not known.
  void OnGone(const GoneMember& gone, CoordinatorEffects* effects) override;

  // How many all workers of the run have trained on.
  int64_t Examples() const;

  void Keep(absl::Time now, KeptState* kept) override;
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;
  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const override;
  void PutSummary(run::Summary* summary) const override;

 private:
  std::vector<const run::ServerStats*> Servers() const;

  const Membership* const members_;
  const ViewEditor* const editor_;
  RunTotals totals_;
  Programs programs_;
};

}  // namespace slackline
