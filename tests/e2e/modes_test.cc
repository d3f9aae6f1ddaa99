// Goal: in every mode a job trains, ends well, and leaves complete and true
// records; in BSP the seed alone decides every bit of the result.
// Method: `slackline run` on a small job; its files are read again.
#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::modes_test {

namespace fs = std::filesystem;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

constexpr int kServers = 2;
constexpr int kWorkers = 4;
constexpr int64_t kSteps = 300;
constexpr int64_t kBatch = 20;

struct ModeCase {
  std::string name;
  std::string mode;       // As in --mode and in the summary.
  int64_t staleness_max;  // In clocks; -1: none.
  // Who is late skips steps, and may pull twice.
  bool skips() const { return name == "backup"; }
};

class EveryMode : public JobTest,
                  public testing::WithParamInterface<ModeCase> {};

INSTANTIATE_TEST_SUITE_P(Modes, EveryMode,
                         testing::Values(ModeCase{"bsp", "bsp", 0},
                                         ModeCase{"ssp", "ssp:3", 3},
                                         ModeCase{"asp", "asp", -1},
                                         ModeCase{"dssp", "dssp:2:6", 6},
                                         ModeCase{"backup", "backup:1", 0},
                                         ModeCase{"allreduce", "allreduce", 0}),
                         [](const auto& test) { return test.param.name; });

// Each pull of a shard for a step is counted once, and each push; and the bins
// agree with the figures.
void CheckHistograms(const nlohmann::json& summary, const ModeCase& mode) {
  uint64_t counts[2] = {0, 0};
  int i = 0;
  for (const char* const field : {"lead", "missed_updates"}) {
    const nlohmann::json& bins = summary[absl::StrCat(field, "_histogram")];
    for (const nlohmann::json& bin : bins) counts[i] += bin.get<uint64_t>();
    if (!bins.empty() && bins.size() < 1024) {
      EXPECT_EQ(bins.size(), summary[field]["max"].get<size_t>() + 1) << field;
    }
    ++i;
  }
  if (mode.skips()) return;
  constexpr uint64_t kPushes = kSteps * kWorkers;
  EXPECT_EQ(counts[1] % kPushes, 0u) << "all shards, each push";
  EXPECT_EQ(counts[0], counts[1]);
  EXPECT_EQ(counts[0] == 0, mode.mode == "allreduce");
}

// Servers say of each gradient what became of it, and have counted as many as
// workers have sent.
void CheckCounters(const nlohmann::json& summary, const ModeCase& mode) {
  const auto count = [&](const char* name) {
    return summary[name].get<uint64_t>();
  };
  EXPECT_EQ(count("pushes"), count("applied") + count("held") +
                                 count("dropped") + count("nonfinite") +
                                 count("oversized"));
  EXPECT_EQ(count("held"), 0u) << "the last clock is complete";
  EXPECT_EQ(count("nonfinite"), 0u);
  for (const char* const field : {"missed_updates", "missed_clocks"}) {
    uint64_t in_histogram = 0;
    for (const nlohmann::json& bin : summary[absl::StrCat(field, "_histogram")])
      in_histogram += bin.get<uint64_t>();
    EXPECT_EQ(count("applied"), in_histogram) << field;
  }
  if (mode.skips()) return;
  EXPECT_EQ(count("dropped"), 0u);
  EXPECT_EQ(count("pushes") % (kSteps * kWorkers), 0u) << "all shards";
}

// The figures of each worker are those of its last step.
void CheckWorkers(const nlohmann::json& summary, const ModeCase& mode) {
  ASSERT_THAT(summary["worker"], SizeIs(kWorkers));
  uint64_t pushed = 0;
  uint64_t pulled = 0;
  for (int rank = 0; rank < kWorkers; ++rank) {
    const nlohmann::json& worker = summary["worker"][rank];
    EXPECT_EQ(worker["rank"], rank);
    EXPECT_EQ(worker["steps"], kSteps);
    if (mode.skips()) {
      EXPECT_LE(worker["examples"], kSteps * kBatch);
      EXPECT_GT(worker["examples"], 0);
    } else {
      EXPECT_EQ(worker["examples"], kSteps * kBatch);
    }
    EXPECT_GT(worker["compute_seconds"], 0.0);
    EXPECT_GT(worker["wait_seconds"], 0.0);
    EXPECT_LE(worker["compute_seconds"].get<double>() +
                  worker["wait_seconds"].get<double>(),
              summary["wall_seconds"].get<double>());
    // The phases are all of the steps' time.
    double phases = 0;
    for (const auto& [phase, seconds] : worker["phase_seconds"].items()) {
      EXPECT_GE(seconds, 0.0) << phase;
      phases += seconds.get<double>();
    }
    EXPECT_GE(phases, worker["compute_seconds"].get<double>());
    EXPECT_LE(phases, summary["wall_seconds"].get<double>());
    EXPECT_GT(worker["phase_seconds"]["loading"], 0.0);
    EXPECT_GT(worker["phase_seconds"]["computing"], 0.0);
    pushed += worker["bytes_pushed"].get<uint64_t>();
    pulled += worker["bytes_pulled"].get<uint64_t>();
  }
  EXPECT_EQ(pushed, summary["bytes_pushed"].get<uint64_t>());
  EXPECT_EQ(pulled, summary["bytes_pulled"].get<uint64_t>());
}

