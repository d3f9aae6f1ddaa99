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

namespace slackline {

class MemberAccounts : public CoordinatorPart {
 public:
  // `members` outlive it. `own`: of the coordinator.
  MemberAccounts(wire::Build own, const Membership* members)
      : members_(members), programs_(std::move(own)) {}

  // Warns of a program that is of another version than the coordinator.
  void OnJoined(const Member& member, CoordinatorEffects* effects);
  // As in RunTotals.
  void AddTraceback(int32_t rank, const std::string& text) {
    totals_.AddTraceback(rank, text);
  }
  void AddStraggler(const std::string& sentence) {
    totals_.AddStraggler(sentence);
  }
  // A worker is gone that the job has lost, as the sentence says.
  void OnWorkerGone(const Member& worker, const std::string& sentence);
  // A server is gone whose shards others own now, if it had any.
  void OnServerGone(const Member& server);

  // That all workers of the run have trained on.
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
  RunTotals totals_;
  Programs programs_;
};

}  // namespace slackline
