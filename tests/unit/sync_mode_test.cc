// Goal: a mode keeps its parameters, and no others, on its way through config,
// view and text.
// Method: each mode with values of its own.
#include "common/sync/sync_mode.h"

#include <vector>

#include "gtest/gtest.h"
#include "proto/cluster.pb.h"

namespace slackline {
namespace {

const std::vector<SyncMode> kModes = {
    {.mode = wire::BSP},
    {.mode = wire::SSP, .staleness = 3},
    {.mode = wire::ASP},
    {.mode = wire::ALLREDUCE},
    {.mode = wire::DSSP, .staleness = 2, .staleness_max = 9},
    {.mode = wire::BACKUP, .backups = 4}};

TEST(SyncModeTest, TextIsWhatTheModeFlagTakes) {
  std::vector<std::string> texts;
  for (const SyncMode& mode : kModes) texts.push_back(ModeText(mode));
  EXPECT_EQ(texts, (std::vector<std::string>{"bsp", "ssp:3", "asp", "allreduce",
                                             "dssp:2:9", "backup:4"}));
}

TEST(SyncModeTest, APhaseGivesBackWhatWasPutIntoIt) {
  for (const SyncMode& mode : kModes) {
    wire::Phase phase;
    PutSyncMode(mode, &phase);
    EXPECT_EQ(SyncModeOf(phase), mode) << ModeText(mode);
    EXPECT_EQ(ModeText(phase), ModeText(mode));
  }
}

TEST(SyncModeTest, ParametersOfOtherModesAreLeftOut) {
  for (const SyncMode& mode : kModes) {
    wire::SetMode set_mode;
    set_mode.set_staleness(7);
    set_mode.set_staleness_max(8);
    set_mode.set_backups(9);
    set_mode.set_mode(mode.mode);
    const SyncMode own = SyncModeOf(set_mode);
    EXPECT_EQ(own.staleness, mode.staleness == 0 ? 0 : 7) << ModeText(mode);
    EXPECT_EQ(own.staleness_max, mode.staleness_max == 0 ? 0 : 8);
    EXPECT_EQ(own.backups, mode.backups == 0 ? 0 : 9);
  }
}

TEST(SyncModeTest, AConfigNamesItsMode) {
  config::Sync sync;
  EXPECT_EQ(ModeText(ConfiguredMode(sync)), "bsp");
  sync.mutable_ssp()->set_staleness(5);
  EXPECT_EQ(ModeText(ConfiguredMode(sync)), "ssp:5");
  sync.mutable_dssp();
  EXPECT_EQ(ModeText(ConfiguredMode(sync)), "dssp:3:15");
  sync.mutable_backup();
  EXPECT_EQ(ModeText(ConfiguredMode(sync)), "backup:1");
  config::Phase phase;
  phase.mutable_asp();
  EXPECT_EQ(ModeText(ConfiguredMode(phase)), "asp");
  phase.mutable_allreduce();
  EXPECT_EQ(ModeText(ConfiguredMode(phase)), "allreduce");
}

}  // namespace
}  // namespace slackline