void CheckSummary(const nlohmann::json& summary, const ModeCase& mode) {
  std::vector<std::string> fields;
  for (const auto& [field, value] : summary.items()) fields.push_back(field);
  ASSERT_THAT(fields, IsSupersetOf({"job",
                                    "mode",
                                    "seed",
                                    "steps",
                                    "wall_seconds",
                                    "examples_per_second",
                                    "train_loss",
                                    "test_loss",
                                    "test_accuracy",
                                    "missed_clocks",
                                    "missed_updates",
                                    "lead",
                                    "bytes_pushed",
                                    "bytes_pulled",
                                    "retries",
                                    "bytes_resent",
                                    "workers",
                                    "servers",
                                    "workers_lost",
                                    "data",
                                    "model_sha256",
                                    "missed_clocks_histogram",
                                    "missed_updates_histogram",
                                    "lead_histogram",
                                    "pushes",
                                    "applied",
                                    "held",
                                    "dropped",
                                    "nonfinite",
                                    "oversized",
                                    "duplicates",
                                    "worker",
                                    "stopped"}));
  EXPECT_EQ(summary["job"], "small");
  EXPECT_EQ(summary["mode"], mode.mode);
  EXPECT_EQ(summary["seed"], 1);
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_EQ(summary["workers"], kWorkers);
  EXPECT_EQ(summary["servers"], kServers);
  ASSERT_THAT(summary["program"], SizeIs(2));
  EXPECT_EQ(summary["program"][0]["program"], "slackline_server");
  EXPECT_EQ(summary["program"][0]["servers"], kServers);
  EXPECT_EQ(summary["program"][1]["program"], "slackline_worker");
  EXPECT_EQ(summary["program"][1]["workers"], kWorkers);
  for (const nlohmann::json& program : summary["program"])
    EXPECT_THAT(program["build_id"].get<std::string>(), SizeIs(testing::Ge(8)));
  EXPECT_THAT(summary["data_hash"].get<std::string>(), SizeIs(16));
  EXPECT_THAT(summary["workers_lost"], SizeIs(0));
  EXPECT_GT(summary["wall_seconds"], 0.0);
  int64_t examples = 0;
  for (const nlohmann::json& worker : summary["worker"])
    examples += worker["examples"].get<int64_t>();
  EXPECT_NEAR(
      summary["examples_per_second"].get<double>(),
      static_cast<double>(examples) / summary["wall_seconds"].get<double>(),
      1e-3 * summary["examples_per_second"].get<double>());
  // Four classes of about equal size: guessing scores a quarter, ln 4 = 1.39.
  EXPECT_GT(summary["test_accuracy"], 0.7);
  EXPECT_LE(summary["test_accuracy"], 1.0);
  EXPECT_GT(summary["train_loss"], 0.0);
  EXPECT_LT(summary["train_loss"], 0.7);
  EXPECT_LT(summary["test_loss"], 0.7);
  for (const char* const field : {"missed_clocks", "missed_updates", "lead"}) {
    const nlohmann::json& staleness = summary[field];
    EXPECT_GE(staleness["p50"], 0) << field;
    EXPECT_LE(staleness["p50"], staleness["p99"]) << field;
    EXPECT_LE(staleness["p99"], staleness["max"]) << field;
  }
  if (mode.staleness_max >= 0) {
    EXPECT_LE(summary["lead"]["max"], mode.staleness_max);
  }
  EXPECT_EQ(summary["stopped"], "");
  if (!mode.skips()) {
    EXPECT_EQ(summary["dropped"], 0);
  }
  CheckHistograms(summary, mode);
  CheckCounters(summary, mode);
  CheckWorkers(summary, mode);
  // 16 * 32 + 32 + 32 * 4 + 4 parameters of 4 bytes cross once per step and
  // worker, each way; the first pull and that of the final model come on top.
  constexpr int64_t kModelBytes = (16 * 32 + 32 + 32 * 4 + 4) * 4;
  const int64_t pushed = mode.mode == "allreduce" ? 0 : kSteps * kWorkers;
  const int64_t pulled = pushed == 0 ? 0 : pushed + 1;
  if (mode.skips()) {
    EXPECT_LE(summary["bytes_pushed"], kModelBytes * pushed);
    EXPECT_GE(summary["bytes_pushed"], kModelBytes * kSteps * (kWorkers - 1));
    return;
  }
  EXPECT_EQ(summary["bytes_pushed"], kModelBytes * pushed);
  EXPECT_EQ(summary["bytes_pulled"], kModelBytes * pulled);
}

