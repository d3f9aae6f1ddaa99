// Goal: a worker gives up a wait when nothing has happened for so long, and not
// for its own absence; its log says for whom it waits, and more and more
// rarely. Method: virtual time by hand.
#include "worker/core/patience.h"

#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::patience_test {

using ::testing::HasSubstr;
using Waiting = ClientWaiting;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr absl::Duration kLease = absl::Seconds(2);

class PatienceTest : public ::testing::Test {
 protected:
  PatienceTest() {
    patience_.Start(now_);
    patience_.Wake(now_);
  }
  // What is left until it gives up.
  absl::Duration Left() const { return patience_.Deadline() - now_; }
  static Waiting For(int rank, Clock clock) {
    Waiting waiting;
    waiting.kind = Waiting::Kind::kWorkers;
    waiting.rank = Rank{rank};
    waiting.clock = clock;
    return waiting;
  }
  // It waits for others, for as long as patience says.
  std::optional<std::string> Sentence() {
    run::WorkerProgress progress;
    progress.set_activity(run::WorkerProgress::WAITING_FOR_WORKERS);
    progress.set_what("waiting for worker 1");
    progress.set_clock(4);
    progress.set_for_ms(
        absl::ToInt64Milliseconds(now_ - patience_.progress_at()));
    if (!patience_.IsToTell(now_, kLease)) return std::nullopt;
    return patience_.Sentence(progress, now_, kLease);
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  Patience patience_{kTimeout};
};

TEST_F(PatienceTest, ProgressAndNewsBeginTheWaitAnew) {
  now_ += absl::Seconds(20);
  EXPECT_EQ(Left(), absl::Seconds(40));
  patience_.HeardNews(now_);
  EXPECT_EQ(Left(), kTimeout);
  EXPECT_EQ(now_ - patience_.progress_at(), absl::Seconds(20))
      << "news are no progress of its own";
  now_ += absl::Seconds(20);
  patience_.CameFurther(now_);
  EXPECT_EQ(Left(), kTimeout);
}

TEST_F(PatienceTest, BytesThatMoveAreProgress) {
  patience_.SawBytes(100, false, now_);
  now_ += absl::Seconds(20);
  patience_.SawBytes(100, false, now_);
  EXPECT_EQ(Left(), absl::Seconds(40));
  patience_.SawBytes(100, /*has_pulled=*/true, now_);
  EXPECT_EQ(Left(), kTimeout);
  now_ += absl::Seconds(20);
  patience_.SawBytes(90, false, now_);
  EXPECT_EQ(Left(), kTimeout);
}

TEST_F(PatienceTest, ThatTheSameWorkerGoesOnIsProgress) {
  patience_.SawOthers(For(1, 3), now_);
  now_ += absl::Seconds(20);
  patience_.SawOthers(For(1, 3), now_);
  EXPECT_EQ(Left(), absl::Seconds(40));
  patience_.SawOthers(For(2, 9), now_);
  EXPECT_EQ(Left(), absl::Seconds(40)) << "it is another one";
  patience_.SawOthers(For(2, 10), now_);
  EXPECT_EQ(Left(), kTimeout);
  now_ += absl::Seconds(20);
  Waiting server;
  server.kind = Waiting::Kind::kServer;
  server.clock = 99;
  patience_.SawOthers(server, now_);
  EXPECT_EQ(Left(), absl::Seconds(40));
}

TEST_F(PatienceTest, WhatCameNearerCountsFromThen) {
  now_ += absl::Seconds(30);
  patience_.CameNearer(absl::Seconds(10), now_);
  EXPECT_EQ(Left(), absl::Seconds(50));
  patience_.CameNearer(absl::Seconds(25), now_);
  EXPECT_EQ(Left(), absl::Seconds(50)) << "it came further after that";
}

TEST_F(PatienceTest, TimeInWhichItDidNotRunIsNoWait) {
  now_ += absl::Milliseconds(500);
  EXPECT_EQ(patience_.Wake(now_), absl::ZeroDuration());
  now_ += absl::Seconds(41);  // A second of it counts.
  EXPECT_EQ(patience_.Wake(now_), absl::Seconds(40));
  EXPECT_EQ(Left(), kTimeout - absl::Milliseconds(1500));
}

TEST_F(PatienceTest, WhatCameAfterAPauseIsNotInTheFuture) {
  now_ += absl::Seconds(41);
  patience_.CameFurther(now_);
  patience_.Wake(now_);
  EXPECT_EQ(patience_.progress_at(), now_);
}

TEST_F(PatienceTest, AWaitIsSaidAfterSomeLeasesAndThenMoreRarely) {
  int said = 0;
  for (int second = 0; second < 50; ++second) {
    const std::optional<std::string> sentence = Sentence();
    if (sentence.has_value()) {
      ++said;
      EXPECT_THAT(*sentence, HasSubstr("waiting for worker 1"));
    }
    now_ += absl::Seconds(1);
  }
  EXPECT_EQ(said, 4) << "after 6, 12, 24 and 48 seconds";
  patience_.CameFurther(now_);
  EXPECT_EQ(Sentence(), std::nullopt);
}

TEST_F(PatienceTest, NothingIsSaidBeforeTheLeaseIsKnown) {
  EXPECT_FALSE(patience_.IsToTell(now_, absl::ZeroDuration()));
}

}  // namespace slackline::patience_test
