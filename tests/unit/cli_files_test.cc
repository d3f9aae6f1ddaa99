// The parts of the command-line tool that read what runs have left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/modes.h"
#include "tools/cli/job/status_table.h"
#include "tools/cli/run/logs.h"
#include "tools/cli/run/out_folder.h"
#include "tools/cli/run/summary_table.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

fs::path TestFolder() {
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const fs::path folder = fs::path(::testing::TempDir()) /
                          (std::string("slackline-") + test->name());
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

void WriteFile(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

run::Summary MakeSummary(const std::string& mode) {
  run::Summary summary;
  summary.set_job("digits");
  summary.set_mode(mode);
  summary.set_steps(1170);
  summary.set_wall_seconds(83);
  summary.set_examples_per_second(3608);
  summary.set_train_loss(0.0123);
  summary.set_test_loss(0.0678);
  summary.set_test_accuracy(0.9804);
  summary.mutable_missed_clocks()->set_p50(1);
  summary.mutable_missed_clocks()->set_p99(3);
  summary.mutable_missed_clocks()->set_max(4);
  summary.set_bytes_pushed(1000000000);
  summary.set_bytes_pulled(1500000000);
  summary.set_retries(2);
  summary.set_bytes_resent(3000000);
  summary.set_model_sha256("0123456789abcdef0123");
  return summary;
}

TEST(LogsTest, TheLastLinesSkipBlankOnes) {
  EXPECT_THAT(LastLines("a\nb\n\nc\n \n", 2), testing::ElementsAre("b", "c"));
  EXPECT_THAT(LastLines("", 2), testing::IsEmpty());
}

TEST(LogsTest, TheErrorIsTheLastLineThatLooksLikeOne) {
  EXPECT_EQ(ErrorLine("10:00:00.000 worker 1 info: joined\n"), "");
  EXPECT_EQ(ErrorLine("10:00:00.000 worker 1 error: first\n"
                      "10:00:01.000 worker 1 error: data: error: gone\n"
                      "10:00:02.000 worker 1 info: bye\n"),
            "data: error: gone");
  EXPECT_EQ(ErrorLine("[error] no port\n"), "no port");
  EXPECT_EQ(ErrorLine("x.cc:3: check failed: a > b: why\n"),
            "x.cc:3: check failed: a > b: why");
}

TEST(LogsTest, TheCoordinatorsReasonWins) {
  EXPECT_EQ(ErrorLine("10:00:00.000 server 0 info: the job has failed: worker "
                      "1 left: out of memory\n"
                      "10:00:01.000 server 0 error: something later\n"),
            "worker 1 left: out of memory");
}

TEST(LogsTest, TheTailOfALongFileStartsWithALine) {
  const fs::path folder = TestFolder();
  WriteFile(folder / "log", "first line\nsecond line\nthird line\n");
  EXPECT_EQ(ReadTail((folder / "log").string()),
            "first line\nsecond line\nthird line\n");
  EXPECT_EQ(ReadTail((folder / "log").string(), 25),
            "second line\nthird line\n");
  EXPECT_EQ(ReadTail((folder / "none").string()), "");
}

TEST(SummaryTest, ManyRunsMakeOneTable) {
  const std::string table =
      SummaryTable({{.folder = "runs/a", .summary = MakeSummary("bsp")},
                    {.folder = "runs/b", .summary = MakeSummary("allreduce")}});
  EXPECT_THAT(table, HasSubstr("mode       steps  time  examples/s"));
  EXPECT_THAT(table,
              HasSubstr("bsp         1170  1:23      3.61 k      "
                        "0.0123     0.0678   98.04 %      1/3/4  "
                        "2.50 GB        2  3.00 MB  0123456789ab  runs/a\n"));
  EXPECT_THAT(table, HasSubstr("allreduce   1170"));
  EXPECT_THAT(table, HasSubstr("          -  2.50 GB"));
  EXPECT_THAT(table, Not(HasSubstr("digits"))) << "one job needs no column";
}

TEST(SummaryTest, WhatARunDidNotMeasureIsNoZero) {
  run::Summary older = MakeSummary("asp");
  older.clear_missed_clocks();
  EXPECT_THAT(SummaryTable({{.folder = "a", .summary = older}}),
              HasSubstr("98.04 %          -  2.50 GB"));
}

TEST(SummaryTest, RunsOfSeveralJobsAreNamed) {
  run::Summary other = MakeSummary("bsp");
  other.set_job("letters");
  const std::string table =
      SummaryTable({{.folder = "a", .summary = MakeSummary("bsp")},
                    {.folder = "b", .summary = other}});
  EXPECT_THAT(table, HasSubstr("digits   bsp"));
  EXPECT_THAT(table, HasSubstr("letters  bsp"));
}

TEST(SummaryTest, ChangesOfTheModeAreCountedWhereThereWereAny) {
  run::Summary changed = MakeSummary("auto");
  changed.set_mode_changes(2);
  const std::string table =
      SummaryTable({{.folder = "a", .summary = MakeSummary("bsp")},
                    {.folder = "b", .summary = changed}});
  EXPECT_THAT(table, HasSubstr("mode  changes  steps"));
  EXPECT_THAT(table, HasSubstr("bsp         0   1170"));
  EXPECT_THAT(table, HasSubstr("auto        2   1170"));
  EXPECT_THAT(SummaryTable({{.folder = "a", .summary = MakeSummary("bsp")}}),
              Not(HasSubstr("changes")));
}

TEST(SummaryTest, TellsOfLostWorkersAndOfTheData) {
  run::Summary summary = MakeSummary("asp");
  summary.add_workers_lost("worker 2 is dead");
  summary.set_data("generated stand-in");
  const std::string table = SummaryTable({{.folder = "a", .summary = summary}});
  EXPECT_THAT(table, HasSubstr("lost in digits asp: worker 2 is dead\n"));
  EXPECT_THAT(table, HasSubstr("data: generated stand-in\n"));
}

TEST(SummaryTest, TellsTheEndOfATraceback) {
  run::Summary summary = MakeSummary("asp");
  run::Traceback& traceback = *summary.add_traceback();
  traceback.set_rank(1);
  traceback.set_text("Traceback\n 1\n 2\n 3\n 4\n 5\nKeyError: 'x'\n");
  const std::string table = SummaryTable({{.folder = "a", .summary = summary}});
  EXPECT_THAT(table, HasSubstr("where worker 1 of digits asp failed"));
  EXPECT_THAT(table, HasSubstr("):\n   1\n   2\n"));
  EXPECT_THAT(table, HasSubstr("  KeyError: 'x'\n"));
}

TEST(SummaryTest, TellsWhichRuleHasStoppedARun) {
  run::Summary summary = MakeSummary("asp");
  summary.set_stopped("test loss 0.08 reached 0.1 at step 9 after 2.0 s");
  EXPECT_THAT(SummaryTable({{.folder = "a", .summary = summary}}),
              HasSubstr("stopped digits asp: test loss 0.08 reached"));
}

TEST(SummaryTest, TellsWhyARunHasFailedAndWhatWasNotMeasured) {
  run::Summary summary = MakeSummary("asp");
  summary.set_state("FAILED");
  summary.set_cause("SERVER_LOST");
  summary.set_reason("server 1 is dead");
  summary.clear_test_loss();
  summary.clear_test_accuracy();
  const std::string table = SummaryTable({{.folder = "a", .summary = summary}});
  EXPECT_THAT(table, HasSubstr("0.0123          -         -      1/3/4"));
  EXPECT_THAT(table,
              HasSubstr("failed digits asp: SERVER_LOST: server 1 is dead\n"));
}

TEST(SummaryTest, ReadsTheJsonOfARun) {
  const fs::path folder = TestFolder();
  WriteFile(folder / "summary.json",
            "{\"job\": \"digits\", \"steps\": \"1170\", \"test_accuracy\": "
            "0.98, \"test_loss\": null, \"from_a_newer_version\": 1}");
  const absl::StatusOr<RunResult> run = ReadRunResult(folder.string());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->folder, folder.string());
  EXPECT_EQ(run->summary.steps(), 1170);
  EXPECT_DOUBLE_EQ(run->summary.test_accuracy(), 0.98);
  EXPECT_FALSE(run->summary.has_test_loss());
}

TEST(SummaryTest, NamesTheFileThatIsMissingOrBroken) {
  const fs::path folder = TestFolder();
  const absl::Status missing = ReadRunResult(folder.string()).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("summary.json"));
  WriteFile(folder / "summary.json", "{\"job\": ");
  const absl::Status broken = ReadRunResult(folder.string()).status();
  EXPECT_TRUE(absl::IsDataLoss(broken));
  EXPECT_THAT(std::string(broken.message()), HasSubstr("summary.json"));
}

