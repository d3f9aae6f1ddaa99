// Goal: beside the newest checkpoints the one nearest to the best evaluation
// stays, best.json says which one, and a file that is damaged or of somebody
// else is named and not believed. Method: checkpoints of one small table on a
// real disk; random histories against a naive twin.
#include "common/checkpoint/best_checkpoint.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/must.h"
#include "tests/support/temp_folder.h"

namespace slackline::best_checkpoint_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kRun = 7;
constexpr uint64_t kLineage = 3;
constexpr auto kAccuracy = config::Checkpoint::ACCURACY;

class BestCheckpointTest : public ::testing::Test {
 protected:
  std::string root() const { return folder_.path(); }
  std::string FolderOf(int64_t clock) const {
    return folder_.File(absl::StrFormat("step-%08d", clock));
  }
  void Complete(int64_t clock, int keep, BestKeeper* best,
                uint64_t lineage = kLineage) {
    const std::vector<float> values = {1, 2};
    const ShardState shard = {
        .table = "t",
        .region = {0, 2},
        .values = Payload::Copy(values.data(), 2 * sizeof(float))};
    checkpoint::Manifest manifest;
    manifest.set_format(kCheckpointFormat);
    manifest.set_job("digits");
    manifest.set_lineage(lineage);
    manifest.set_steps_per_epoch(10);
    manifest.set_clock(clock);
    manifest.add_table()->set_name("t");
    manifest.mutable_table(0)->add_shape(2);
    *manifest.add_part() =
        Must(WritePart(PartialFolder(root(), kRun, ++cut_), "p", {shard}));
    EXPECT_EQ(
        Must(CompleteCheckpoint(root(), kRun, cut_, manifest, keep, best)),
        FolderOf(clock));
  }
  std::vector<int64_t> Clocks() const {
    std::vector<int64_t> clocks;
    for (const CheckpointEntry& entry : CheckpointsIn(root(), kLineage))
      clocks.push_back(entry.clock);
    std::sort(clocks.begin(), clocks.end());
    return clocks;
  }
  static run::BestCheckpoint Evaluation(int64_t at, double value) {
    run::BestCheckpoint evaluation;
    evaluation.set_evaluated_at(at);
    evaluation.set_measure("accuracy");
    evaluation.set_value(value);
    return evaluation;
  }
  run::BestCheckpoint InFile() const { return Must(ReadBest(root())); }
  // With best.json of a checkpoint of step 10, changed.
  std::string ErrorWith(const std::string& from, const std::string& to) {
    BestKeeper keeper(root(), kLineage, std::nullopt);
    if (Clocks().empty()) Complete(10, 1, nullptr);
    keeper.Keep(Evaluation(11, 0.5));
    const std::string text = ReadWholeFile(folder_.File(kBestFile));
    EXPECT_THAT(text, HasSubstr(from));
    folder_.Write(kBestFile, absl::StrReplaceAll(text, {{from, to}}));
    const absl::Status status = ReadBest(root()).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(folder_.File(kBestFile)));
    return std::string(status.message());
  }

  const TempFolder folder_;
  int cut_ = 0;
};

TEST_F(BestCheckpointTest, ItStaysBesideTheNewest) {
  BestKeeper keeper(root(), kLineage, std::nullopt);
  Complete(10, 1, &keeper);
  EXPECT_FALSE(keeper.best().has_value()) << "nothing was evaluated";
  EXPECT_FALSE(fs::exists(folder_.File(kBestFile)));
  keeper.Keep(Evaluation(12, 0.5));
  EXPECT_EQ(InFile().clock(), 10);
  Complete(20, 1, &keeper);
  Complete(30, 1, &keeper);
  EXPECT_THAT(Clocks(), ElementsAre(10, 30));
  const run::BestCheckpoint best = InFile();
  EXPECT_EQ(best.folder(), FolderOf(10));
  EXPECT_EQ(best.evaluated_at(), 12);
  EXPECT_EQ(best.measure(), "accuracy");
  EXPECT_DOUBLE_EQ(best.value(), 0.5);
  keeper.Keep(Evaluation(29, 0.6));
  EXPECT_EQ(InFile().clock(), 30);
  Complete(40, 1, &keeper);
  EXPECT_THAT(Clocks(), ElementsAre(30, 40)) << "the one before is not the "
                                                "best any more";
}

