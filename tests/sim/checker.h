// What must hold in every run (the invariants of the design), checked as it
// goes.
//
// The checker has a naive twin of every subject (tests/sim/check), each with a
// state of its own. They know what each worker meant to send, see what each
// shard thread was handed and what it answered, and compute in plain float
// arithmetic what every version of a shard must be. The gate's and the client's
// own numbers are never taken for granted: every answer that reaches a worker
// is compared bit for bit with the twin's version.
//
// The checker itself has the list of the twins, and hands each event to those
// that it concerns, in the order in which one needs what another has noted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/sim/check/all_reduce_twin.h"
#include "tests/sim/check/checkpoint_twin.h"
#include "tests/sim/check/copy_twin.h"
#include "tests/sim/check/cut_twin.h"
#include "tests/sim/check/delay_twin.h"
#include "tests/sim/check/example_twin.h"
#include "tests/sim/check/failover_twin.h"
#include "tests/sim/check/figure_twin.h"
#include "tests/sim/check/final_model_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/move_twin.h"
#include "tests/sim/check/program_twin.h"
#include "tests/sim/check/pull_twin.h"
#include "tests/sim/check/push_twin.h"
#include "tests/sim/check/resume_twin.h"
#include "tests/sim/check/serving_twin.h"
#include "tests/sim/check/shard_arithmetic.h"
#include "tests/sim/check/shard_comparison.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/check/told_twin.h"
#include "tests/sim/check/turn_plan.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

class Checker {
 public:
  explicit Checker(const Scenario& scenario) : scenario_(scenario) {}
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  // The first thing that was wrong.
  const std::optional<Violation>& violation() const {
    return findings_.violation();
  }
  // What happens from now on cannot be judged: a copy serves that has followed
  // an owner beyond the point where that was replaced. It may, since who
  // replaced it has told nobody anything without this copy; but what a replaced
  // owner does is not followed here.
  bool judges_no_more() const { return findings_.judges_no_more(); }
  const CheckerStats& stats() const { return findings_.stats(); }
  void Report(Invariant invariant, const std::string& what) {
    findings_.Report(invariant, what);
  }

  // ---- Events of several twins.

  // The coordinator made this view.
  void OnPublished(const wire::View& view);
  // A worker's client has put this on its way.
  void OnSent(Rank rank, Incarnation incarnation, const Message& message);
  // This has reached a worker's client, before the client looks at it.
  void OnWorkerReceived(Rank rank, Incarnation incarnation,
                        const Message& message);
  // A worker begins the step of this clock.
  void OnStepBegun(Rank rank, Incarnation incarnation, Clock clock,
                   bool by_all_reduce,
                   const std::optional<ExampleRange>& examples);
  // The process of a server begins, perhaps not the first one of its index.
  void OnServerStarts(int32_t server);
  // A shard thread did something, with these effects. `view` is what it was
  // handed, if that was a view.
  void OnShardEvent(Owner owner, const std::shared_ptr<const View>& view,
                    const ShardCore& core, const ShardCore::Effects& effects);

  // ---- Events of one twin, which says what they are.

  void OnJoined(bool server, int32_t index) { views_.OnJoined(server, index); }
  void OnMemberView(const PeerId& member, const wire::View& view) {
    views_.OnMemberView(member, view);
  }
  void OnStart(Rank rank, Incarnation incarnation, Clock clock) {
    views_.OnStart({rank, incarnation}, clock);
  }
  void OnPulled(Rank rank, Incarnation incarnation, const PullResult& result) {
    pulls_.OnPulled(rank, incarnation, result);
  }
  void OnParameters(Rank rank, Incarnation incarnation, Clock clock,
                    const TableValues& values) {
    pushes_.OnParameters(rank, incarnation, clock, values);
  }
  void OnFinalPull(const PullResult& result) {
    final_model_.OnFinalPull(result);
  }
  void OnFinalReplica(Rank rank, Incarnation incarnation,
                      const SimReplica& state) {
    final_model_.OnFinalReplica(rank, incarnation, state);
  }
  void OnInitial(Rank rank, Incarnation incarnation, const SimReplica& state) {
    all_reduce_.OnInitial(rank, incarnation, state);
  }
  void OnTookState(Rank rank, Incarnation incarnation, Clock clock,
                   const SimReplica& state) {
    all_reduce_.OnTookState(rank, incarnation, clock, state);
  }
  void OnShared(Rank rank, Incarnation incarnation, uint64_t group) {
    all_reduce_.OnShared(rank, incarnation, group);
  }
  void OnExchange(uint64_t group, const std::vector<SimShare>& shares) {
    all_reduce_.OnExchange(group, shares);
  }
  void OnCaughtUp(Rank rank, Incarnation incarnation, uint64_t group,
                  Clock clock, const SimReplica& state) {
    all_reduce_.OnCaughtUp(rank, incarnation, group, clock, state);
  }
  void OnReduced(Rank rank, Incarnation incarnation, uint64_t group,
                 const std::vector<SimShare>& shares, Clock clock,
                 const SimReplica& state) {
    all_reduce_.OnReduced(rank, incarnation, group, shares, clock, state);
  }
  void OnServerGone(int32_t server) { shards_.OnServerGone(server); }
  void OnShardFlush(Owner owner, const ShardCore& core) {
    figures_.OnShardFlush(owner, core);
  }
  void OnShardStats(Owner owner, const run::ServerStats& stats) {
    figures_.OnShardStats(owner, stats);
  }
  void OnCoordinator(const CoordinatorCore::Sizes& sizes) {
    figures_.OnCoordinator(sizes);
  }
  void OnClient(Rank rank, Incarnation incarnation, const ClientCore& client,
                const MemberCore& member, const View& view) {
    figures_.OnClient(rank, incarnation, client, member, view);
  }
  void OnShardSends(Owner owner, const std::vector<Outgoing>& sends) {
    told_.OnShardSends(owner, sends);
  }
  void OnGo(int32_t shard, uint64_t move) { moves_.OnGo(shard, move); }
  void OnPartWritten(Owner owner, const ShardCore::CutState& state) {
    cuts_.OnPartWritten(owner, state);
  }
  void OnKept(Rank rank, Incarnation incarnation, int32_t cut, Clock clock,
              const SimReplica& state) {
    cuts_.OnKept(rank, incarnation, cut, clock, state);
  }
  void OnKeptWritten(Rank rank, int32_t cut, const SimReplica& state) {
    cuts_.OnKeptWritten(rank, cut, state);
  }
  void OnProgramBegins(Rank rank, Incarnation incarnation, bool founder,
                       const std::string& state) {
    programs_.OnProgramBegins(rank, incarnation, founder, state);
  }
  void OnProgramStep(Rank rank, Incarnation incarnation, Clock clock) {
    programs_.OnProgramStep(rank, incarnation, clock);
  }
  void OnCheckpoint(
      int32_t cut,
      const absl::StatusOr<std::shared_ptr<const SimCheckpoint>>& made) {
    checkpoints_.OnCheckpoint(cut, made);
  }
  void OnGivenUp(int32_t cut, const char* excuse) {
    checkpoints_.OnGivenUp(cut, excuse);
  }
  void OnCheckpointRefused(const std::string& why) {
    checkpoints_.OnCheckpointRefused(why);
  }
  void OnSuspended(const wire::JobEnd& end) { checkpoints_.OnSuspended(end); }
  void OnWorkAfterLast(Rank rank, Incarnation incarnation) {
    checkpoints_.OnWorkAfterLast({rank, incarnation});
  }
  void OnFinished() { pushes_.OnFinished(); }
  void CheckExamplesDone(int64_t done) { examples_.CheckDone(done); }