wire::StatusReply MakeStatus() {
  wire::StatusReply status;
  status.mutable_view()->set_job("digits");
  status.mutable_view()->set_state(wire::RUNNING);
  *status.mutable_view()->add_phase()->mutable_mode() = ModeOf("asp");
  status.mutable_view()->set_steps_total(100);
  for (const int rank : {1, 0}) {
    run::WorkerStats& worker = *status.add_worker();
    worker.set_rank(rank);
    worker.set_clock(20 + rank);
    worker.set_examples(6000);
    worker.set_compute_seconds(3);
    worker.set_wait_seconds(1);
    worker.set_alive(true);
    worker.set_heard_ms_ago(120);
    worker.set_pid(4711);
  }
  run::ServerStats& server = *status.add_server();
  server.set_shards(9);
  server.set_alive(true);
  server.set_pulls_parked(3);
  return status;
}

TEST(StatusTest, ShowsWorkersByRankAndServers) {
  const std::string table = StatusTable(MakeStatus());
  EXPECT_THAT(table, HasSubstr("job digits is running"));
  EXPECT_THAT(table, HasSubstr("step 20/100 20 %"));
  const std::string worker0 = "0  4711  alive  120 ms ago     20";
  const std::string worker1 = "1  4711  alive  120 ms ago     21";
  ASSERT_THAT(table, HasSubstr(worker0));
  ASSERT_THAT(table, HasSubstr(worker1));
  EXPECT_LT(table.find(worker0), table.find(worker1));
  EXPECT_THAT(table, HasSubstr("1.50 k     25 %"));
}