TEST_F(BestCheckpointTest, ALaterOneMayBeNearer) {
  BestKeeper keeper(root(), kLineage, std::nullopt);
  Complete(10, 1, &keeper);
  keeper.Keep(Evaluation(18, 0.5));
  EXPECT_EQ(InFile().clock(), 10);
  Complete(19, 1, &keeper);
  EXPECT_EQ(InFile().clock(), 19);
  Complete(30, 1, &keeper);
  EXPECT_THAT(Clocks(), ElementsAre(19, 30));
}

TEST_F(BestCheckpointTest, OfTwoThatAreEquallyNearTheLaterIsIt) {
  BestKeeper keeper(root(), kLineage, std::nullopt);
  Complete(10, 5, &keeper);
  Complete(20, 5, &keeper);
  keeper.Keep(Evaluation(15, 0.5));
  EXPECT_EQ(InFile().clock(), 20);
}

// Goal: the rule holds whatever the history. Twin: all checkpoints in a list.
TEST_F(BestCheckpointTest, RandomHistoriesAgainstATwin) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    for (const int64_t clock : Clocks()) fs::remove_all(FolderOf(clock));
    fs::remove(folder_.File(kBestFile));
    Rng rng(seed);
    const int keep = static_cast<int>(rng.Between(1, 3));
    BestKeeper keeper(root(), kLineage, std::nullopt);
    std::vector<int64_t> twin;
    std::optional<int64_t> evaluated_at;
    const auto nearest = [&] {
      return *std::min_element(
          twin.begin(), twin.end(), [&](int64_t a, int64_t b) {
            const int64_t away_a = std::abs(a - *evaluated_at);
            const int64_t away_b = std::abs(b - *evaluated_at);
            return away_a != away_b ? away_a < away_b : a > b;
          });
    };
    int64_t clock = 0;
    for (int i = 0; i < 20; ++i) {
      clock += rng.Between(1, 9);
      if (rng.Chance(0.4)) {
        evaluated_at = std::max<int64_t>(0, clock - rng.Between(0, 12));
        keeper.Keep(Evaluation(*evaluated_at, i));
      } else {
        Complete(clock, keep, &keeper);
        twin.push_back(clock);
        const int64_t best = evaluated_at.has_value() ? nearest() : -1;
        while (twin.size() > static_cast<size_t>(keep)) {
          const auto end = twin.end() - keep;
          const auto old = std::find_if(
              twin.begin(), end, [&](int64_t one) { return one != best; });
          if (old == end) break;
          twin.erase(old);
        }
      }
      EXPECT_EQ(Clocks(), twin);
      EXPECT_TRUE(keeper.error().ok());
      if (!evaluated_at.has_value() || twin.empty()) continue;
      EXPECT_EQ(InFile().clock(), nearest());
      EXPECT_EQ(InFile().evaluated_at(), *evaluated_at);
    }
  }
}

// ---- Going on ---------------------------------------------------------------

TEST_F(BestCheckpointTest, ThatOfARunBeforeStaysUntilItIsBeaten) {
  {
    BestKeeper keeper(root(), kLineage, std::nullopt);
    Complete(10, 1, &keeper);
    keeper.Keep(Evaluation(13, 0.5));
  }
  const run::BestCheckpoint before =
      Must(ReadBestOf(root(), kLineage, kAccuracy));
  BestKeeper keeper(root(), kLineage, before);
  EXPECT_EQ(keeper.best()->clock(), 10);
  // Another way from there: of that model nobody knows how good it was.
  Complete(13, 1, &keeper);
  Complete(20, 1, &keeper);
  EXPECT_THAT(Clocks(), ElementsAre(10, 20));
  EXPECT_EQ(InFile().clock(), 10);
  keeper.Keep(Evaluation(21, 0.6));
  Complete(30, 1, &keeper);
  EXPECT_THAT(Clocks(), ElementsAre(20, 30));
}

TEST_F(BestCheckpointTest, OneThatSomebodyHasRemovedIsReplaced) {
  BestKeeper first(root(), kLineage, std::nullopt);
  Complete(10, 1, &first);
  first.Keep(Evaluation(10, 0.5));
  BestKeeper keeper(root(), kLineage, InFile());
  fs::remove_all(FolderOf(10));
  Complete(20, 1, &keeper);
  EXPECT_EQ(InFile().clock(), 20);
}

