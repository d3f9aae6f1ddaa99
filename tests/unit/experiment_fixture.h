// Experiments as text, on a small base config.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/temp_folder.h"
#include "tools/experiment/experiment_file.h"
#include "tools/experiment/plan.h"

namespace slackline {

inline constexpr char kBase[] =
    "job: \"test\"\n"                                  // 1
    "server { host: \"127.0.0.1\" }\n"                 // 2
    "worker { host: \"127.0.0.1\" count: 1 }\n"        // 3
    "worker { host: \"127.0.0.1\" count: 2 }\n"        // 4
    "model { mlp { hidden: 8 } }\n"                    // 5
    "data { teacher_student {} batch_size: 20 }\n"     // 6
    "optimizer { momentum { learning_rate: 0.1 } }\n"  // 7
    "train { epochs: 2 }\n";                           // 8

class ExperimentTest : public ::testing::Test {
 protected:
  ExperimentTest() { folder_.Write("base.textproto", kBase); }

  absl::StatusOr<ExperimentPlan> Expand(const std::string& text) {
    const absl::StatusOr<ExperimentSource> source =
        LoadExperiment(folder_.Write("e.textproto", text));
    if (!source.ok()) return source.status();
    return ExpandExperiment(*source);
  }
  ExperimentPlan ExpandOrDie(const std::string& text) {
    absl::StatusOr<ExperimentPlan> plan = Expand(text);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : ExperimentPlan();
  }
  // The lines of the error, without the test's folder; none if there is none.
  std::vector<std::string> Errors(const std::string& text) {
    return LinesOf(Expand(text).status());
  }
  std::vector<std::string> LinesOf(const absl::Status& status) {
    if (status.ok()) return {};
    std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
    for (std::string& line : lines) {
      for (size_t at;
           (at = line.find(folder_.path() + "/")) != std::string::npos;) {
        line.erase(at, folder_.path().size() + 1);
      }
    }
    return lines;
  }

  TempFolder folder_;
};

inline std::vector<std::string> Names(const ExperimentPlan& plan) {
  std::vector<std::string> names;
  for (const PlannedVariant& variant : plan.variants) {
    names.push_back(variant.name);
  }
  return names;
}

inline std::vector<std::string> Runs(const ExperimentPlan& plan) {
  std::vector<std::string> runs;
  for (const PlannedRun& run : plan.runs) {
    runs.push_back(
        absl::StrCat(plan.variants[run.variant].name, "/", run.seed));
  }
  return runs;
}

inline std::string Header() { return "name: \"e\" base: \"base.textproto\"\n"; }

}  // namespace slackline
