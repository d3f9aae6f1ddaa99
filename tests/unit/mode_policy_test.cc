// Goal: the policy changes the mode when one worker is slow for long, or no
// longer is, and never because of noise. Method: workers whose step times are
// given, heard at their heartbeats on virtual time.
#include "server/coordinator/mode_policy.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/sync/phases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"

namespace slackline::mode_policy_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ModePolicyTest : public ::testing::Test {
 protected:
  ModePolicyTest() { Use(3); }

  void Use(int workers) {
    policy_.emplace(options_);
    workers_.clear();
    partial_.assign(workers, 0);
    for (int rank = 0; rank < workers; ++rank) {
      workers_.push_back(
          {.rank = rank, .incarnation = static_cast<Incarnation>(10 + rank)});
    }
  }

  // Looks at the policy, and follows it. Seconds since the start, the mode and
  // the reason of each decision.
  void Look() {
    const std::optional<ModePolicy::Decision> decision =
        policy_->Look(workers_, mode_, may_change_, now_);
    if (!decision.has_value()) return;
    mode_ = decision->mode;
    decided_.push_back(
        absl::StrCat(absl::ToInt64Milliseconds(now_ - absl::UnixEpoch()), " ",
                     ModeText(mode_)));
    reason_ = decision->reason;
  }

  // Each worker computes for so long per step, and nothing else; each is heard
  // once in a heartbeat, and the policy looks whenever it wants to.
  void Pass(absl::Duration time, const std::vector<double>& step_ms) {
    const absl::Time end = now_ + time;
    while (now_ < end) {
      const absl::Time next = std::min(now_ + options_.heartbeat, end);
      if (policy_->NextLook() > now_ && policy_->NextLook() < next) {
        const absl::Time before = now_;
        now_ = policy_->NextLook();
        Look();
        now_ = before;
      }
      const double passed_ms = absl::ToDoubleMilliseconds(next - now_);
      now_ = next;
      for (size_t i = 0; i < workers_.size(); ++i) {
        const double steps = partial_[i] + passed_ms / step_ms.at(i);
        partial_[i] = steps - std::floor(steps);
        workers_[i].clock += static_cast<Clock>(std::floor(steps));
        workers_[i].compute_seconds += std::floor(steps) * step_ms.at(i) / 1000;
        Look();
      }
    }
  }

  ModePolicy::Options options_{.config = {},
                               .heartbeat = absl::Milliseconds(250)};
  std::optional<ModePolicy> policy_;
  std::vector<ModePolicy::Worker> workers_;
  std::vector<double> partial_;  // Of the step that each is at.
  sync::Mode mode_ = ModeOf("allreduce");
  bool may_change_ = true;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::string> decided_;
  std::string reason_;
};

TEST_F(ModePolicyTest, AStragglerChangesAllReduceToSsp) {
  Pass(absl::Seconds(5), {7.1, 7.1, 21.3});
  ASSERT_THAT(decided_, ElementsAre(HasSubstr(" ssp:3")));
  EXPECT_THAT(reason_,
              HasSubstr("rank 2 takes 21.3 ms a step, the median worker 7.1 ms "
                        "(3.00 times, bound 1.5) for 2.0 s"));
  Pass(absl::Seconds(60), {7.1, 7.1, 21.3});
  EXPECT_EQ(decided_.size(), 1u) << "and it stays";
}

TEST_F(ModePolicyTest, EvenWorkersChangeSspToAllReduce) {
  mode_ = ModeOf("ssp:3");
  Pass(absl::Seconds(5), {7, 7.2, 7.7});
  EXPECT_THAT(decided_, ElementsAre(HasSubstr(" allreduce")));
  EXPECT_THAT(reason_, HasSubstr("(1.07 times, bound 1.2) for 2.0 s"));
  Pass(absl::Seconds(60), {7, 7.2, 7.7});
  EXPECT_EQ(decided_.size(), 1u);
}

TEST_F(ModePolicyTest, AStragglerThatRecoversBringsAllReduceBack) {
  Pass(absl::Seconds(20), {7, 7, 28});
  Pass(absl::Seconds(20), {7, 7, 7});
  Pass(absl::Seconds(20), {7, 28, 7});
  EXPECT_THAT(decided_, ElementsAre(HasSubstr(" ssp:3"), HasSubstr("allreduce"),
                                    HasSubstr(" ssp:3")));
}