TEST_F(BestCheckpointTest, OfAnotherRunOrMeasureIsNotTaken) {
  BestKeeper keeper(root(), kLineage, std::nullopt);
  Complete(10, 1, &keeper);
  EXPECT_TRUE(
      absl::IsNotFound(ReadBestOf(root(), kLineage, kAccuracy).status()));
  keeper.Keep(Evaluation(10, 0.5));
  const absl::Status other =
      ReadBestOf(root(), kLineage + 1, kAccuracy).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
  EXPECT_THAT(std::string(other.message()),
              AllOf(HasSubstr("of another run, of job digits"),
                    HasSubstr("a folder of its own")));
  const absl::Status measure =
      ReadBestOf(root(), kLineage, config::Checkpoint::LOSS).status();
  EXPECT_TRUE(absl::IsInvalidArgument(measure)) << measure;
  EXPECT_THAT(
      std::string(measure.message()),
      HasSubstr("is by accuracy, and checkpoint.best_by asks for loss"));
}

TEST_F(BestCheckpointTest, CheckpointsOfOthersAreNotChosen) {
  BestKeeper keeper(root(), kLineage, std::nullopt);
  Complete(12, 1, nullptr, kLineage + 1);
  Complete(20, 1, &keeper);
  keeper.Keep(Evaluation(12, 0.5));
  EXPECT_EQ(InFile().clock(), 20);
}

// ---- The file ---------------------------------------------------------------

TEST_F(BestCheckpointTest, WhatIsDamagedIsNamed) {
  EXPECT_THAT(ErrorWith("{", "["), HasSubstr("is not a JSON map"));
  EXPECT_THAT(ErrorWith("\"step-", "\"../step-"),
              HasSubstr("'../step-00000010', which is no name"));
  EXPECT_THAT(ErrorWith("step-00000010", "step-00000099"),
              HasSubstr("names step-00000099, which is no checkpoint"));
  EXPECT_THAT(ErrorWith("\"clock\": 10", "\"clock\": 12"),
              HasSubstr("is of clock 12, and its manifest says 10"));
  EXPECT_THAT(ErrorWith("\"clock\": 10", "\"clock\": -1"),
              HasSubstr("no clock"));
  EXPECT_THAT(ErrorWith("\"evaluated_at\": 11", "\"evaluated_at\": 1e3"),
              HasSubstr("no clock"));
  EXPECT_THAT(ErrorWith("\"accuracy\"", "\"f1\""),
              HasSubstr("measure is 'f1'"));
  EXPECT_THAT(ErrorWith("0.5", "\"x\""), HasSubstr("value is no number"));
  EXPECT_THAT(ErrorWith("0.5", std::string(100 << 10, '1')),
              HasSubstr("at most 65536 are read"));
}

TEST_F(BestCheckpointTest, AFileThatCannotBeWrittenIsAnErrorAndTheChoiceHolds) {
  BestKeeper keeper(root(), kLineage, std::nullopt);
  Complete(10, 1, &keeper);
  fs::create_directory(folder_.File(kBestFile));
  keeper.Keep(Evaluation(10, 0.5));
  EXPECT_THAT(std::string(keeper.error().message()), HasSubstr(kBestFile));
  Complete(20, 1, &keeper);
  EXPECT_THAT(Clocks(), ElementsAre(10, 20));
  fs::remove(folder_.File(kBestFile));
  Complete(30, 1, &keeper);
  EXPECT_TRUE(keeper.error().ok()) << "it is tried again";
  EXPECT_EQ(InFile().clock(), 10);
}

// ---- Finding it -------------------------------------------------------------

TEST_F(BestCheckpointTest, IsFoundInARootAndInTheFolderOfARun) {
  BestKeeper keeper(root(), kLineage, std::nullopt);
  Complete(10, 1, &keeper);
  EXPECT_THAT(std::string(FindBestCheckpoint(root()).status().message()),
              AllOf(HasSubstr("there is no best checkpoint at " + root()),
                    HasSubstr("neither " + folder_.File(kBestFile)),
                    HasSubstr("checkpoints/best.json"), HasSubstr("best_by")));
  keeper.Keep(Evaluation(10, 0.5));
  EXPECT_EQ(Must(FindBestCheckpoint(root() + "/")), FolderOf(10));
  const absl::Status one = FindBestCheckpoint(FolderOf(10)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(one));
  EXPECT_THAT(std::string(one.message()), HasSubstr("is one checkpoint"));
  const std::string run = folder_.File("run");
  fs::create_directories(run);
  fs::create_directory_symlink(root(), run + "/checkpoints");
  EXPECT_EQ(Must(FindBestCheckpoint(run)), run + "/checkpoints/step-00000010");
}

}  // namespace slackline::best_checkpoint_test
