// Goal: the simulation notices when a coordinator does not keep what the one
// after it has to know.
// Method: everything under one kind of key is never kept, in one run after the
// other, until some invariant is broken. That no user's call is carried out
// twice is in coordinator_core_recovery_test.
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/sim/sim_world.h"

namespace slackline::sim {
namespace {

// Some 100 are enough today.
constexpr uint64_t kSeedsMax = 2000;

struct Case {
  std::string name;
  std::string key;  // Or what keys begin with, up to '/'.
  Scenario (*scenario)(uint64_t seed);
};
void PrintTo(const Case& forgotten, std::ostream* out) {
  *out << forgotten.key;
}

Scenario Plain(uint64_t seed) {
  Scenario scenario = Scenario::Random(seed);
  Reality reality;
  reality.coordinators = reality.replicas = true;
  scenario.Widen(reality);
  return scenario;
}

Scenario WithModes(uint64_t seed) {
  Scenario scenario = Scenario::RandomModes(seed);
  Reality reality;
  reality.coordinators = true;
  scenario.Widen(reality);
  return scenario;
}

// How many runs it took; 0: nothing was noticed.
uint64_t NoticedAfter(Scenario (*scenario)(uint64_t seed),
                      const std::function<void(SimCoordinator*)>& tamper,
                      std::optional<Violation>* what) {
  for (uint64_t seed = 1; seed <= kSeedsMax; ++seed) {
    SimWorld world(scenario(seed), /*keep_log=*/false);
    world.on_coordinator_started = tamper;
    const RunReport report = world.Run();
    if (!report.violation.has_value()) continue;
    *what = report.violation;
    return seed;
  }
  return 0;
}

class ForgottenStateTest : public ::testing::TestWithParam<Case> {};

TEST_P(ForgottenStateTest, IsNoticed) {
  const std::string& key = GetParam().key;
  const bool all_of_kind = absl::EndsWith(key, "/");
  const auto forget = [&](std::vector<StateChange>* changes) {
    std::erase_if(*changes, [&](const StateChange& change) {
      return all_of_kind ? absl::StartsWith(change.key, key)
                         : change.key == key;
    });
  };
  std::optional<Violation> what;
  const uint64_t runs = NoticedAfter(
      GetParam().scenario,
      [&](SimCoordinator* coordinator) { coordinator->tamper_state = forget; },
      &what);
  ASSERT_GT(runs, 0u) << "nobody misses '" << key << "'";
  RecordProperty("runs", absl::StrCat(runs));
  RecordProperty(
      "what", absl::StrCat(InvariantName(what->invariant), ": ", what->what));
}

// As by a disk that says too early that it has written.
TEST(ForgottenEndTest, ABatchThatTheDiskHasLostIsNoticed) {
  std::optional<Violation> what;
  const auto tamper = [](SimCoordinator* coordinator) {
    coordinator->tamper_log = [](std::string* log) { log->pop_back(); };
  };
  ASSERT_GT(NoticedAfter(Plain, tamper, &what), 0u);
  EXPECT_EQ(what->invariant, Invariant::kCoordinator);
}

INSTANTIATE_TEST_SUITE_P(
    Keys, ForgottenStateTest,
    ::testing::Values(
        Case{"View", "view", Plain}, Case{"Change", "change/", Plain},
        Case{"Model", "model", Plain}, Case{"Member", "member/", Plain},
        Case{"Members", "members", Plain}, Case{"Modes", "modes", WithModes},
        Case{"Move", "move/", Plain}, Case{"Moves", "moves", Plain},
        Case{"Checkpoints", "checkpoints", Plain},
        Case{"Copies", "copies", Plain}, Case{"Programs", "programs", Plain},
        Case{"Grants", "grants", Plain}, Case{"Grant", "grant/", Plain},
        Case{"Gathers", "gathers", Plain},
        Case{"GatherAt", "gather/at/", Plain},
        Case{"GatherOf", "gather/of/", Plain},
        Case{"Outcome", "outcome", Plain}, Case{"Totals", "totals", Plain}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace slackline::sim
