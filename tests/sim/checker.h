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
  kSyncSum,  // A BSP update is not the mean over the gradients of its clock.
  kValue,    // Values that no sequence of the pushes gives.
  kView,     // A member saw a view that was not published, or an older one.
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

  // A shard thread was handed a view, a worker's message, or had to flush, and
  // these are the effects.
  void OnShardView(Owner owner, const View& view,
                   const ShardCore::Effects& effects);
  void OnShardMessage(const PeerId& from, const Message& message,
                      const ShardCore::Effects& effects);
  void OnShardFlush(Owner owner, const ShardCore& core);

  // The job has finished and every message has arrived.
  void OnFinished();

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
  struct Twin {
    ShardRange range;
    std::string name;
    std::vector<std::vector<float>>
        versions;                 // versions[0] is the initial one.
    std::vector<Update> updates;  // updates[v] leads to version v + 1.
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
  std::vector<float> Apply(const Twin& twin, const std::vector<float>& values,
                           const Update& update) const;
  void OnTrace(const ShardCore::Effects& effects);
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
  std::map<int32_t, Twin> twins_;         // By shard.
  std::map<Owner, uint64_t> shard_view_;  // Handed to a shard thread last.
  std::map<std::pair<Life, uint64_t>, PullIntent> pulls_;  // By request.
  std::map<Life, Clock> pushed_from_;
  std::map<std::pair<Life, int32_t>, Version>
      seen_;  // Last version, by worker and shard.
};

}  // namespace slackline::sim
