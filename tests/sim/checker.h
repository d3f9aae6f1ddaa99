// What must hold in every run (the invariants of the design), checked as it
// goes.
//
// The checker has a naive twin of every shard. It knows what each worker meant
// to send, sees what each shard thread was handed and what it answered, and
// computes in plain float arithmetic what every version of a shard must be. The
// gate's and the client's own numbers are never taken for granted: every answer
// that reaches a worker is compared bit for bit with the twin's version.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/view/shard_map.h"
#include "server/shard/shard_core.h"
#include "tests/sim/scenario.h"
#include "worker/client/client_core.h"

namespace slackline::sim {

enum class Invariant {
  kStaleness,    // A pull was answered before the pushes that it must contain.
  kExactlyOnce,  // A push took effect more than once.
  kLostPush,     // A push was acknowledged and did not take effect.
  kOrder,  // Pushes of one worker took effect in another order, or with a gap.
  kTornRead,      // An answer is no single version of its shard.
  kVersionOrder,  // A worker was given another or an older version than is
                  // right.
  kSyncSum,    // A BSP update is not the mean over the gradients of its clock.
  kValue,      // Values that no sequence of the pushes gives.
  kOwnership,  // Two shard threads serve one shard, or the wrong one does.
  kView,       // A member saw a view that was not published, or an older one.
  kBoundedState,  // A shard keeps state of workers that are gone, or parks too
                  // much.
  kLiveness,      // Somebody still waits long after the last fault.
  kOutcome,       // The job ended otherwise than it had to.
};
const char* InvariantName(Invariant invariant);

struct Violation {
  Invariant invariant{};
  std::string what;
};

struct CheckerStats {
  int64_t answers = 0;  // Shard answers compared with the twin.
  int64_t gated = 0;    // Of those: where the bound had something to say.
  int64_t pushes = 0;   // Shard pushes taken over.
  int64_t updates = 0;
  int64_t joins = 0;  // To a shard, after the start of the job.
  int64_t advances = 0;
  int64_t partial_sums = 0;  // BSP updates without a worker that had died.
  int64_t moves_ordered = 0;
  int64_t moves_done = 0;
  int64_t moves_cancelled = 0;  // The target had died.
  int64_t splits = 0;
  int64_t take_overs = 0;       // Compared with the twin.
  int64_t take_overs_held = 0;  // Of those: with gradients that were held.
  int64_t parts_compared = 0;   // After a split.
  int64_t waiting = 0;          // Requests that waited for a move.
  int64_t relocations = 0;      // That workers were told.
  int64_t dropped_server = 0;   // Views without a server that just died.
};

class Checker {
 public:
  explicit Checker(const Scenario& scenario) : scenario_(scenario) {}

  // The first thing that was wrong.
  const std::optional<Violation>& violation() const { return violation_; }
  const CheckerStats& stats() const { return stats_; }
  void Report(Invariant invariant, const std::string& what);

  // The coordinator made this view; a member took it over.
  void OnPublished(const wire::View& view);
  void OnMemberView(const PeerId& member, const wire::View& view);

  // A worker's client has put this on its way.
  void OnSent(Rank rank, Incarnation incarnation, const Message& message);
  // This has reached a worker's client, before the client looks at it.
  void OnWorkerReceived(Rank rank, Incarnation incarnation,
                        const Message& message);
  void OnPulled(Rank rank, Incarnation incarnation,
                const ClientCore::PullResult& result);
  // Its first push will be that of `clock`.
  void OnStart(Rank rank, Incarnation incarnation, Clock clock);
  // The chief has read the final model.
  void OnFinalPull(const ClientCore::PullResult& result);

  // A shard thread did something, with these effects. `view` is what it was
  // handed, if that was a view.
  void OnShardEvent(Owner owner, const std::shared_ptr<const View>& view,
                    const ShardCore& core, const ShardCore::Effects& effects);
  void OnShardFlush(Owner owner, const ShardCore& core);
  // Its process has ended.
  void OnServerGone(int32_t server);
  // The source of a move has sent the last record.
  void OnGo(int32_t shard, uint64_t move);

  // The job has finished and every message has arrived.
  void OnFinished();

  struct Move {
    Owner source;
    Owner target;
    bool go = false;  // Its source has said so.
  };
  // By shard and id: all that were ever ordered.
  const std::map<std::pair<int32_t, uint64_t>, Move>& moves() const {
    return moves_;
  }
  // The move that was done, so that the view of this number was made.
  const Move* DoneIn(uint64_t view_number) const;
  // The last one published.
  const wire::View& latest_view() const { return latest_view_; }