TEST_F(ModePolicyTest, NothingIsSaidBeforeTheBoundHasHeldForSoLong) {
  options_.config.set_hold_ms(3000);
  Use(3);
  // The first figures come with the second heartbeat.
  Pass(absl::Milliseconds(3450), {7, 7, 21});
  EXPECT_THAT(decided_, IsEmpty());
  Pass(absl::Milliseconds(150), {7, 7, 21});
  EXPECT_THAT(decided_, ElementsAre("3500 ssp:3"));
}

TEST_F(ModePolicyTest, AShortStumbleIsForgiven) {
  Pass(absl::Seconds(10), {7, 7, 7});
  for (int i = 0; i < 10; ++i) {
    Pass(absl::Milliseconds(500), {7, 7, 40});
    Pass(absl::Seconds(5), {7, 7, 7});
  }
  EXPECT_THAT(decided_, IsEmpty());
}

TEST_F(ModePolicyTest, OfTwoWorkersTheSlowOneIsComparedWithTheFastOne) {
  Use(2);
  Pass(absl::Seconds(5), {7, 14});
  EXPECT_THAT(decided_, ElementsAre(HasSubstr("ssp:3")));
  EXPECT_THAT(reason_, HasSubstr("rank 1 takes 14.0 ms a step, the median "
                                 "worker 7.0 ms (2.00 times"));
}

TEST_F(ModePolicyTest, ManySlowWorkersAreNoStragglers) {
  Use(4);
  Pass(absl::Seconds(20), {7, 21, 21, 21});
  EXPECT_THAT(decided_, IsEmpty());
}

TEST_F(ModePolicyTest, OneWorkerHasNobodyToBeComparedWith) {
  Use(1);
  Pass(absl::Seconds(20), {7});
  EXPECT_THAT(decided_, IsEmpty());
  EXPECT_THAT(policy_->Text(now_), HasSubstr("one worker only"));
}

TEST_F(ModePolicyTest, StepsLongerThanTheHoldAreMeasuredAllTheSame) {
  Pass(absl::Seconds(30), {4000, 4000, 12000});
  EXPECT_THAT(decided_, IsEmpty()) << "too few steps";
  Pass(absl::Seconds(60), {4000, 4000, 12000});
  EXPECT_THAT(decided_, ElementsAre(HasSubstr("ssp:3")));
}

TEST_F(ModePolicyTest, AWorkerThatIsNotHeardOfResetsTheHold) {
  options_.config.set_hold_ms(10000);
  Use(3);
  Pass(absl::Seconds(9), {7, 7, 21});
  EXPECT_THAT(policy_->Text(now_), HasSubstr("has spoken for ssp:3 for"));
  now_ += absl::Seconds(11);  // Nobody was heard.
  Look();
  EXPECT_THAT(decided_, IsEmpty());
  EXPECT_THAT(policy_->Text(now_), HasSubstr("not known yet"));
  Pass(absl::Seconds(9), {7, 7, 21});
  EXPECT_THAT(decided_, IsEmpty());
  Pass(absl::Seconds(3), {7, 7, 21});
  EXPECT_THAT(decided_, ElementsAre(HasSubstr("ssp:3")));
}

TEST_F(ModePolicyTest, AChangeUnderWayResetsTheHold) {
  for (int i = 0; i < 10; ++i) {
    may_change_ = true;
    Pass(absl::Milliseconds(1800), {7, 7, 21});
    may_change_ = false;
    Pass(absl::Milliseconds(500), {7, 7, 21});
  }
  EXPECT_THAT(decided_, IsEmpty());
  EXPECT_EQ(policy_->NextLook(), absl::InfiniteFuture());
  may_change_ = true;
  Pass(absl::Milliseconds(2500), {7, 7, 21});
  EXPECT_THAT(decided_, ElementsAre(HasSubstr("ssp:3")));
}