// Each worker's training records in the order of their steps, up to the last,
// and the evaluations of one of them.
void CheckMetrics(const std::vector<nlohmann::json>& records,
                  const nlohmann::json& summary, bool skips) {
  std::map<int, std::vector<int64_t>> train_steps, eval_steps;
  // What is known later, of others or after an evaluation, comes later.
  std::map<std::pair<int, bool>, double> last_seconds;
  for (const nlohmann::json& record : records) {
    const bool train = record["kind"] == "train";
    EXPECT_TRUE(train || record["kind"] == "eval") << record;
    (train ? train_steps : eval_steps)[record["rank"]].push_back(
        record["step"]);
    EXPECT_DOUBLE_EQ(record["epoch"].get<double>(),
                     record["step"].get<double>() / 100);
    EXPECT_GT(record["loss"], 0.0);
    double& last = last_seconds[{record["rank"], train}];
    EXPECT_GE(record["seconds"], last);
    last = record["seconds"];
    if (train) {
      EXPECT_GT(record["examples_per_second"], 0.0);
    } else if (record["step"] == kSteps) {
      EXPECT_DOUBLE_EQ(record["loss"], summary["test_loss"]);
      EXPECT_DOUBLE_EQ(record["accuracy"], summary["test_accuracy"]);
    }
  }
  EXPECT_THAT(train_steps, SizeIs(kWorkers));
  if (skips) return;
  // 20 records per epoch.
  std::vector<int64_t> every_fifth;
  for (int64_t step = 5; step <= kSteps; step += 5) every_fifth.push_back(step);
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_EQ(train_steps[rank], every_fifth) << "rank " << rank;
  }
  EXPECT_EQ(eval_steps,
            (std::map<int, std::vector<int64_t>>{{0, {100, 200, 300}}}));
}

TEST_P(EveryMode, TrainsAndLeavesCompleteRecords) {
  const std::string config = Write("job.textproto", SmallJob());
  Run("run", config, {absl::StrCat("--mode=", GetParam().mode)});
  ExpectNoProcessLeft();

  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  CheckSummary(summary, GetParam());
  CheckMetrics(ReadJsonLines(Path("run/metrics.jsonl")), summary,
               GetParam().skips());
  EXPECT_EQ(ModelSha256(ReadModel(Path("run"))), summary["model_sha256"]);

  const auto resolved = LoadJobConfig(Path("run/cluster.textproto"));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(ModeText(*resolved), GetParam().mode);
  EXPECT_NE(resolved->coordinator().port(), 0);
  for (int i = 0; i < kServers; ++i) {
    EXPECT_THAT(ReadText(Path(absl::StrCat("run/logs/server-", i, ".log"))),
                HasSubstr("done"));
  }
  for (int i = 0; i < kWorkers; ++i) {
    EXPECT_THAT(ReadText(Path(absl::StrCat("run/logs/worker-", i, ".log"))),
                HasSubstr("completed 300 steps"));
  }
}

class BspJob : public JobTest {
 protected:
  // The hash of the final model.
  std::string RunWithSeed(const std::string& name, int seed) {
    Run(name, Write(absl::StrCat(name, ".textproto"), SmallJob()),
        {"--mode=bsp", absl::StrCat("--seed=", seed), "--epochs=1"});
    const nlohmann::json summary = ReadJson(Path(name) + "/summary.json");
    return summary.value("model_sha256", "no summary");
  }
};

TEST_F(BspJob, SameSeedGivesTheSameBitsAndAnotherSeedOthers) {
  const std::string first = RunWithSeed("first", 1);
  EXPECT_THAT(first, SizeIs(64));
  EXPECT_EQ(RunWithSeed("again", 1), first);
  EXPECT_NE(RunWithSeed("other", 2), first);
}

TEST_F(BspJob, ProcessesStartedByHandInAnyOrderGiveTheSameResult) {
  const std::string config = WriteWithPort(
      "by-hand.textproto", absl::StrCat(SmallJob(), "sync { bsp {} }"));
  const std::vector<std::string> arguments = {"--set=train.epochs=1"};
  std::vector<std::unique_ptr<Process>> members;
  // The coordinator comes last: the others wait for it.
  for (const int i : {2, 0}) {
    members.push_back(StartMember(absl::StrCat("worker-", i),
                                  "slackline_worker", i, config, "by-hand",
                                  arguments));
  }
  members.push_back(StartMember("server-1", "slackline_server", 1, config,
                                "by-hand", arguments));
  for (const int i : {3, 1}) {
    members.push_back(StartMember(absl::StrCat("worker-", i),
                                  "slackline_worker", i, config, "by-hand",
                                  arguments));
  }
  members.push_back(StartMember("server-0", "slackline_server", 0, config,
                                "by-hand", arguments));
  for (const std::unique_ptr<Process>& member : members) {
    EXPECT_EQ(member->WaitText(kJobMax), kEndedWell) << member->Output();
  }
  const nlohmann::json by_hand = ReadJson(Path("by-hand/summary.json"));
  EXPECT_EQ(ModelSha256(ReadModel(Path("by-hand"))), by_hand["model_sha256"]);
  EXPECT_THAT(ReadJsonLines(Path("by-hand/metrics.jsonl")),
              SizeIs(Gt(kWorkers * 20)));
  EXPECT_EQ(RunWithSeed("run", 1), by_hand["model_sha256"]);
}

}  // namespace slackline::modes_test
