// Goal: a worker that becomes slow is named, with its phase, within 20 of its
// steps; steps that are only noisy, pauses, and waiting for somebody else are
// no alarm. Method: workers whose steps' times are drawn from a seed, with a
// barrier after each step as in BSP; each tells of itself once a second at a
// moment of its own, and the watch looks whenever somebody has.
#include "server/coordinator/straggler_watch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"
#include "worker/session/recent_steps.h"

namespace slackline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Seconds of a worker's step but for its waiting.
using Step = std::function<run::StepPhases(int rank, Clock clock, Rng& rng)>;

// 6 ms of loading, 50 of computing, 2 of pushing, 3 of pulling.
run::StepPhases UsualStep() {
  run::StepPhases step;
  step.set_loading(0.006);
  step.set_computing(0.05);
  step.set_pushing(0.002);
  step.set_pulling(0.003);
  return step;
}

double Normal(Rng& rng) {
  return std::sqrt(-2 * std::log(1 - rng.Uniform())) *
         std::cos(2 * M_PI * rng.Uniform());
}

// Each phase of it is drawn anew, lognormal with this spread; and now and then
// there is a pause.
run::StepPhases Noisy(run::StepPhases step, double spread, Rng& rng) {
  const auto noise = [&] { return std::exp(spread * Normal(rng)); };
  step.set_loading(step.loading() * noise());
  step.set_computing(step.computing() * noise());
  step.set_pushing(step.pushing() * noise());
  step.set_pulling(step.pulling() * noise());
  if (rng.Uniform() < 0.01) step.set_computing(step.computing() + 0.5);
  return step;
}

class Cluster {
 public:
  Cluster(int workers, uint64_t seed, Step step)
      : rng_(seed), step_(std::move(step)), workers_(workers) {
    view_.set_steps_total(1 << 20);
    view_.set_state(wire::RUNNING);
    SetMode("bsp");
    for (int rank = 0; rank < workers; ++rank) {
      wire::WorkerMember& member = *view_.add_worker();
      member.set_rank(rank);
      member.set_incarnation(10 + rank);
      // Their heartbeats are at moments of their own.
      workers_[rank].report_at = rng_.Uniform();
    }
  }
  void SetMode(absl::string_view mode) {
    view_.clear_phase();
    *view_.add_phase()->mutable_mode() = ModeOf(mode);
  }
  wire::View& view() { return view_; }
  StragglerWatch& watch() { return watch_; }
  double seconds() const { return now_; }
  const std::vector<std::string>& begun() const { return begun_; }
  const std::vector<std::string>& ended() const { return ended_; }
  std::vector<run::Straggler> alarms() const { return watch_.alarms(); }

  // Steps of all until there is an alarm, at most so many. Returns how many
  // were done.
  Clock RunUntilAlarm(Clock steps_max) {
    const Clock from = clock_;
    while (clock_ - from < steps_max && alarms().empty()) DoStep();
    return clock_ - from;
  }
  void RunSteps(Clock steps) {
    for (const Clock end = clock_ + steps; clock_ < end;) DoStep();
  }

 private:
  struct Worker {
    run::WorkerStats stats;
    RecentSteps recent;
    double report_at = 0;
  };
  // With the barrier behind it; who has something to say does so at its time.
  void DoStep() {
    std::vector<run::StepPhases> steps;
    double longest = 0;
    const auto own = [](const run::StepPhases& step) {
      return step.loading() + step.computing() + step.pushing() +
             step.pulling();
    };
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      steps.push_back(step_(static_cast<int>(rank), clock_, rng_));
      longest = std::max(longest, own(steps.back()));
    }
    now_ += longest;
    ++clock_;
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      steps[rank].set_waiting(longest - own(steps[rank]));
      Worker& worker = workers_[rank];
      worker.recent.Add(steps[rank]);
      if (now_ < worker.report_at) continue;
      worker.report_at = now_ + 1;
      worker.stats.set_clock(clock_);
      worker.recent.Put(worker.stats.mutable_recent());
      watch_.OnReport(10 + rank, worker.stats);
      StragglerWatch::News news = watch_.Look(view_);
      begun_.insert(begun_.end(), news.begun.begin(), news.begun.end());
      ended_.insert(ended_.end(), news.ended.begin(), news.ended.end());
    }
  }

  Rng rng_;
  const Step step_;
  wire::View view_;
  StragglerWatch watch_{StragglerWatch::Options()};
  std::vector<Worker> workers_;
  double now_ = 0;
  Clock clock_ = 0;
  std::vector<std::string> begun_;
  std::vector<std::string> ended_;
};

// The slow phase of one worker, from some step on.
struct Fault {
  int rank = 0;
  Clock from = 0;
  Clock until = 1 << 20;
  void (*slow_down)(run::StepPhases*) = nullptr;
  const char* phase = "";
};