 private:
  using Life = std::pair<Rank, Incarnation>;

  struct Participant {
    Clock joined_at = 0;
    Clock clock = 0;  // As its pushes and declarations make it.
    uint64_t next_seq = 1;
    bool present = true;  // In the last view that the shard thread was handed.
  };
  struct Contribution {
    Life life;
    Clock clock = 0;
    auto operator<=>(const Contribution&) const = default;
  };
  struct Update {
    std::vector<Contribution> contributions;  // In the order of the sum.
    int divisor = 1;
  };
  using Versions = std::vector<std::vector<float>>;
  struct Twin {
    ShardRange range;
    std::string name;
    Versions versions;            // versions[0] is the initial one.
    Versions slots;               // Of the momentum, by version.
    std::vector<Update> updates;  // updates[v] leads to version v + 1.
    // What it was before it was cut in two by the view of this number.
    std::vector<std::pair<uint64_t, Versions>> before_split;
    int32_t origin = 0;          // What it was cut off from; else itself.
    std::optional<Owner> owner;  // Who serves it now.
    std::optional<Owner> last_owner;
    uint64_t newest_view = 0;                  // That an owner of it has had.
    std::map<Life, Participant> participants;  // Those that are gone, too.
    std::vector<Contribution> held;  // BSP: taken over, not applied yet.
    Clock min_clock = 0;
  };
  struct PullIntent {
    Clock clock = 0;
    Clock own_clock = 0;
    bool join = false;
    std::map<int32_t, std::set<Version>> answered;  // By shard.
  };

  std::vector<float> GradientOf(const Twin& twin,
                                const Contribution& contribution) const;
  // The version after `values`; `*slot` becomes that after it.
  std::vector<float> Apply(const Twin& twin, const std::vector<float>& values,
                           std::vector<float>* slot,
                           const Update& update) const;
  void CheckMoves(const wire::View& before, const wire::View& view);
  void CheckFailure(const wire::View& before, const wire::View& view);
  void CreateTwins(Owner owner, const View& view);
  // Cuts the twins of what this owner has. Appends their shards to `*changed`.
  void SplitTwins(Owner owner, const View& view, std::vector<int32_t>* changed);
  // Who takes part by now, after a view or a new owner.
  void FollowParticipants(Twin& twin, const View& view,
                          const ShardState& state);
  // What an owner has is what it must have.
  void CompareState(const Twin& twin, const ShardState& state,
                    const std::string& when);
  std::optional<Violation> Difference(const Twin& twin,
                                      const ShardState& state) const;
  void OnTrace(const ShardCore::Effects& effects,
               const std::set<int32_t>& served, Owner owner);
  void OnAdvanced(Twin& twin, const ShardTraceRecord& record);
  void OnPushTakenOver(Twin& twin, const ShardTraceRecord& record);
  void OnUpdated(Twin& twin, const ShardTraceRecord& record);
  void OnPullAnswered(Twin& twin, const ShardTraceRecord& record);
  void UpdateMinClock(Twin& twin);
  // Lives that the coordinator counts as members now.
  bool Live(const Life& life) const { return live_.count(life) > 0; }
  // An answer's bytes are not the twin's: finds out which invariant that
  // breaks.
  Violation Explain(const Twin& twin, Version version,
                    const std::vector<float>& actual) const;
  std::optional<Violation> ExplainAsOtherPushes(
      const Twin& twin, Version version,
      const std::vector<float>& actual) const;

  const Scenario& scenario_;
  std::optional<Violation> violation_;
  CheckerStats stats_;
  std::map<uint64_t, std::string> published_;  // Views by number.
  std::map<PeerId, uint64_t> member_view_;
  wire::View latest_view_;
  std::set<Life> live_;
  std::map<int32_t, Twin> twins_;  // By shard.
  struct ShardThread {
    std::shared_ptr<const View> view;  // Handed to it last.
    bool created = false;              // Has seen that the job runs.
    size_t waiting = 0;                // Requests, last time.
  };
  std::map<Owner, ShardThread> shard_threads_;
  std::map<std::pair<int32_t, uint64_t>, Move> moves_;  // By shard and id.
  std::map<uint64_t, std::pair<int32_t, uint64_t>> done_in_;  // By view.
  std::set<int32_t> given_up_;  // Shards of which a move was cancelled.
  std::map<std::pair<Life, uint64_t>, PullIntent> pulls_;  // By request.
  std::map<Life, Clock> pushed_from_;
  std::map<std::pair<Life, int32_t>, Version>
      seen_;  // Last version, by worker and shard.
};

}  // namespace slackline::sim
