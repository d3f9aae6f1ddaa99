#include "tools/cli/members/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "job/job_config.h"
#include "tests/support/temp_folder.h"

namespace slackline::capacity_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

config::ClusterConfig JobWith(int workers, const std::string& data,
                              const std::string& hidden = "8") {
  const auto config = ParseJobConfig(
      absl::StrCat("job: 'x' server { host: 'localhost' count: 2 threads: 3 } "
                   "worker { host: 'localhost' count: ",
                   workers, " threads: 2 } model { mlp { hidden: [", hidden,
                   "] } } data { ", data,
                   " } optimizer { sgd { learning_rate: 0.1 } }"),
      "c.txt");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : config::ClusterConfig();
}

constexpr char kGenerated[] =
    "teacher_student { features: 100 train_examples: 9000 test_examples: 1000 "
    "}";

TEST(CapacityTest, KnowsThisMachine) {
  const Capacity here = CapacityHere();
  EXPECT_GE(here.cores, 1);
  EXPECT_GT(here.memory_bytes, 1 << 20);
}

TEST(DemandTest, CountsProcessesAndThreads) {
  const Demand demand = DemandOf(JobWith(4, kGenerated), ".");
  EXPECT_EQ(demand.servers, 2);
  EXPECT_EQ(demand.workers, 4);
  EXPECT_EQ(demand.threads, 2 * 3 + 4 * 2);
}

TEST(DemandTest, EachWorkerHasTheDataAndTheModel) {
  const Demand small = DemandOf(JobWith(4, kGenerated), ".");
  EXPECT_EQ(small.data_bytes, 4 * 100 * 10000);
  EXPECT_GT(small.worker_bytes, small.data_bytes);
  const Demand large = DemandOf(JobWith(4, kGenerated, "5000, 5000"), ".");
  EXPECT_GT(large.worker_bytes, small.worker_bytes + 4 * 5000 * 5000);
  EXPECT_GT(large.server_bytes, small.server_bytes);
  EXPECT_EQ(DemandOf(JobWith(8, kGenerated), ".").memory_bytes() -
                small.memory_bytes(),
            4 * small.worker_bytes);
}

TEST(DemandTest, ACompressedFileCountsAsLargeAsItBecomes) {
  const TempFolder folder;
  folder.Write("plain", std::string(1000, 'x'));
  // As gzip ends a file of 0x01020304 bytes.
  folder.Write("small.gz", std::string("whatever\x04\x03\x02\x01", 12));
  const Demand demand = DemandOf(
      JobWith(1, "libsvm { train: 'small.gz' test: 'plain' features: 3 }"),
      folder.path());
  EXPECT_EQ(demand.data_bytes, 0x01020304 + 1000);
}

TEST(DemandTest, FilesThatAreNotThereCountNothing) {
  const TempFolder folder;
  EXPECT_EQ(DemandOf(JobWith(1, "idx {}"), folder.path()).data_bytes, 0);
}

Demand MakeDemand(int workers) {
  return {.servers = 1,
          .workers = workers,
          .threads = 1 + workers,
          .data_bytes = 20'000'000,
          .server_bytes = 5'000'000,
          .worker_bytes = 100'000'000};
}

TEST(CoresWarningTest, OnlyWhereThereAreFarMoreThreadsThanCores) {
  EXPECT_EQ(CoresWarning(MakeDemand(7), {.cores = 2}), "");
  EXPECT_THAT(CoresWarning(MakeDemand(500), {.cores = 2}),
              AllOf(HasSubstr("500 workers and 1 server have 501 threads"),
                    HasSubstr("2 cores")));
  EXPECT_EQ(CoresWarning(MakeDemand(500), {}), "") << "nobody knows the cores";
}

TEST(CheckMemoryTest, RefusesWithTheFigures) {
  EXPECT_TRUE(CheckMemory(MakeDemand(4), {.memory_bytes = 405'000'000}).ok());
  EXPECT_TRUE(CheckMemory(MakeDemand(500), {}).ok()) << "nobody knows it";
  const absl::Status refused =
      CheckMemory(MakeDemand(500), {.memory_bytes = 22'000'000'000});
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("about 50.0 GB"), HasSubstr("22.0 GB are free"),
                    HasSubstr("500 workers with 100 MB each (20.0 MB of it "
                              "data)"),
                    HasSubstr("--no-memory-check")));
}

}  // namespace slackline::capacity_test
