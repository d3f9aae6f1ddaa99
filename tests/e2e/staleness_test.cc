// Goal: no worker reads parameters that lack an update which the staleness
// bound promises, and the bound is used, not only kept. Method: SSP(3) with one
// slow worker. Each server writes what its shard thread did, in order; from its
// push events alone the test counts for each shard how many clocks of each rank
// were accepted, and holds every answered pull against these counts. What the
// server itself believes is not looked at.
#include <algorithm>
#include <array>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::staleness_test {

constexpr int kWorkers = 4;
constexpr int kSlow = 3;
constexpr int64_t kStaleness = 3;
constexpr int64_t kSteps = 300;
// Two weight matrices in pieces of at most 256 elements, two biases.
constexpr int kShards = 2 + 1 + 1 + 1;

class Staleness : public JobTest {};

TEST_F(Staleness, NoPullIsAheadOfThePushesThatItMustSee) {
  const std::string config = absl::StrReplaceAll(
      SmallJob(), {{"worker { host: \"127.0.0.1\" count: 4 }",
                    "worker { host: \"127.0.0.1\" count: 3 }\n"
                    "worker { host: \"127.0.0.1\" slowdown: 4 }"}});
  ASSERT_NE(config, SmallJob());
  Run("run", Write("job.textproto", config),
      {absl::StrCat("--mode=ssp:", kStaleness), "--set=train.trace=true"});

  std::map<int, std::array<int64_t, kWorkers>> pushes;  // By shard and rank.
  int64_t pulls = 0;
  int64_t fast_lead_max = 0;
  for (const int server : {0, 1}) {
    for (const nlohmann::json& event : ReadJsonLines(
             Path(absl::StrCat("run/trace-server-", server, ".jsonl")))) {
      const int rank = event["rank"];
      const int64_t clock = event["clock"];
      auto& accepted = pushes.try_emplace(event["shard"]).first->second;
      if (event["event"] == "push") {
        EXPECT_EQ(clock, accepted[rank]) << "out of order: " << event;
        ++accepted[rank];
      } else if (event["event"] == "pull") {
        ++pulls;
        const int64_t slowest =
            *std::min_element(accepted.begin(), accepted.end());
        EXPECT_GE(slowest, clock - kStaleness) << event;
        EXPECT_GE(accepted[rank], clock)
            << "a worker misses its own push: " << event;
        if (rank != kSlow) {
          fast_lead_max = std::max(fast_lead_max, clock - slowest);
        }
      }
    }
  }
  EXPECT_EQ(pushes.size(), kShards);
  for (const auto& [shard, accepted] : pushes) {
    for (int rank = 0; rank < kWorkers; ++rank) {
      EXPECT_EQ(accepted[rank], kSteps) << "shard " << shard;
    }
  }
  // One for each step, and one for the final model.
  EXPECT_EQ(pulls, kShards * (kSteps * kWorkers + 1));
  EXPECT_EQ(fast_lead_max, kStaleness);

  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["lead"]["max"], kStaleness);
  EXPECT_GT(summary["test_accuracy"], 0.7);
}

}  // namespace slackline::staleness_test
