#include "tools/cli/job/mode_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/modes.h"

namespace slackline::mode_watch_test {

using ::testing::HasSubstr;
using State = ModeWatch::State;

// A job in BSP, two workers, asked to change to ASP.
class ModeWatchTest : public ::testing::Test {
 protected:
  ModeWatchTest() {
    view().set_steps_total(1000);
    *view().add_phase()->mutable_mode() = ModeOf("bsp");
    for (const int clock : {120, 118}) status_.add_worker()->set_clock(clock);
  }
  wire::View& view() { return *status_.mutable_view(); }
  void Open() { *view().mutable_change()->mutable_mode() = ModeOf("asp"); }
  void Settle(absl::string_view mode, int64_t from) {
    view().clear_change();
    wire::Phase& phase = *view().add_phase();
    *phase.mutable_mode() = ModeOf(mode);
    phase.set_from(from);
  }
  void Enter(int phase) {
    view().set_entered(phase);
    status_.add_mode_changed()->set_from_clock(view().phase(phase).from());
  }

  sync::Mode wanted_ = ModeOf("asp");
  wire::StatusReply status_;
};

TEST_F(ModeWatchTest, FollowsAChangeFromItsOrderToItsEnd) {
  ModeWatch watch(wanted_, status_);
  Open();
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kOpen);
  Settle("asp", 125);
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kSettled);
  EXPECT_EQ(watch.Line(),
            "asp holds from clock 125; the slowest worker is at 118");
  EXPECT_FALSE(watch.Over());
  Enter(1);
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kDone);
  ASSERT_TRUE(watch.record().has_value());
  EXPECT_EQ(watch.record()->from_clock(), 125);
}

TEST_F(ModeWatchTest, MovesOfShardsComeFirst) {
  view().add_move();
  ModeWatch watch(wanted_, status_);
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kWaitsForMoves);
  EXPECT_THAT(watch.Line(), HasSubstr("waits until 1 shard has moved"));
  view().clear_move();
  Open();
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kOpen);
}

TEST_F(ModeWatchTest, AChangeThatIsNeitherOpenNorListedWasDropped) {
  ModeWatch watch(wanted_, status_);
  Open();
  watch.Update(status_);
  view().clear_change();
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kDropped);
  EXPECT_THAT(watch.Line(), HasSubstr("the job ends at step 1000"));
}

TEST_F(ModeWatchTest, AChangeThatWasDoneBetweenTwoLooksIsDone) {
  ModeWatch watch(wanted_, status_);
  Settle("asp", 125);
  Enter(1);
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kDone);
}

TEST_F(ModeWatchTest, ChangesThatOthersAskedForAreNotMistaken) {
  Settle("asp", 50);  // Long ago.
  Settle("bsp", 80);
  Enter(1);
  Enter(2);
  ModeWatch watch(wanted_, status_);
  Settle("allreduce", 110);  // Between the look and the order.
  Enter(3);
  Open();
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kOpen);
  Settle("asp", 130);
  Enter(4);
  Settle("bsp", 140);  // The next one, before this was seen.
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kDone);
  EXPECT_EQ(watch.record()->from_clock(), 130);
}

TEST_F(ModeWatchTest, TheBoundIsPartOfTheMode) {
  wanted_ = ModeOf("ssp:2");
  ModeWatch watch(wanted_, status_);
  Settle("ssp:5", 125);
  Open();
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kOpen);
  *view().mutable_phase(1)->mutable_mode() = ModeOf("ssp:2");
  watch.Update(status_);
  EXPECT_EQ(watch.state(), State::kSettled);
}

}  // namespace slackline::mode_watch_test