TEST_F(ModePolicyTest, AnotherLifeOfARankIsMeasuredAnew) {
  Pass(absl::Milliseconds(1500), {7, 7, 21});
  workers_[2].incarnation = 99;
  workers_[2].clock = 0;  // Not yet where it will join.
  workers_[2].compute_seconds = 0;
  Look();
  workers_[2].clock = 210;
  workers_[2].compute_seconds = 0.007;
  Pass(absl::Seconds(10), {7, 7, 7});
  EXPECT_THAT(decided_, IsEmpty());
}

TEST_F(ModePolicyTest, BspIsLeftAndAspOnlyForAllReduce) {
  mode_ = ModeOf("asp");
  Pass(absl::Seconds(10), {7, 7, 21});
  EXPECT_THAT(decided_, IsEmpty());
  mode_ = ModeOf("bsp");
  Pass(absl::Seconds(5), {7, 7, 21});
  EXPECT_THAT(decided_, ElementsAre(HasSubstr("ssp:3")));
  mode_ = ModeOf("bsp");
  Pass(absl::Seconds(10), {7, 7, 7});
  EXPECT_TRUE(mode_.has_allreduce());
}

TEST_F(ModePolicyTest, ItsTextSaysWhatItSeesAndWhatItIsAboutToDo) {
  EXPECT_EQ(policy_->Text(now_), "has not measured yet");
  Pass(absl::Milliseconds(1500), {7, 7, 7});
  EXPECT_EQ(policy_->Text(now_),
            "rank 2 takes 7.0 ms a step, the median worker 7.0 ms (1.00 times; "
            "ssp:3 above 1.5, allreduce up to 1.2, for 2.0 s)");
  Pass(absl::Milliseconds(2000), {7, 7, 35});
  EXPECT_THAT(policy_->Text(now_), HasSubstr("; has spoken for ssp:3 for "));
}

// Goal: no noise between the two bounds, nor bursts beyond one that do not
// last, changes the mode. Method: a seed draws the workers, how slow each is in
// the mean, and how much each heartbeat's steps differ from that.
class ModePolicyNoiseTest : public ModePolicyTest,
                            public ::testing::WithParamInterface<uint64_t> {};

TEST_P(ModePolicyNoiseTest, NoiseBetweenTheBoundsNeverChangesTheMode) {
  Rng rng(GetParam());
  SCOPED_TRACE(absl::StrCat("seed ", GetParam()));
  const int count = static_cast<int>(rng.Between(2, 8));
  options_.heartbeat = absl::Milliseconds(rng.Between(50, 1000));
  options_.config.set_hold_ms(static_cast<int32_t>(rng.Between(500, 4000)));
  Use(count);
  mode_ = ModeOf(rng.Chance(0.5) ? "allreduce" : "ssp:3");
  const double base_ms = 2 + 20 * rng.Uniform();
  // The slowest is 1.21 to 1.49 times as slow as the fastest, at every moment:
  // beyond the one bound, short of the other.
  const double low = 1.22, high = 1.48;
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> step_ms(count, base_ms);
    step_ms.back() = base_ms * (low + (high - low) * rng.Uniform());
    Pass(options_.heartbeat, step_ms);
  }
  EXPECT_THAT(decided_, IsEmpty()) << reason_;
}

TEST_P(ModePolicyNoiseTest, AStragglerIsFoundInNoiseAndTheModeChangesOnce) {
  Rng rng(GetParam());
  SCOPED_TRACE(absl::StrCat("seed ", GetParam()));
  const int count = static_cast<int>(rng.Between(2, 8));
  Use(count);
  const int straggler = static_cast<int>(rng.Between(0, count - 1));
  for (int i = 0; i < 400; ++i) {
    std::vector<double> step_ms;
    for (int w = 0; w < count; ++w) {
      step_ms.push_back((w == straggler ? 30 : 10) *
                        (0.8 + 0.4 * rng.Uniform()));
    }
    Pass(options_.heartbeat, step_ms);
  }
  EXPECT_THAT(decided_, ElementsAre(HasSubstr("ssp:3")));
  EXPECT_THAT(reason_, HasSubstr(absl::StrCat("rank ", straggler, " takes")));
}

INSTANTIATE_TEST_SUITE_P(Seeds, ModePolicyNoiseTest,
                         ::testing::Range<uint64_t>(1, 41));

}  // namespace slackline::mode_policy_test
