// What the command of server 0 does in a place where a run has been before:
// each line of the table in beginning.h, with each set of flags.
#include "server/coordinator/beginning.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::beginning_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = FoundRun::Kind;

constexpr BeginningFlags kNoFlag = {};
constexpr BeginningFlags kCheckpoint = {.from_checkpoint = true};
constexpr BeginningFlags kNew = {.new_run = true};
constexpr BeginningFlags kNewFromCheckpoint = {.new_run = true,
                                               .from_checkpoint = true};

// nullopt: it is refused.
std::optional<Beginning> How(Kind kind, const BeginningFlags& flags,
                             const std::string& why_other = "") {
  const absl::StatusOr<Beginning> how =
      HowToBegin({.kind = kind, .place = "OUT", .why_other = why_other}, flags);
  if (how.ok()) return *how;
  EXPECT_EQ(how.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(how.status().message()),
              AllOf(HasSubstr("OUT"), HasSubstr("--new-run")));
  return std::nullopt;
}

TEST(BeginningTest, WithoutAFlagNothingIsReplaced) {
  EXPECT_EQ(How(Kind::kNone, kNoFlag), Beginning::kNewRun);
  EXPECT_EQ(How(Kind::kLives, kNoFlag), Beginning::kGoOn);
  EXPECT_EQ(How(Kind::kFinished, kNoFlag), Beginning::kOver);
  EXPECT_EQ(How(Kind::kFailed, kNoFlag), Beginning::kOver);
  EXPECT_EQ(How(Kind::kLost, kNoFlag), std::nullopt);
}

TEST(BeginningTest, ACheckpointIsGoneOnFromWhereNothingBetterIs) {
  EXPECT_EQ(How(Kind::kNone, kCheckpoint), Beginning::kNewRun);
  EXPECT_EQ(How(Kind::kLives, kCheckpoint), Beginning::kGoOn);
  EXPECT_EQ(How(Kind::kFinished, kCheckpoint), Beginning::kOver);
  EXPECT_EQ(How(Kind::kFailed, kCheckpoint), Beginning::kNewRun);
  EXPECT_EQ(How(Kind::kLost, kCheckpoint), Beginning::kNewRun);
}

// A queue has taken its machines away, perhaps before it had a checkpoint.
TEST(BeginningTest, WhatIsStartedAgainBeginsAnewWhereItCannotGoOn) {
  constexpr BeginningFlags kAgain = {.started_again = true};
  EXPECT_EQ(How(Kind::kNone, kAgain), Beginning::kNewRun);
  EXPECT_EQ(How(Kind::kLives, kAgain), Beginning::kGoOn);
  EXPECT_EQ(How(Kind::kFinished, kAgain), Beginning::kOver);
  EXPECT_EQ(How(Kind::kFailed, kAgain), Beginning::kNewRun);
  EXPECT_EQ(How(Kind::kLost, kAgain), Beginning::kNewRun);
  EXPECT_EQ(How(Kind::kLost, kAgain, "is of another config"), std::nullopt);
}

TEST(BeginningTest, WhoAsksForANewRunGetsOne) {
  for (const Kind kind : {Kind::kNone, Kind::kLives, Kind::kFinished,
                          Kind::kFailed, Kind::kLost}) {
    EXPECT_EQ(How(kind, kNew), Beginning::kNewRun);
    EXPECT_EQ(How(kind, kNewFromCheckpoint), Beginning::kNewRun);
    EXPECT_EQ(How(kind, kNew, "is of job a, and this is b"),
              Beginning::kNewRun);
  }
}

TEST(BeginningTest, WhatIsAnotherJobsIsLeftAlone) {
  const std::string why = "is of job a, and this is b";
  for (const Kind kind :
       {Kind::kLives, Kind::kFinished, Kind::kFailed, Kind::kLost}) {
    EXPECT_EQ(How(kind, kNoFlag, why), std::nullopt);
  }
  EXPECT_EQ(How(Kind::kLives, kCheckpoint, why), std::nullopt);
  // Whoever names a checkpoint may go on with another config.
  EXPECT_EQ(How(Kind::kFinished, kCheckpoint, why), Beginning::kNewRun);
  EXPECT_EQ(How(Kind::kFailed, kCheckpoint, why), Beginning::kNewRun);
}

TEST(BeginningTest, ItSaysWhatGoesOn) {
  FoundRun found = {.kind = Kind::kFailed, .place = "OUT"};
  EXPECT_THAT(WhatGoesOn(found), Not(HasSubstr("--restore")));
  found.has_checkpoint = true;
  EXPECT_THAT(WhatGoesOn(found),
              AllOf(HasSubstr("--restore"), HasSubstr("--new-run")));
  found.kind = Kind::kFinished;
  EXPECT_THAT(WhatGoesOn(found), Not(HasSubstr("--restore")));
}

}  // namespace slackline::beginning_test