Step WithFault(const Fault& fault, double spread, double scale = 1) {
  return [=](int rank, Clock clock, Rng& rng) {
    run::StepPhases step = UsualStep();
    if ((rank == fault.rank || fault.rank < 0) && clock >= fault.from &&
        clock < fault.until) {
      fault.slow_down(&step);
    }
    step = Noisy(step, spread, rng);
    step.set_loading(scale * step.loading());
    step.set_computing(scale * step.computing());
    step.set_pushing(scale * step.pushing());
    step.set_pulling(scale * step.pulling());
    return step;
  };
}

// Each makes the step of 61 ms take 122 ms.
constexpr Fault kFaults[] = {
    {.slow_down = [](run::StepPhases* s) { s->set_loading(0.067); },
     .phase = "loading"},
    {.slow_down = [](run::StepPhases* s) { s->set_computing(0.111); },
     .phase = "computing"},
    {.slow_down = [](run::StepPhases* s) { s->set_pushing(0.063); },
     .phase = "pushing"},
    {.slow_down = [](run::StepPhases* s) { s->set_pulling(0.064); },
     .phase = "pulling"},
};

class StragglerWatchSeeds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, StragglerWatchSeeds, ::testing::Range(0, 100));

TEST_P(StragglerWatchSeeds, NoisyEvenStepsAreNoAlarm) {
  const auto seed = static_cast<uint64_t>(GetParam());
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  const int workers = 1 + GetParam() % 8;
  // From hardly any noise to steps that often take twice as long as others.
  const double spread = 0.1 * (1 + GetParam() % 6);
  const double scale = GetParam() % 2 == 0 ? 1 : 0.1;
  Cluster cluster(workers, seed, WithFault({.from = 1 << 20}, spread, scale));
  cluster.RunSteps(1000);
  EXPECT_THAT(cluster.begun(), IsEmpty());
}

TEST_P(StragglerWatchSeeds, AWorkerThatBecomesTwiceAsSlowIsNamedIn20Steps) {
  Rng rng(static_cast<uint64_t>(GetParam()));
  const int workers = 2 + GetParam() % 7;
  Fault fault = kFaults[GetParam() % 4];
  fault.rank = static_cast<int>(rng.Uniform() * workers);
  fault.from = 100 + static_cast<Clock>(rng.Uniform() * 200);
  SCOPED_TRACE(absl::StrCat("seed ", GetParam(), ", worker ", fault.rank,
                            " from step ", fault.from));
  // Steps that are long beside heartbeats, so that 20 of them count; or short.
  const bool are_long = GetParam() % 3 > 0;
  Cluster cluster(workers, static_cast<uint64_t>(GetParam()),
                  WithFault(fault, 0.1, are_long ? 4 : 0.2));
  cluster.RunSteps(fault.from);
  ASSERT_THAT(cluster.begun(), IsEmpty());
  const double before = cluster.seconds();
  const Clock steps = cluster.RunUntilAlarm(1000);
  if (are_long) {
    EXPECT_LE(steps, 20);
  } else {
    EXPECT_LE(cluster.seconds() - before, 3);
  }
  ASSERT_THAT(cluster.alarms(), SizeIs(1));
  const run::Straggler alarm = cluster.alarms()[0];
  EXPECT_EQ(alarm.rank(), fault.rank);
  EXPECT_EQ(alarm.phase(), fault.phase);
  EXPECT_FALSE(alarm.than_before());
  EXPECT_NEAR(static_cast<double>(alarm.since_clock()),
              static_cast<double>(fault.from), are_long ? 12 : 80);
}

TEST(StragglerWatchTest, SaysHowMuchWhereAndWhatModeWouldHelpOnce) {
  Fault fault = kFaults[0];
  fault.rank = 2;
  fault.from = 300;
  fault.until = 500;
  Cluster cluster(4, 1, WithFault(fault, 0.02));
  cluster.RunSteps(450);
  EXPECT_THAT(
      cluster.begun(),
      ElementsAre(
          AllOf(StartsWith("worker 2 is "),
                HasSubstr(" times slower than the others since step "),
                HasSubstr(": loading takes "), HasSubstr(", theirs 6"),
                HasSubstr("in bsp the others wait "),
                HasSubstr("; backup:1 or asp would not wait, and do up to "))));
  ASSERT_THAT(cluster.alarms(), SizeIs(1));
  const run::Straggler alarm = cluster.alarms()[0];
  EXPECT_NEAR(alarm.times(), 2, 0.1);
  EXPECT_NEAR(alarm.seconds(), 0.067, 0.004);
  EXPECT_NEAR(alarm.measure_seconds(), 0.006, 0.001);
  wire::StatusReply status;
  cluster.watch().PutStatus(&status);
  ASSERT_EQ(status.slowness_size(), 4);
  EXPECT_NEAR(status.slowness(2).relative(), 2, 0.1);
  EXPECT_NEAR(status.slowness(2).relative_phase().loading(), 11, 1);
  EXPECT_NEAR(status.slowness(2).individual(), 2, 0.1);
  EXPECT_NEAR(status.slowness(1).relative(), 1, 0.1);
  EXPECT_THAT(cluster.ended(), IsEmpty());
  cluster.RunSteps(150);
  EXPECT_THAT(cluster.alarms(), IsEmpty());
  EXPECT_THAT(cluster.begun(), SizeIs(1));
  EXPECT_THAT(cluster.ended(),
              ElementsAre("worker 2 is even with the others again"));
}

