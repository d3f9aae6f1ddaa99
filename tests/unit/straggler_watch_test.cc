// Goal: a worker that becomes slow is named, with its phase, within 20 of its
// steps, and a server that is or becomes slow within 20 steps or 5 s; steps
// that are only noisy, pauses, and waiting for somebody else are no alarm.
// Method: workers whose steps' times are drawn from a seed, with a barrier
// after each step as in BSP; each tells of itself once a second at a moment of
// its own, and the watch looks whenever somebody has.
#include "server/coordinator/straggler_watch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/step_phases.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"
#include "worker/session/recent_steps.h"

namespace slackline::straggler_watch_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Seconds of a worker's step but for its waiting.
using Step = std::function<run::StepPhases(int rank, Clock clock, Rng& rng)>;

// Seconds that an answer of a server takes.
using Answer = std::function<double(int server, Clock clock, Rng& rng)>;

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
      : rng_(seed),
        servers_rng_(rng_.Fork("servers")),
        step_(std::move(step)),
        workers_(workers) {
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
  // From now on servers do so many bytes per second of working, with noise, and
  // work for this share of the time.
  void SetServers(std::vector<double> speeds, std::vector<double> busy = {}) {
    speeds_ = std::move(speeds);
    busy_ = std::move(busy);
    busy_.resize(speeds_.size());
    view_.clear_server();
    for (size_t index = 0; index < speeds_.size(); ++index) {
      wire::ServerMember& member = *view_.add_server();
      member.set_index(static_cast<int32_t>(index));
      member.set_incarnation(100 + index);
    }
  }
  // Each worker gets one of each server in each step.
  void SetAnswers(Answer answer) { answer_ = std::move(answer); }
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
  void SetTrained(int rank) {
    watch_.OnTrained(10 + rank);
    Look();
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
    if (now_ >= servers_report_at_) {
      servers_report_at_ = now_ + 1;
      for (size_t index = 0; index < speeds_.size(); ++index) {
        run::ServerStats stats;
        stats.set_index(static_cast<int32_t>(index));
        run::ThreadLoad& thread = *stats.add_thread();
        thread.set_bytes_per_busy_second(speeds_[index] *
                                         std::exp(0.1 * Normal(servers_rng_)));
        thread.set_utilisation(busy_[index]);
        watch_.OnServerReport(100 + index, stats);
      }
    }
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      steps[rank].set_waiting(longest - own(steps[rank]));
      Worker& worker = workers_[rank];
      worker.recent.Add(steps[rank]);
      AddPhases(steps[rank], worker.stats.mutable_phase_seconds());
      AddAnswers(&worker.stats);
      if (now_ < worker.report_at) continue;
      worker.report_at = now_ + 1;
      worker.stats.set_clock(clock_);
      worker.recent.Put(worker.stats.mutable_recent());
      watch_.OnReport(10 + rank, worker.stats);
      Look();
    }
  }
  void AddAnswers(run::WorkerStats* stats) {
    if (answer_ == nullptr) return;
    for (int server = 0; server < static_cast<int>(speeds_.size()); ++server) {
      while (stats->answers_size() <= server)
        stats->add_answers()->set_server(stats->answers_size() - 1);
      run::ServerAnswers& answers = *stats->mutable_answers(server);
      answers.set_messages(answers.messages() + 1);
      answers.set_seconds(answers.seconds() +
                          answer_(server, clock_, servers_rng_));
    }
  }
  void Look() {
    StragglerWatch::News news = watch_.Look(view_);
    begun_.insert(begun_.end(), news.begun.begin(), news.begun.end());
    ended_.insert(ended_.end(), news.ended.begin(), news.ended.end());
  }

  Rng rng_;
  Rng servers_rng_;  // So that workers draw the same, whatever servers do.
  const Step step_;
  wire::View view_;
  StragglerWatch watch_{StragglerWatch::Options()};
  std::vector<Worker> workers_;
  std::vector<double> speeds_;  // Of servers.
  std::vector<double> busy_;    // Likewise.
  Answer answer_;
  double servers_report_at_ = 0;
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
  // Servers are unlike, and their answers as noisy as steps.
  const double busy = 0.2 * (GetParam() % 5);
  cluster.SetServers({9e8, 2e8, 1e9}, {busy, 0.3, 0.1});
  cluster.SetAnswers([=](int server, Clock, Rng& rng) {
    const double pause = rng.Uniform() < 0.01 ? 0.5 : 0;
    return scale * (0.002 * (1 + server) * std::exp(spread * Normal(rng))) +
           pause;
  });
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

