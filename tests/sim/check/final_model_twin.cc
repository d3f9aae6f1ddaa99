#include "tests/sim/check/final_model_twin.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {

void FinalModelTwin::OnFinalPull(const PullResult& result) {
  final_model_.clear();
  for (const int64_t elements : scenario_.table_elements)
    final_model_.emplace_back(static_cast<size_t>(elements));
  for (auto& [id, twin] : shards_.twins()) {
    int32_t pulled_as = id;  // It may have been cut off since.
    while (static_cast<size_t>(pulled_as) >= result.shards.size())
      pulled_as = shards_.twins().at(pulled_as).origin;
    const Version version =
        result.shards[static_cast<size_t>(pulled_as)].version;
    const Tensor& values = twin.versions[version];
    if (const auto& pulled = result.shards[static_cast<size_t>(pulled_as)];
        pulled_as == id &&
        pulled.values.size() == twin.range.region.DenseBytes() &&
        !SameBits(FloatsOf(pulled.values), values)) {
      findings_.Report(Invariant::kValue,
                       absl::StrCat("the final model has other bits of ",
                                    twin.name, " than its version ", version));
    }
    std::copy(values.begin(), values.end(),
              final_model_[static_cast<size_t>(twin.range.table)].begin() +
                  twin.range.region.begin());
    std::set<Contribution> contained;
    for (Version v = 0; v < version; ++v) {
      for (const Contribution& contribution : twin.updates[v].contributions) {
        contained.insert(contribution);
      }
    }
    for (const wire::WorkerMember& worker : views_.latest().worker()) {
      const Life life{Rank{worker.rank()}, worker.incarnation()};
      const auto participant = twin.participants.find(life);
      if (!worker.done())
        continue;  // Joined when the chief's pull was on its way.
      if (participant == twin.participants.end()) {
        findings_.Report(
            Invariant::kLostPush,
            absl::StrCat(Name(life.first, life.second),
                         " is done and never took part at ", twin.name));
        continue;
      }
      const auto start = views_.starts().find(life);
      if (start == views_.starts().end()) continue;
      for (Clock clock = start->second; clock < EndOf(views_.latest());
           ++clock) {
        if (scenario_.elastic.has_value() &&
            !examples_.Has({.life = life, .clock = clock})) {
          continue;  // It has left this one out.
        }
        const sync::Mode& mode = views_.PhaseOf(clock).mode();
        // A worker that is done does not wait for a shard to hear that its last
        // steps had no gradient: nobody waits for its clock any more.
        if (scenario_.Skips(clock, twin.range.table)) {
          contained.insert({life, clock});
          continue;
        }
        if (contained.count({life, clock}) > 0 ||
            twin.without_effect.count({life, clock}) > 0 ||
            mode.has_allreduce() || mode.has_backup()) {
          continue;
        }
        findings_.Report(
            Invariant::kLostPush,
            absl::StrCat("the final model lacks the push of clock ", clock,
                         " by ", Name(life.first, life.second), " to ",
                         twin.name));
      }
    }
    examples_.AddWithoutEffect(twin, &contained);
    examples_.CheckContained(contained, twin.name);
  }
}

void FinalModelTwin::OnFinalReplica(Rank rank, Incarnation incarnation,
                                    const SimReplica& state) {
  const Life life{rank, incarnation};
  const JobModelPtr model =
      all_reduce_.ModelOf(life, "reports the final model");
  if (model == nullptr) return;
  all_reduce_.CompareReplica(life, *model, state, "as it reports it");
  final_model_ = state.values;
  all_reduce_.CheckHistory(model);
  std::set<Contribution> contained;
  const JobModel* first = model.get();
  for (; first->before != nullptr; first = first->before.get()) {
    for (const Life& who : first->group)
      contained.insert({.life = who, .clock = first->clock - 1});
  }
  // And what had led to the state that the workers took.
  if (const auto found = shards_.twins().find(0);
      found != shards_.twins().end()) {
    const ShardTwin& twin = found->second;
    const Version taken = first->state.versions.front();
    for (Version v = 0; v < taken && v < twin.updates.size(); ++v) {
      contained.insert(twin.updates[v].contributions.begin(),
                       twin.updates[v].contributions.end());
    }
    examples_.AddWithoutEffect(twin, &contained);
  }
  examples_.CheckContained(contained, "the workers' model");
  for (const wire::WorkerMember& worker : views_.latest().worker()) {
    const Life other{Rank{worker.rank()}, worker.incarnation()};
    if (all_reduce_.ModelOf(other, "is done") == model &&
        model->clock == EndOf(views_.latest()))
      continue;
    findings_.Report(
        Invariant::kReplica,
        absl::StrCat(Name(other.first, other.second), " is done at clock ",
                     model->clock, " with another model than the chief"));
  }
}

}  // namespace slackline::sim