TEST(StatusTest, ShowsThePolicyAndTheChangesOfTheMode) {
  wire::StatusReply status = MakeStatus();
  EXPECT_THAT(StatusTable(status), Not(HasSubstr("mode policy")));
  EXPECT_THAT(StatusTable(status), Not(HasSubstr("changes of the mode")));
  status.set_mode_policy("worker 3 takes 3.1 times the median step");
  for (const char* mode : {"bsp", "asp"}) {
    run::ModeRecord& record = *status.add_mode_changed();
    *record.mutable_from() = ModeOf("allreduce");
    *record.mutable_to() = ModeOf(mode);
  }
  const std::string table = StatusTable(status, {.top = 1});
  EXPECT_THAT(table, HasSubstr("asp (auto)  step 20/100"));
  EXPECT_THAT(table, HasSubstr("mode policy: worker 3 takes 3.1 times"));
  EXPECT_THAT(table, HasSubstr("last changes of the mode:\n"));
  EXPECT_THAT(table, HasSubstr("allreduce  asp"));
  EXPECT_THAT(table, Not(HasSubstr("allreduce  bsp"))) << "one at most";
}

TEST(StatusTest, ShowsWhoIsMissingAndWhyAJobHasFailed) {
  wire::StatusReply status;
  status.mutable_view()->set_state(wire::FAILED);
  status.mutable_view()->mutable_end()->set_reason("nobody came");
  status.add_missing("worker 3");
  const std::string table = StatusTable(status);
  EXPECT_THAT(table, HasSubstr("is failed"));
  EXPECT_THAT(table, HasSubstr("reason: nobody came\n"));
  EXPECT_THAT(table, HasSubstr("missing: worker 3\n"));
}

TEST(StatusTest, JsonHasTheNamesOfTheSchema) {
  const std::string json = StatusJson(MakeStatus());
  EXPECT_THAT(json, HasSubstr("\"pulls_parked\""));
  EXPECT_THAT(json, HasSubstr("\"RUNNING\""));
}

TEST(RunNameTest, IsAFileNameForEveryMode) {
  EXPECT_EQ(RunName("digits", "ssp:3", absl::FromUnixSeconds(1767323045)),
            "digits-ssp-3-20260102T030405Z");
  EXPECT_EQ(RunName("digits", "allreduce until epoch 0.5, ssp:4",
                    absl::FromUnixSeconds(1767323045)),
            "digits-phases-20260102T030405Z");
}

TEST(StatusTableTest, SaysWhoHoldsWhomUpAndWhatEachDoes) {
  wire::StatusReply status;
  status.mutable_view()->set_state(wire::RUNNING);
  status.add_held_up("worker 2 holds up workers 0, 1: it is computing step 17");
  run::WorkerStats& worker = *status.add_worker();
  worker.set_rank(2);
  worker.mutable_progress()->set_what("computing step 17");
  worker.mutable_progress()->set_for_ms(12300);
  run::WorkerStats& brisk = *status.add_worker();
  brisk.set_rank(3);
  brisk.mutable_progress()->set_what("computing step 18");
  brisk.mutable_progress()->set_for_ms(300);
  const std::string text = StatusTable(status);
  EXPECT_THAT(text, HasSubstr("\nheld up: worker 2 holds up workers 0, 1: it "
                              "is computing step 17\n"));
  EXPECT_THAT(text, HasSubstr("computing step 17 for 12 s\n"));
  EXPECT_THAT(text, HasSubstr("computing step 18\n"));
}

TEST(SummaryTableTest, SaysWhichFilesLackRecords) {
  run::Summary summary = MakeSummary("bsp");
  summary.set_files_incomplete("run/metrics.jsonl lacks 2 records: no space");
  EXPECT_THAT(SummaryTable({{.folder = "run", .summary = summary}}),
              HasSubstr("incomplete in digits bsp: run/metrics.jsonl lacks 2 "
                        "records: no space\n"));
}

}  // namespace
}  // namespace slackline