TEST(StragglerWatchTest, OfOneThatHasTrainedNothingMoreIsSaid) {
  Fault fault = kFaults[2];
  fault.rank = 1;
  fault.from = 50;
  Cluster cluster(3, 1, WithFault(fault, 0.1));
  cluster.RunSteps(200);
  ASSERT_THAT(cluster.alarms(), SizeIs(1));
  cluster.SetTrained(1);
  EXPECT_THAT(cluster.alarms(), IsEmpty());
  EXPECT_THAT(cluster.ended(), IsEmpty());
}

TEST(StragglerWatchTest, TheServerThatMakesAllSlowIsNamed) {
  for (const int workers : {1, 5}) {
    Fault fault = kFaults[3];  // Pulling.
    fault.rank = -1;
    fault.from = 300;
    Cluster cluster(workers, 1, WithFault(fault, 0.1));
    cluster.SetServers({9e8, 8e8, 1e9});
    cluster.RunSteps(300);
    ASSERT_THAT(cluster.begun(), IsEmpty());
    cluster.SetServers({9e8, 2e8, 1e9});
    cluster.RunSteps(100);
    ASSERT_THAT(cluster.alarms(), SizeIs(1)) << workers;
    EXPECT_THAT(
        cluster.alarms()[0].sentence(),
        AllOf(HasSubstr(": pulling takes "), HasSubstr("; server 1 is "),
              HasSubstr("times slower than before")));
    EXPECT_THAT(cluster.begun().back(), HasSubstr("server 1 is "));
  }
}

TEST(StragglerWatchTest, NoServerIsNamedWhereItIsNotTheReason) {
  // The network is slow, and servers are as unlike as they were.
  Fault fault = kFaults[3];
  fault.rank = -1;
  fault.from = 300;
  Cluster cluster(5, 1, WithFault(fault, 0.1));
  cluster.SetServers({9e8, 2e8, 1e9});
  cluster.RunSteps(400);
  ASSERT_THAT(cluster.alarms(), SizeIs(1));
  EXPECT_THAT(cluster.alarms()[0].sentence(), Not(HasSubstr("server")));
  // A server is slower, and one worker alone computes longer.
  Fault computing = kFaults[1];
  computing.rank = 2;
  computing.from = 300;
  Cluster other(5, 1, WithFault(computing, 0.1));
  other.SetServers({9e8, 8e8, 1e9});
  other.RunSteps(300);
  other.SetServers({9e8, 2e8, 1e9});
  other.RunSteps(100);
  ASSERT_THAT(other.alarms(), SizeIs(1));
  EXPECT_THAT(other.alarms()[0].sentence(), Not(HasSubstr("server")));
}

// A step of `step` seconds of computing, of which pushing takes another
// `pushing`; from some step on a server stands still for 15 ms of each 20, and
// each step that begins in that time takes until its end.
struct Stops {
  double step = 0;
  double pushing = 0;
  Clock from = 0;
  Clock until = 1 << 20;
  // Of the steps, so many are not hit by a stop before one that is.
  Clock between() const {
    return std::max<Clock>(static_cast<Clock>(0.005 / (step + pushing)), 1);
  }
  double PushingAt(Clock clock) const {
    const bool hit =
        clock >= from && clock < until && clock % (between() + 1) == 0;
    return pushing + (hit ? 0.015 : 0);
  }
};