TEST(StragglerWatchTest, GivesNoAdviceWhereNobodyWaits) {
  Fault fault = kFaults[1];
  fault.from = 100;
  Cluster cluster(3, 1, WithFault(fault, 0.02));
  cluster.SetMode("asp");
  EXPECT_LE(cluster.RunUntilAlarm(300), 140);
  ASSERT_THAT(cluster.alarms(), SizeIs(1));
  EXPECT_EQ(cluster.alarms()[0].advice(), "");
}

TEST(StragglerWatchTest, AllWorkersThatBecomeSlowTogetherAreOneAlarm) {
  Fault fault = kFaults[3];
  fault.rank = -1;
  fault.from = 300;
  Cluster cluster(5, 1, WithFault(fault, 0.1));
  cluster.RunSteps(300);
  ASSERT_THAT(cluster.begun(), IsEmpty());
  cluster.RunSteps(100);
  EXPECT_THAT(cluster.begun(),
              ElementsAre(AllOf(StartsWith("all workers are "),
                                HasSubstr("slower than before since step "),
                                HasSubstr(": pulling takes "))));
  // That is how they are.
  cluster.RunSteps(1100);
  EXPECT_THAT(cluster.ended(),
              ElementsAre(StartsWith("all workers are measured by the last")));
  EXPECT_THAT(cluster.alarms(), IsEmpty());
  EXPECT_THAT(cluster.begun(), SizeIs(1));
}

TEST(StragglerWatchTest, AWorkerAloneIsComparedWithItsPast) {
  Fault fault = kFaults[0];
  fault.from = 300;
  fault.until = 400;
  Cluster cluster(1, 1, WithFault(fault, 0.1, 4));
  cluster.RunSteps(300);
  EXPECT_LE(cluster.RunUntilAlarm(100), 20);
  EXPECT_THAT(cluster.begun(),
              ElementsAre(AllOf(StartsWith("worker 0 is "),
                                HasSubstr("slower than before"),
                                HasSubstr(" before"))));
  cluster.RunSteps(200);
  EXPECT_THAT(cluster.ended(),
              ElementsAre("worker 0 is as fast as before again"));
}

TEST(StragglerWatchTest, InANewPhaseOfTheModeThePastBeginsAnew) {
  Fault fault = kFaults[3];
  fault.rank = -1;
  fault.from = 300;
  Cluster cluster(3, 1, WithFault(fault, 0.1));
  cluster.RunSteps(300);
  *cluster.view().add_phase()->mutable_mode() = ModeOf("asp");
  cluster.view().set_entered(1);
  cluster.RunSteps(300);
  EXPECT_THAT(cluster.begun(), IsEmpty());
}

TEST(StragglerWatchTest, APauseIsNoSlowWorker) {
  Cluster cluster(4, 1, [](int rank, Clock clock, Rng& rng) {
    run::StepPhases step = Noisy(UsualStep(), 0.1, rng);
    // An evaluation of 20 s.
    if (rank == 0 && clock % 100 == 99) step.set_computing(20);
    return step;
  });
  cluster.RunSteps(1000);
  EXPECT_THAT(cluster.begun(), IsEmpty());
}

TEST(StragglerWatchTest, OfOneThatIsGoneOrDoneNothingMoreIsSaid) {
  Fault fault = kFaults[2];
  fault.rank = 1;
  fault.from = 50;
  Cluster cluster(3, 1, WithFault(fault, 0.1));
  cluster.RunSteps(200);
  ASSERT_THAT(cluster.alarms(), SizeIs(1));
  cluster.view().mutable_worker(1)->set_done(true);
  cluster.RunSteps(50);
  EXPECT_THAT(cluster.alarms(), IsEmpty());
  EXPECT_THAT(cluster.ended(), IsEmpty());
}

TEST(RecentStepsTest, MeansAreWithoutTheTwoLongest) {
  RecentSteps steps;
  run::RecentSteps recent;
  steps.Put(&recent);
  EXPECT_EQ(recent.count(), 0);
  run::StepPhases step;
  step.set_computing(0.5);
  steps.Add(step);
  steps.Put(&recent);
  EXPECT_EQ(recent.count(), 1);
  EXPECT_EQ(recent.mean().computing(), 0.5);
  for (int i = 0; i < 20; ++i) {
    step.Clear();
    step.set_loading(i == 3 || i == 7 ? 100 : 1);
    step.set_waiting(i < 3 ? 18 : 0);
    steps.Add(step);
  }
  steps.Put(&recent);
  EXPECT_EQ(recent.steps(), 21);
  EXPECT_EQ(recent.count(), 20);
  EXPECT_NEAR(recent.mean().loading(), 1, 1e-9);
  EXPECT_NEAR(recent.mean().waiting(), 1, 1e-9);
  EXPECT_EQ(recent.mean().computing(), 0);
  EXPECT_NEAR(recent.deviation(), 0, 1e-6);
}

}  // namespace
}  // namespace slackline
