// Goal: a job with given delays goes on from a checkpoint of the same one, and
// from no other, with a sentence that says in what they differ. Method: views
// and manifests written out by hand.
#include "server/coordinator/job_delays.h"

#include <functional>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"

namespace slackline::job_delays_test {

using ::testing::HasSubstr;
using ::testing::SizeIs;

wire::View ViewOf(const std::string& delays, Clock first = 0) {
  wire::View view;
  view.set_steps_total(40);
  view.set_steps_per_epoch(10);
  if (first > 0) *view.add_phase()->mutable_mode() = ModeOf("allreduce");
  wire::Phase& phase = *view.add_phase();
  phase.set_from(first);
  if (delays.empty()) {
    *phase.mutable_mode() = ModeOf("asp");
  } else {
    phase.mutable_mode()->mutable_delays()->set_given(delays);
  }
  return view;
}

JobDelays::Options OptionsOf(const std::string& delays) {
  JobDelays::Options options{.workers = 2, .seed = 7};
  if (delays.empty()) return options;
  const absl::StatusOr<DelaySource> source = DelaySource::Load(delays);
  EXPECT_TRUE(source.ok()) << source.status();
  options.source = std::make_shared<const DelaySource>(*source);
  return options;
}

checkpoint::Manifest ManifestOf(const std::string& delays, Clock first = 0) {
  checkpoint::Manifest manifest;
  manifest.set_workers(2);
  manifest.set_seed(7);
  manifest.set_steps_total(40);
  manifest.set_steps_per_epoch(10);
  JobDelays(OptionsOf(delays)).Put(ViewOf(delays, first), &manifest);
  return manifest;
}

std::string WhyNot(const std::string& delays,
                   const checkpoint::Manifest& manifest, Clock first = 0) {
  JobDelays::Options options = OptionsOf(delays);
  options.resume = std::make_shared<const checkpoint::Manifest>(manifest);
  return JobDelays(options).WhyNotResumed(ViewOf(delays, first));
}

TEST(JobDelays, ThePlanIsThatOfTheViewAndMadeOnce) {
  JobDelays delays(OptionsOf("uniform:3"));
  const wire::View view = ViewOf("uniform:3", /*first=*/1);
  const absl::StatusOr<const DelayPlan*> plan = delays.PlanOf(view);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->workers(), 2);
  EXPECT_EQ((*plan)->first(), 1);
  EXPECT_EQ((*plan)->steps(), 40);
  EXPECT_EQ(*delays.PlanOf(view), *plan);
  JobDelays none(OptionsOf(""));
  EXPECT_EQ(*none.PlanOf(ViewOf("")), nullptr);
}

TEST(JobDelays, AManifestSaysWhichTheyAre) {
  const checkpoint::Manifest manifest = ManifestOf("uniform:3", 1);
  EXPECT_EQ(manifest.delays().given(), "uniform:3");
  EXPECT_EQ(manifest.delays().sha256(), "");
  EXPECT_EQ(manifest.delays().first(), 1);
  EXPECT_FALSE(ManifestOf("").has_delays());
}

TEST(JobDelays, TheSameJobGoesOn) {
  EXPECT_EQ(WhyNot("uniform:3", ManifestOf("uniform:3")), "");
  EXPECT_EQ(WhyNot("uniform:3", ManifestOf("uniform:3", 1), 1), "");
  EXPECT_EQ(WhyNot("", ManifestOf("")), "");
}

TEST(JobDelays, AnotherJobIsToldInWhatItDiffers) {
  EXPECT_THAT(WhyNot("uniform:3", ManifestOf("")),
              HasSubstr("it is of a job without"));
  EXPECT_THAT(WhyNot("", ManifestOf("uniform:3")),
              HasSubstr("of a job with given delays, \"uniform:3\""));
  EXPECT_THAT(WhyNot("uniform:3", ManifestOf("uniform:2")),
              HasSubstr("the delays \"uniform:2\", and the job has "
                        "\"uniform:3\"; give it the same"));
  const struct {
    std::function<void(checkpoint::Manifest&)> change;
    const char* why;
  } cases[] = {
      {[](auto& there) { there.set_workers(3); },
       "it has 3 workers, and the job has 2"},
      {[](auto& there) { there.set_steps_total(41); },
       "it has 41 steps, and the job has 40"},
      {[](auto& there) { there.set_steps_per_epoch(20); },
       "it has 20 steps in an epoch, and the job has 10"},
      {[](auto& there) { there.set_seed(8); },
       "it has 8 as train.seed, and the job has 7"},
      {[](auto& there) { there.mutable_delays()->set_sha256("abc"); },
       "recorded with sha256 abc"},
      {[](auto& there) { there.mutable_delays()->set_first(1); },
       "it has 1 as the clock of its first turns, and the job has 0"},
      {[](auto& there) { there.mutable_delays()->add_stale("gap_aware { }"); },
       "its rules for stale gradients are stale { gap_aware { } }, and those "
       "of the job none; give sync { stale } as it was"},
  };
  for (const auto& [change, why] : cases) {
    checkpoint::Manifest there = ManifestOf("uniform:3");
    change(there);
    EXPECT_THAT(WhyNot("uniform:3", there), HasSubstr(why));
  }
}

TEST(JobDelays, TheRulesForStaleGradientsAreTheSame) {
  JobDelays::Options options = OptionsOf("uniform:3");
  options.stale.Add()->mutable_gap_aware();
  checkpoint::Manifest manifest = ManifestOf("uniform:3");
  JobDelays(options).Put(ViewOf("uniform:3"), &manifest);
  EXPECT_THAT(manifest.delays().stale(), SizeIs(1));
  options.resume = std::make_shared<const checkpoint::Manifest>(manifest);
  EXPECT_EQ(JobDelays(options).WhyNotResumed(ViewOf("uniform:3")), "");
  options.stale.Mutable(0)->set_table("bias");
  EXPECT_THAT(JobDelays(options).WhyNotResumed(ViewOf("uniform:3")),
              HasSubstr("and those of the job stale { "));
}

// Its first step, by all-reduce, is not made again.
TEST(JobDelays, AJobThatBeganWithAWorkersValuesIsKnown) {
  JobDelays::Options options = OptionsOf("uniform:3");
  EXPECT_FALSE(JobDelays(options).BeganWithWorker());
  for (const Clock first : {0, 1}) {
    options.resume = std::make_shared<const checkpoint::Manifest>(
        ManifestOf("uniform:3", first));
    EXPECT_EQ(JobDelays(options).BeganWithWorker(), first == 1);
  }
}

}  // namespace slackline::job_delays_test