TEST(StragglerWatchTest, AServerThatSignalsStopMostOfTheTimeIsNamed) {
  for (const double step : {0.0003, 0.001, 0.004}) {
    SCOPED_TRACE(absl::StrCat("steps of ", step, " s"));
    const Stops stops = {.step = step,
                         .pushing = step / 4,
                         .from = static_cast<Clock>(30 / step),
                         .until = static_cast<Clock>(36 / step)};
    Cluster cluster(4, 1, [=](int, Clock clock, Rng& rng) {
      run::StepPhases phases;
      phases.set_computing(stops.step * std::exp(0.1 * Normal(rng)));
      phases.set_pushing(stops.PushingAt(clock));
      return phases;
    });
    cluster.SetServers({9e8, 9e8, 9e8});
    cluster.SetAnswers([=](int server, Clock clock, Rng& rng) {
      const double usual = stops.pushing * std::exp(0.3 * Normal(rng));
      return usual + (server == 1 ? stops.PushingAt(clock) : 0);
    });
    cluster.RunSteps(stops.from);
    ASSERT_THAT(cluster.begun(), IsEmpty());
    const double before = cluster.seconds();
    const auto of_server = [&] {
      for (const run::Straggler& alarm : cluster.alarms()) {
        if (alarm.has_server()) return true;
      }
      return false;
    };
    while (!of_server() && cluster.seconds() < before + 20) cluster.RunSteps(1);
    EXPECT_LE(cluster.seconds() - before, 5);
    ASSERT_TRUE(of_server());
    const run::Straggler alarm = cluster.alarms().back();
    EXPECT_EQ(alarm.server(), 1);
    EXPECT_FALSE(alarm.has_rank());
    EXPECT_EQ(alarm.phase(), "pushing");
    EXPECT_THAT(alarm.sentence(),
                AllOf(StartsWith("server 1 is "),
                      HasSubstr(" times slower than before since step "),
                      HasSubstr("; of a step of ")));
    EXPECT_THAT(cluster.begun(), Contains(StartsWith("server 1 is ")));
    while (of_server() && cluster.seconds() < before + 60) cluster.RunSteps(1);
    EXPECT_THAT(cluster.ended(),
                Contains("server 1 is as fast as before again"));
  }
}

// Of 4 workers and 3 servers: a step's pushing, and what an answer of server 1
// takes, `times` as long from step `from` on.
Cluster WithSlowAnswers(double step, double times, Clock from) {
  Cluster cluster(4, 1, [=](int, Clock clock, Rng& rng) {
    run::StepPhases phases;
    phases.set_computing(step);
    phases.set_pushing((clock < from ? 1 : times) * step / 2);
    return Noisy(phases, 0.1, rng);
  });
  cluster.SetServers({9e8, 9e8, 9e8});
  cluster.SetAnswers([=](int server, Clock clock, Rng& rng) {
    return (clock < from || server != 1 ? 1 : times) * step / 2 *
           std::exp(0.1 * Normal(rng));
  });
  return cluster;
}

TEST(StragglerWatchTest, AServerThatMakesLongStepsLongerIsNamedIn20Steps) {
  Cluster cluster = WithSlowAnswers(0.3, 3, 150);
  cluster.RunSteps(150);
  ASSERT_THAT(cluster.begun(), IsEmpty());
  cluster.RunSteps(20);
  EXPECT_THAT(cluster.begun(), Contains(StartsWith("server 1 is ")));
}

TEST(StragglerWatchTest, AServerThatStandsStillOnceIsNotNamed) {
  constexpr Clock kStill = 1500;
  Cluster cluster(4, 1, [](int, Clock clock, Rng& rng) {
    run::StepPhases phases;
    phases.set_computing(0.01);
    phases.set_pushing(clock == kStill ? 0.9 : 0.005);
    return Noisy(phases, 0.1, rng);
  });
  cluster.SetServers({9e8, 9e8, 9e8});
  cluster.SetAnswers([](int server, Clock clock, Rng&) {
    return server == 1 && clock == kStill + 1 ? 0.9 : 0.005;
  });
  cluster.RunSteps(2000);
  EXPECT_THAT(cluster.begun(), IsEmpty());
}

// Steps are long, so that rounds have few of them.
TEST_P(StragglerWatchSeeds, AnswersThatVaryMuchAreNoAlarm) {
  Cluster cluster(1, static_cast<uint64_t>(GetParam()),
                  [](int, Clock, Rng& rng) {
                    run::StepPhases phases;
                    phases.set_computing(0.02);
                    phases.set_pushing(0.2 * std::exp(Normal(rng)));
                    return phases;
                  });
  cluster.SetServers({9e8, 9e8, 9e8});
  cluster.SetAnswers(
      [](int, Clock, Rng& rng) { return 0.2 * std::exp(Normal(rng)); });
  cluster.RunSteps(5000);
  EXPECT_THAT(cluster.begun(), Not(Contains(StartsWith("server "))));
}

