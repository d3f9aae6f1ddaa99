#include "common/process/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>

#include "common/process/interrupted_by.h"

namespace slackline::stop_signal_test {

constexpr std::chrono::seconds kWaitMax{30};

class StopSignalTest : public ::testing::Test {
 protected:
  static int Received(std::promise<int>* signal) {
    std::future<int> future = signal->get_future();
    const bool came = future.wait_for(kWaitMax) == std::future_status::ready;
    return came ? future.get() : 0;
  }
};

// As OpenBLAS has them: made before main(), with no signal blocked.
TEST_F(StopSignalTest, ReachesUsAlthoughAnOlderThreadDoesNotBlockIt) {
  std::promise<void> started, end;
  std::thread older([&] {
    started.set_value();
    end.get_future().wait();
  });
  started.get_future().wait();
  StopSignal::Block();
  for (const int sent : {SIGINT, SIGTERM}) {
    std::promise<int> received;
    const StopSignal stop_signal(
        [&](int signal) { received.set_value(signal); });
    kill(getpid(), sent);
    EXPECT_EQ(Received(&received), sent);
  }
  end.set_value();
  older.join();
}

TEST_F(StopSignalTest, ThatCameBeforeIsDeliveredLater) {
  StopSignal::Block();
  kill(getpid(), SIGTERM);
  std::promise<int> received;
  const StopSignal stop_signal([&](int signal) { received.set_value(signal); });
  EXPECT_EQ(Received(&received), SIGTERM);
}

TEST(InterruptedByTest, WhoTakesTheMachineAwayIsToldFromWhoAsksForAnEnd) {
  EXPECT_TRUE(IsTakenAway("worker 2 was interrupted by SIGTERM; step 7 is in"));
  EXPECT_TRUE(IsTakenAway("slackline run was interrupted by SIGHUP"));
  EXPECT_FALSE(IsTakenAway("server 0 was interrupted by SIGINT"));
  EXPECT_FALSE(IsTakenAway("I need the node; step 7 is in"));
  EXPECT_FALSE(IsTakenAway(""));
}

constexpr absl::Time kStart = absl::UnixEpoch();

TEST(SignalWishesTest, TheFirstSigtermSuspendsAJobWithCheckpoints) {
  SignalWishes wishes({.with_checkpoints = true});
  EXPECT_EQ(wishes.Of(SIGTERM, kStart), SignalWish::kSuspend);
  EXPECT_EQ(wishes.Of(SIGTERM, kStart), SignalWish::kEnd);
  SignalWishes interrupted({.with_checkpoints = true});
  EXPECT_EQ(interrupted.Of(SIGINT, kStart), SignalWish::kEnd);
  EXPECT_EQ(interrupted.Of(SIGTERM, kStart), SignalWish::kEnd)
      << "the second signal";
  // A session that ends sends SIGHUP, and perhaps once more.
  SignalWishes hung_up({.with_checkpoints = true});
  EXPECT_EQ(hung_up.Of(SIGHUP, kStart), SignalWish::kSuspend);
  EXPECT_EQ(hung_up.Of(SIGHUP, kStart), SignalWish::kNothing);
  EXPECT_EQ(hung_up.Of(SIGTERM, kStart), SignalWish::kEnd);
  SignalWishes without({.with_checkpoints = false});
  EXPECT_EQ(without.Of(SIGTERM, kStart), SignalWish::kEnd);
}

TEST(SignalWishesTest, SigtermTwiceIsOnceWhereSlurmSendsIt) {
  SignalWishes wishes({.with_checkpoints = true, .by_slurm = true});
  EXPECT_EQ(wishes.Of(SIGTERM, kStart), SignalWish::kSuspend);
  EXPECT_EQ(wishes.Of(SIGTERM, kStart), SignalWish::kNothing);
  EXPECT_EQ(wishes.Of(SIGTERM, kStart + absl::Seconds(9)),
            SignalWish::kNothing);
  EXPECT_EQ(wishes.Of(SIGINT, kStart + absl::Seconds(9)), SignalWish::kEnd);
  EXPECT_EQ(wishes.Of(SIGTERM, kStart + absl::Seconds(11)), SignalWish::kEnd);
  SignalWishes without({.with_checkpoints = false, .by_slurm = true});
  EXPECT_EQ(without.Of(SIGTERM, kStart), SignalWish::kEnd);
  config::ClusterConfig config;
  config.mutable_checkpoint();
  config.mutable_launch()->mutable_slurm();
  SignalWishes configured = WishesOfSignals(config);
  EXPECT_EQ(configured.Of(SIGTERM, kStart), SignalWish::kSuspend);
  EXPECT_EQ(configured.Of(SIGTERM, kStart), SignalWish::kNothing);
}

}  // namespace slackline::stop_signal_test
