// Goal: jobs train on data sets of one's own, of numbers as of classes, and say
// what they are. Method: the data are made so that the answer is known.
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::data_sets_test {

using ::testing::HasSubstr;

class DataSets : public JobTest {
 protected:
  // A job of two workers with this model and these data in the test's folder.
  std::string Job(absl::string_view model, absl::string_view data) {
    return Write("job.textproto",
                 absl::StrCat("job: 'data-sets' server { host: '127.0.0.1' }\n"
                              "worker { host: '127.0.0.1' count: 2 }\n"
                              "model { ",
                              model, " }\ndata { ", data,
                              " batch_size: 10 }\n"
                              "optimizer { sgd { learning_rate: 0.2 } }\n"
                              "train { epochs: 20 seed: 1 }\n"));
  }
  std::string DataDir() const { return absl::StrCat("--data-dir=", Path("")); }
  nlohmann::json SummaryOf(const std::string& run) const {
    return ReadJson(Path(absl::StrCat(run, "/summary.json")));
  }
};

// The example, with the files that its own comment makes.
TEST_F(DataSets, LinearRegressionOnCsvFindsThePlane) {
  const std::string job =
      absl::StrCat(SLACKLINE_SOURCE_DIR, "/examples/csv_linear.textproto");
  int commands = 0;
  for (const absl::string_view line : absl::StrSplit(ReadText(job), '\n')) {
    if (!absl::StartsWith(line, "#   mkdir") &&
        !absl::StartsWith(line, "#   awk"))
      continue;
    const std::string command =
        absl::StrReplaceAll(line.substr(4), {{"DIR/", Path("")}});
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    ++commands;
  }
  ASSERT_EQ(commands, 3);
  for (const char* const mode : {"bsp", "allreduce"}) {
    SCOPED_TRACE(mode);
    Run(mode, job, {DataDir(), absl::StrCat("--mode=", mode)});
    const nlohmann::json summary = SummaryOf(mode);
    EXPECT_LT(summary.value("test_loss", 1.0), 1e-3);
    EXPECT_LT(summary.value("train_loss", 1.0), 1e-3);
    EXPECT_FALSE(summary.contains("test_accuracy"));
    EXPECT_THAT(
        summary.value("data", ""),
        HasSubstr("CSV data from plane/train.csv and plane/test.csv: 4000 "
                  "training and 500 test examples, 2 features, real numbers as "
                  "labels; inputs normalised: each number by"));
    for (const nlohmann::json& line :
         ReadJsonLines(Path(absl::StrCat(mode, "/metrics.jsonl"))))
      EXPECT_FALSE(line.contains("accuracy")) << line;
  }
  const std::unique_ptr<Process> replay =
      StartReplay("replay", job, "constant:0", {DataDir()});
  EXPECT_EQ(replay->WaitText(kJobMax), kEndedWell) << replay->Output();
  EXPECT_THAT(replay->Output(), ::testing::Not(HasSubstr("accuracy")));
  EXPECT_FALSE(SummaryOf("replay").contains("test_accuracy"));
  EXPECT_LT(SummaryOf("replay").value("test_loss", 1.0), 1e-3);
}

// An array of bytes as numpy.save() writes it.
std::string Npy(absl::string_view shape, const std::string& bytes) {
  const std::string header = absl::StrCat(
      "{'descr': '|u1', 'fortran_order': False, 'shape': ", shape, ", }\n");
  return absl::StrCat("\x93NUMPY\1", std::string(1, '\0'),
                      std::string(1, static_cast<char>(header.size())),
                      std::string(1, '\0'), header, bytes);
}

// The brightest of three channels is the class.
TEST_F(DataSets, SoftmaxOnColouredImagesTellsTheColours) {
  Rng rng(1);
  for (const char* const part : {"train", "test"}) {
    std::string images;
    std::string labels;
    for (int i = 0; i < 200; ++i) {
      const uint64_t colour = rng.Below(3);
      labels += static_cast<char>(colour);
      for (uint64_t pixel = 0; pixel < 5 * 6; ++pixel) {
        for (uint64_t channel = 0; channel < 3; ++channel)
          images +=
              static_cast<char>(rng.Below(100) + (channel == colour ? 100 : 0));
      }
    }
    Write(absl::StrCat("x_", part, ".npy"), Npy("(200, 5, 6, 3)", images));
    Write(absl::StrCat("y_", part, ".npy"), Npy("(200,)", labels));
  }
  const std::string job =
      Job("softmax {}",
          "npy { train_inputs: 'x_train.npy' train_labels: 'y_train.npy' "
          "test_inputs: 'x_test.npy' test_labels: 'y_test.npy' } normalisation "
          "{ per_channel {} }");
  Run("run", job, {DataDir(), "--set=train.epochs=3"});
  EXPECT_GT(SummaryOf("run").value("test_accuracy", 0.0), 0.99);
  EXPECT_THAT(SummaryOf("run").value("data", ""),
              HasSubstr("images of 3x5x6, 3 classes; inputs normalised: "
                        "channel 0: (x - "));
}

TEST_F(DataSets, WorkerThatCannotReadItsDataSaysWhatStandsThere) {
  Write("train.csv", "a,y\n1,2\n1,red\n");
  Write("test.csv", "a,y\n1,2\n");
  const std::unique_ptr<Process> run =
      StartRun("run",
               Job("linear {}",
                   "csv { train: 'train.csv' test: "
                   "'test.csv' }"),
               {DataDir()});
  EXPECT_EQ(run->WaitText(kJobMax), kFailed);
  EXPECT_THAT(run->Output(),
              HasSubstr("train.csv:3: column 'y': 'red' is no finite number"));
}

}  // namespace slackline::data_sets_test
