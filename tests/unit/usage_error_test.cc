#include "common/process/usage_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace slackline::usage_error_test {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A program with two subcommands, one of which takes changes of the config.
class UsageErrorTest : public ::testing::Test {
 protected:
  UsageErrorTest() {
    app_.name("tool");
    app_.require_subcommand(1);
    CLI::App* const run = app_.add_subcommand("run", "Runs.");
    run->add_option("CONFIG", config_, "A file")->required();
    run->add_option("--epochs", value_, "How many");
    run->add_flag("--timeline{10}", seconds_, "Records, for so long");
    run->add_flag("--dry-run", dry_run_, "Starts nothing");
    run->add_option("--set", sets_, "A change")->allow_extra_args(false);
    app_.add_subcommand("status", "Shows.")
        ->add_option("CONFIG", config_, "A file")
        ->required();
  }

  // What is said to these arguments, which are wrong.
  std::string Text(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& before_programs = {}) {
    std::vector<const char*> argv = {"tool"};
    for (const std::string& argument : arguments)
      argv.push_back(argument.c_str());
    try {
      app_.parse(static_cast<int>(argv.size()), argv.data());
    } catch (const CLI::ParseError& error) {
      return UsageErrorText(app_, error, arguments, before_programs);
    }
    ADD_FAILURE() << "they are right";
    return "";
  }

  CLI::App app_;
  std::string config_;
  std::string value_;
  double seconds_ = 0;
  bool dry_run_ = false;
  std::vector<std::string> sets_;
};

TEST_F(UsageErrorTest, NamesTheNearestSubcommand) {
  EXPECT_EQ(Text({"statu", "job.textproto"}),
            "tool: 'statu' is no subcommand; did you mean 'status'?\n"
            "`tool --help` says what it takes");
}

TEST_F(UsageErrorTest, WhatStandsBehindAWrongSubcommandIsNotTakenForOne) {
  EXPECT_THAT(Text({"statu", "run"}),
              StartsWith("tool: 'statu' is no subcommand; did you mean "
                         "'status'?\n"));
  EXPECT_THAT(Text({"--verbose", "run", "job.textproto"}),
              StartsWith("tool: there is no flag --verbose\n"));
}

TEST_F(UsageErrorTest, WithoutANearOneNamesAllSubcommands) {
  EXPECT_THAT(Text({"frobnicate"}),
              HasSubstr("'frobnicate' is no subcommand; these are: run, "
                        "status\n"));
  EXPECT_THAT(Text({}), StartsWith("tool: A subcommand is required\n"));
}

TEST_F(UsageErrorTest, NamesTheNearestFlag) {
  EXPECT_EQ(Text({"run", "job.textproto", "--epoch", "3"}),
            "tool run: there is no flag --epoch; did you mean --epochs?\n"
            "`tool run --help` says what it takes");
  EXPECT_THAT(Text({"run", "job.textproto", "--epoch=3"}),
              HasSubstr("there is no flag --epoch; did you mean --epochs?"));
}

TEST_F(UsageErrorTest, AFlagThatIsAFieldIsGivenAsSet) {
  EXPECT_THAT(Text({"run", "job.textproto", "--batch-size", "32"}),
              HasSubstr("there is no flag --batch-size; did you mean --set "
                        "data.batch_size=32?"));
  EXPECT_THAT(Text({"run", "job.textproto", "--learning-rate=0.5"}),
              HasSubstr("did you mean --set "
                        "optimizer.sgd.learning_rate=0.5 or --set "
                        "optimizer.momentum.learning_rate=0.5 or "));
  EXPECT_THAT(Text({"run", "job.textproto", "--lease-ms"}),
              HasSubstr("did you mean --set limits.lease_ms=VALUE?"));
}

TEST_F(UsageErrorTest, WhatNobodyKnowsHasNoSuggestion) {
  EXPECT_THAT(Text({"run", "job.textproto", "--lr=1"}),
              HasSubstr("tool run: there is no flag --lr\n"));
  EXPECT_THAT(Text({"status", "job.textproto", "--learning-rate", "1"}),
              Not(HasSubstr("did you mean")));
}

TEST_F(UsageErrorTest, AMisspeltFlagIsSaidBeforeWhatIsMissing) {
  EXPECT_THAT(Text({"run", "--epoch"}), HasSubstr("did you mean --epochs?"));
  EXPECT_THAT(Text({"run"}), HasSubstr("tool run: CONFIG is required\n"));
}

TEST_F(UsageErrorTest, AWordTooManyIsNamed) {
  EXPECT_THAT(Text({"status", "a.textproto", "b.textproto"}),
              HasSubstr("tool status: 'b.textproto' is one argument too "
                        "many\n"));
}

TEST_F(UsageErrorTest, AValueBehindAFlagThatHasItOnlyBehindEquals) {
  EXPECT_THAT(Text({"run", "a.textproto", "--timeline", "5"}, {"run"}),
              HasSubstr("'5' is one argument too many; --timeline takes its "
                        "value behind '=': --timeline=5\n"));
  EXPECT_THAT(Text({"run", "a.textproto", "--dry-run", "yes"}, {"run"}),
              HasSubstr("--dry-run takes no value: leave it out\n"));
}

TEST_F(UsageErrorTest, AProgramWithoutDashesBeforeIt) {
  EXPECT_THAT(
      Text({"run", "a.textproto", "python", "train.py", "--lr", "0 1"},
           {"run"}),
      HasSubstr("tool run: 'python' is one argument too many; a program for "
                "the workers stands behind --: tool run a.textproto -- python "
                "train.py --lr '0 1'\n"));
  EXPECT_THAT(
      Text({"run", "--epochs", "2", "a.textproto", "train.py"}, {"run"}),
      HasSubstr("tool run --epochs 2 a.textproto -- python3 train.py"));
  // Where none may follow, and where a flag is wrong before it.
  EXPECT_THAT(Text({"status", "a.textproto", "train.py"}, {"run"}),
              Not(HasSubstr("--:")));
  EXPECT_THAT(Text({"run", "a.textproto", "--epoch", "3"}, {"run"}),
              HasSubstr("did you mean --epochs?"));
}

}  // namespace slackline::usage_error_test