  // ---- What twins know, for those who plan faults.

  // A server has discarded one of its gradients because of the bound.
  bool IsOversized(int32_t rank) const {
    return pushes_.IsOversized(Rank{rank});
  }
  std::optional<wire::View> ViewIn(const wire::Header& header) const {
    return views_.ViewIn(header);
  }
  const wire::View& latest_view() const { return views_.latest(); }
  uint64_t ViewOfCut(int32_t cut) const { return cuts_.ViewOfCut(cut); }
  const std::map<std::pair<int32_t, uint64_t>, TwinMove>& moves() const {
    return moves_.moves();
  }
  const TwinMove* DoneIn(uint64_t view_number) const {
    return moves_.DoneIn(view_number);
  }
  const TwinMove* FailoverIn(uint64_t view_number) const {
    return moves_.FailoverIn(view_number);
  }
  std::string MissingCopies() { return told_.MissingCopies(); }
  const std::vector<Tensor>& final_model() const {
    return final_model_.model();
  }

 private:
  void OnTrace(Owner owner, const ShardEvent& event, const ShardCore& core,
               const ShardTraceRecord& record);

  // Each uses those above it.
  const Scenario& scenario_;
  Findings findings_;
  ViewTwin views_{findings_};
  ShardArithmetic arithmetic_{scenario_};
  TurnPlan turns_{scenario_};
  ShardComparison comparison_{scenario_, arithmetic_, turns_};
  ExampleTwin examples_{scenario_, views_, findings_};
  ResumeTwin resume_{scenario_, views_, comparison_, turns_, findings_};
  ShardTwins shards_{scenario_,   views_,  arithmetic_,
                     comparison_, resume_, findings_};
  AllReduceTwin all_reduce_{scenario_, views_,    arithmetic_,
                            shards_,   examples_, findings_};
  FinalModelTwin final_model_{scenario_, views_,      shards_,
                              examples_, all_reduce_, findings_};
  CutTwin cuts_{scenario_, views_,      arithmetic_, turns_,
                shards_,   all_reduce_, findings_};
  ProgramTwin programs_{scenario_, views_, findings_};
  CheckpointTwin checkpoints_{scenario_, views_, cuts_, programs_, findings_};
  DelayTwin delays_{scenario_, turns_, shards_, findings_};
  PushTwin pushes_{scenario_, views_, arithmetic_, shards_,
                   delays_,   cuts_,  findings_};
  PullTwin pulls_{scenario_, views_, comparison_, turns_, shards_, findings_};
  MoveTwin moves_{scenario_, shards_, cuts_, findings_};
  CopyTwin copies_{scenario_, comparison_, shards_, findings_};
  ToldTwin told_{scenario_, views_, shards_,  pulls_,
                 copies_,   moves_, findings_};
  FailoverTwin failovers_{scenario_, resume_, shards_,
                          pulls_,    copies_, findings_};
  ServingTwin serving_{scenario_, comparison_, shards_,
                       pulls_,    failovers_,  findings_};
  FigureTwin figures_{scenario_, views_, shards_, moves_, findings_};
};

}  // namespace slackline::sim