TEST(StragglerWatchTest, NoServerIsNamedWhereAllAnswerLater) {
  // With one server alone, its shard threads tell it from the network.
  for (const size_t servers : {1, 3}) {
    for (const double threads : {1, 4}) {
      SCOPED_TRACE(
          absl::StrCat(servers, " servers, ", threads, " times slower"));
      Cluster cluster = WithSlowAnswers(0.01, 3, 1500);
      cluster.SetServers(std::vector<double>(servers, 9e8));
      cluster.SetAnswers(
          [](int, Clock clock, Rng&) { return clock < 1500 ? 0.005 : 0.015; });
      cluster.RunSteps(1500);
      cluster.SetServers(std::vector<double>(servers, 9e8 / threads));
      cluster.RunSteps(500);
      bool named = false;
      for (const run::Straggler& alarm : cluster.alarms())
        named |= alarm.has_server();
      EXPECT_EQ(named, servers == 1 && threads == 4);
    }
  }
}

TEST(StragglerWatchTest, WhereShardsMoveToAServerItsPastBeginsAnew) {
  Cluster cluster = WithSlowAnswers(0.01, 3, 1500);
  for (const int server : {0, 0, 1, 2}) cluster.view().add_owner_server(server);
  cluster.RunSteps(1500);
  cluster.view().set_owner_server(0, 1);
  cluster.RunSteps(1500);
  EXPECT_THAT(cluster.begun(), Not(Contains(HasSubstr("server "))));
}

TEST(StragglerWatchTest,
     AServerThatHasAlwaysBeenSlowIsNamedIfWorkersWaitForIt) {
  struct Case {
    const char* what;
    double pushing;              // Of a step with 10 ms of computing.
    std::vector<double> speeds;  // Of servers.
    std::vector<double> busy;
    double answer;  // Of server 1.
    bool named;
  };
  const Case cases[] = {
      {"slow", 0.01, {9e8, 3e8, 8e8}, {0.2, 0.8, 0.2}, 0.01, true},
      {"as fast", 0.01, {9e8, 8e8, 8e8}, {0.2, 0.8, 0.2}, 0.01, false},
      {"has time left", 0.01, {9e8, 3e8, 8e8}, {0.2, 0.3, 0.2}, 0.01, false},
      {"others are busy, too",
       0.01,
       {9e8, 3e8, 8e8},
       {0.8, 0.8, 0.8},
       0.01,
       false},
      {"answers as others",
       0.01,
       {9e8, 3e8, 8e8},
       {0.2, 0.8, 0.2},
       0.001,
       false},
      {"nobody waits", 0.001, {9e8, 3e8, 8e8}, {0.2, 0.8, 0.2}, 0.01, false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Cluster cluster(4, 1, [&](int, Clock, Rng& rng) {
      run::StepPhases phases;
      phases.set_computing(0.01);
      phases.set_pushing(c.pushing);
      return Noisy(phases, 0.1, rng);
    });
    cluster.SetServers(c.speeds, c.busy);
    cluster.SetAnswers([&](int server, Clock, Rng&) {
      return server == 1 ? c.answer : 0.001;
    });
    while (cluster.seconds() < 5) cluster.RunSteps(1);
    if (!c.named) {
      EXPECT_THAT(cluster.alarms(), IsEmpty());
      continue;
    }
    ASSERT_THAT(cluster.alarms(), SizeIs(1));
    EXPECT_EQ(cluster.alarms()[0].server(), 1);
    EXPECT_FALSE(cluster.alarms()[0].than_before());
    EXPECT_THAT(cluster.alarms()[0].sentence(),
                AllOf(StartsWith("server 1 is 10.0 times slower than the "
                                 "others since step "),
                      HasSubstr("in a second of working its shard threads")));
  }
}

TEST(StragglerWatchTest, AServerThatIsGoneIsNoLongerSlow) {
  Cluster cluster = WithSlowAnswers(0.01, 3, 1500);
  cluster.RunSteps(2000);
  ASSERT_THAT(cluster.begun(), Contains(StartsWith("server 1 is ")));
  // Its shards have other owners.
  cluster.view().add_owner_server(0);
  cluster.view().mutable_server()->DeleteSubrange(1, 1);
  cluster.RunSteps(20);
  EXPECT_THAT(cluster.ended(), Not(Contains(HasSubstr("server 1"))));
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

}  // namespace slackline::straggler_watch_test
