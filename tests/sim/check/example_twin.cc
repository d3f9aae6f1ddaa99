#include "tests/sim/check/example_twin.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace slackline::sim {

void ExampleTwin::OnStepBegun(const Life& life, Clock clock,
                              const std::optional<ExampleRange>& examples) {
  if (examples.has_value()) {
    examples_[{.life = life, .clock = clock}] = *examples;
  } else if (scenario_.elastic.has_value()) {
    findings_.Report(
        Invariant::kExamples,
        absl::StrCat(Name(life), " begins step ", clock, " without examples"));
  }
}

void ExampleTwin::AddWithoutEffect(const ShardTwin& twin,
                                   std::set<Contribution>* contained) const {
  contained->insert(twin.without_effect.begin(), twin.without_effect.end());
  // Of these nobody owes the shard the news, neither who is done nor who dies.
  for (const auto& [step, examples] : examples_) {
    if (scenario_.Skips(step.clock, twin.range.table)) contained->insert(step);
  }
}

void ExampleTwin::CheckContained(const std::set<Contribution>& contained,
                                 const std::string& where) {
  if (!scenario_.elastic.has_value() || findings_.violation().has_value())
    return;
  const wire::Elastic& elastic = *scenario_.elastic;
  // By position: how often by those who live, and by those who do not.
  std::vector<std::pair<int, int>> times(static_cast<size_t>(elastic.total()));
  for (const auto& [step, examples] : examples_) {
    if (contained.count(step) == 0 &&
        !views_.PhaseOf(step.clock).mode().has_backup())
      continue;
    const int64_t epoch = examples.epoch * elastic.examples();
    for (int64_t at = epoch + examples.begin; at < epoch + examples.end; ++at) {
      if (at < 0 || at >= elastic.total()) {
        return findings_.Report(
            Invariant::kExamples,
            absl::StrCat("example ", at, " of ", elastic.total()));
      }
      auto& [living, dead] = times[static_cast<size_t>(at)];
      ++(views_.Live(step.life) ? living : dead);
    }
  }
  for (size_t at = 0; at < times.size(); ++at) {
    const auto [living, dead] = times[at];
    ++findings_.stats().examples;
    findings_.stats().examples_again += living > 0 && dead > 0;
    const bool left_out =
        living + dead == 0 && findings_.stats().ended_early == 0;
    if (living > 1 || left_out) {
      return findings_.Report(
          Invariant::kExamples,
          absl::StrCat(where, " has example ", at, " of ", times.size(), " ",
                       living, " times by workers that live, ", dead,
                       " times by others"));
    }
  }
}

void ExampleTwin::CheckDone(int64_t done) {
  if (!scenario_.elastic.has_value()) return;
  int64_t begun = 0;
  for (const auto& [step, examples] : examples_) {
    if (!views_.Live(step.life)) return;
    begun += examples.end - examples.begin;
  }
  ++findings_.stats().examples_counted;
  if (begun == done || (findings_.stats().ended_early > 0 && begun > done))
    return;
  findings_.Report(
      Invariant::kExamples,
      absl::StrCat("the workers have trained on ", begun,
                   " examples, and the coordinator has counted ", done));
}

}  // namespace slackline::sim
