// The parts of the command-line tool that read what runs have left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/metrics/metric_table.h"
#include "common/net/zmq/zmq_transport.h"
#include "job/job_config.h"
#include "server/coordinator/run_files.h"
#include "tests/support/modes.h"
#include "tools/cli/display.h"
#include "tools/cli/experiment/results_table.h"
#include "tools/cli/job/lost_run.h"
#include "tools/cli/job/run_records.h"
#include "tools/cli/job/status_table.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/json.h"
#include "tools/cli/members/local_hosts.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/run/out_folder.h"
#include "tools/cli/run/run_beginning.h"

namespace slackline::cli_files_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
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

TEST(ResultsTableTest, RunsThatDivergedAreCountedAsSuch) {
  const fs::path folder = TestFolder();
  fs::create_directories(folder / "data");
  WriteFile(folder / "data" / "results.json", R"({
    "metrics": [{"key": "test_loss", "label": "test loss", "unit": ""}],
    "variants": [
      {"name": "tame", "runs": 3, "finished": 3, "diverged": 0,
       "metrics": {"test_loss": {"mean": 0.5, "low95": 0.4, "high95": 0.6,
                                 "count": 3}}},
      {"name": "wild", "runs": 3, "finished": 1, "diverged": 2,
       "metrics": {"test_loss": {"mean": 0.75, "low95": null, "high95": null,
                                 "count": 1}}}]})");
  const absl::StatusOr<std::string> table = ResultsTable(folder.string());
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, HasSubstr("0.5000 [0.4000, 0.6000]"));
  EXPECT_THAT(*table, HasSubstr("1/3, 2 diverged"));
  EXPECT_THAT(*table, Not(HasSubstr("0 diverged")));
}

TEST(LogsTest, OneThatIsPutAsideIsWhollyThereAndItsWriterGoesOn) {
  const fs::path folder = TestFolder();
  const std::string path = (folder / "worker-2.log").string();
  const std::string old = (folder / "worker-2.old.log").string();
  WriteFile(old, "of the time before\n");
  std::ofstream writer(path, std::ios::binary | std::ios::app);
  for (int i = 0; i < 20000; ++i) writer << "line " << i << "\n";
  writer.flush();
  ASSERT_TRUE(PutLogAside(path).ok());
  EXPECT_EQ(fs::file_size(path), 0u);
  const std::string aside = ReadTail(old, 1 << 20);
  EXPECT_THAT(aside, testing::StartsWith("line 0\n"));
  EXPECT_THAT(aside, testing::EndsWith("line 19999\n"));
  writer << "line 20000\n" << std::flush;
  EXPECT_EQ(ReadTail(path), "line 20000\n");
  EXPECT_THAT(ReadLogTail(path, 64),
              testing::EndsWith("line 19999\nline 20000\n"));
  // The end of a line that began before does not go on in the old one.
  WriteFile(path, std::string(100, 'x') + "\nlast words\n");
  EXPECT_EQ(ReadLogTail(path, 64), "last words\n");
  WriteFile(path, "line 20000\n");
  EXPECT_EQ(OldLogOf("logs/worker-2.3.log"), "logs/worker-2.3.old.log");
  // Nothing of it is left over, or lost, where it cannot be.
  fs::remove(old);
  fs::create_directories(fs::path(old) / "in the way");
  EXPECT_THAT(PutLogAside(path).ToString(), HasSubstr(old));
  EXPECT_EQ(ReadTail(path), "line 20000\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 2);
}

TEST(LogsTest, TheLastLinesSkipBlankOnes) {
  EXPECT_THAT(LastLines("a\nb\n\nc\n \n", 2), testing::ElementsAre("b", "c"));
  EXPECT_THAT(LastLines("", 2), testing::IsEmpty());
}

TEST(LogsTest, TheErrorIsTheLastLineThatLooksLikeOne) {
  EXPECT_EQ(ErrorLine("10:00:00.000 worker 1 info: joined\n"), "");
  EXPECT_EQ(ErrorLine("2026-01-02 10:00:00.000 worker 1 error: first\n"
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

// ---- Records of a run that has no summary -----------------------------------

TEST(RunRecordsTest, SayWhatTheyKnowOfTheRun) {
  const fs::path folder = TestFolder();
  // Two workers of an earlier run came to step 10; this one begins there.
  WriteFile(
      folder / "metrics.jsonl",
      R"({"kind":"train","rank":0,"step":10,"seconds":90,"loss":9,"examples_per_second":7}
{"kind":"train","rank":0,"step":20,"seconds":1.0,"loss":2.0,"examples_per_second":100}
{"kind":"train","rank":1,"step":20,"seconds":2.0,"loss":4.0,"examples_per_second":50}
{"kind":"eval","rank":0,"step":20,"seconds":2.5,"loss":0.7,"accuracy":0.8}
no record
{"kind":"eval","rank":0,"step":30,"seconds":2.75,"loss":0.6}
{"kind":"train","rank":0,"step":30,"seconds":2.0,"loss":1.0,"examples_per_second":300}
{"kind":"train","rank":0,"step":40)");
  run::Summary summary;
  summary.set_steps(33);
  const RecordsEnd end = PutRecordsOf(folder.string(), 10, &summary);
  EXPECT_EQ(end.records, 5);
  EXPECT_EQ(end.ToString(), "step 30, 2.8 s after the job began to run");
  EXPECT_EQ(summary.steps(), 33) << "a status has said more";
  EXPECT_EQ(summary.wall_seconds(), 2.0) << "of steps, not of evaluations";
  EXPECT_EQ(summary.examples_per_second(), (100 + 300 + 2 * 50) / 2.0);
  EXPECT_EQ(summary.train_loss(), 1.0) << "of who has come furthest";
  EXPECT_EQ(summary.test_loss(), 0.6);
  EXPECT_EQ(summary.test_accuracy(), 0.8);
}

TEST(RunRecordsTest, WhereThereAreNoneNothingIsSaid) {
  const fs::path folder = TestFolder();
  run::Summary summary;
  EXPECT_EQ(PutRecordsOf(folder.string(), 0, &summary).records, 0);
  WriteFile(folder / "metrics.jsonl", "");
  EXPECT_EQ(PutRecordsOf(folder.string(), 0, &summary).records, 0);
  EXPECT_EQ(summary.ByteSizeLong(), 0);
}

TEST(LostRunTest, IsOneWithRecordsAndWithoutASummary) {
  const fs::path folder = TestFolder();
  EXPECT_EQ(LostRunText(folder.string()), "") << "it has not begun";
  WriteFile(folder / "metrics.jsonl",
            R"({"kind":"train","rank":0,"step":20,"seconds":1.0,"loss":2.0})");
  EXPECT_THAT(LostRunText(folder.string()),
              AllOf(HasSubstr("ended without a word"),
                    HasSubstr("its records end at step 20, 1.0 s after the "
                              "job began to run")));
  EXPECT_THAT(LostRunAdvice(folder.string()),
              AllOf(HasSubstr("it has no checkpoint"),
                    HasSubstr("cluster.textproto --out "),
                    HasSubstr(" --new-run` begins it anew")));
  WriteFile(folder / "summary.json", "{}");
  EXPECT_EQ(LostRunText(folder.string()), "") << "it has said how it ended";
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

TEST(SummaryTest, NamesTheBestCheckpoint) {
  run::Summary summary = MakeSummary("bsp");
  run::BestCheckpoint& best = *summary.mutable_best_checkpoint();
  best.set_folder("ck/step-00000120");
  best.set_clock(120);
  best.set_evaluated_at(118);
  best.set_measure("accuracy");
  best.set_value(0.97312);
  EXPECT_THAT(SummaryTable({{.folder = "a", .summary = summary}}),
              HasSubstr("best checkpoint of digits bsp: step 120 is in "
                        "ck/step-00000120 (accuracy 0.9731 at step 118)\n"));
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

TEST(SummaryTest, TheJsonOfARunIsItsFile) {
  const fs::path folder = TestFolder();
  WriteFile(folder / "summary.json",
            "{\"steps\": 1170, \"retries\": 0, \"from_a_newer\": [1]}");
  const auto json = ReadRunJson(folder.string());
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->dump(), "{\"folder\":\"" + folder.string() +
                              "\",\"summary\":{\"steps\":1170,\"retries\":"
                              "0,\"from_a_newer\":[1]}}");
  WriteFile(folder / "summary.json", "[1]");
  EXPECT_TRUE(absl::IsDataLoss(ReadRunJson(folder.string()).status()));
}

TEST(SummaryTest, TellsHowARunHasEnded) {
  run::Summary summary = MakeSummary("asp");
  EXPECT_EQ(EndText(summary), "finished") << "an older version's";
  summary.set_state("FINISHED");
  summary.set_cause("COMPLETED");
  summary.set_reason("all workers have completed their steps");
  EXPECT_EQ(EndText(summary), "finished");
  summary.set_cause("STOP_RULE");
  summary.set_reason("test loss 0.08");
  EXPECT_EQ(EndText(summary), "finished: test loss 0.08");
  summary.set_state("FAILED");
  summary.set_cause("SERVER_LOST");
  summary.set_reason("server 1 is dead");
  EXPECT_EQ(EndText(summary), "failed: server 1 is dead");
}

TEST(SummaryTest, TellsWhatWasDoneAnewInItsFolder) {
  const fs::path folder = TestFolder();
  const auto write = [&](const std::string& where, int64_t from,
                         int64_t steps) {
    fs::create_directories(folder / where);
    WriteFile(folder / where / "summary.json",
              "{\"steps\": " + std::to_string(steps) +
                  ", \"resumed_from\": {\"clock\": " + std::to_string(from) +
                  "}}");
  };
  write("", 0, 1000);
  EXPECT_EQ(ReadRunResult(folder).value().earlier, 0);
  EXPECT_THAT(SummaryTable({ReadRunResult(folder).value()}),
              Not(HasSubstr("went on")));
  write("earlier-1", 0, 340);
  write("earlier-2", 300, 555);
  fs::create_directories(folder / "earlier-3");  // Nobody wrote its summary.
  write("earlier-4", 600, 700);
  write("", 650, 1000);
  const RunResult run = ReadRunResult(folder).value();
  EXPECT_EQ(run.earlier, 4);
  EXPECT_EQ(run.steps_anew, 40 + 50);
  EXPECT_THAT(SummaryTable({run}), HasSubstr("4 times"));
  EXPECT_THAT(SummaryTable({run}), HasSubstr("steps done anew: 90\n"));
}

TEST(OutFolderTest, AnEarlierRunIsPutAsideAndItsSummaryIsGone) {
  const fs::path folder = TestFolder();
  WriteFile(folder / "summary.json", "{}");
  WriteFile(folder / "metrics.jsonl", "line\n");
  ASSERT_TRUE(KeepEarlier(folder).ok());
  EXPECT_FALSE(fs::exists(folder / "summary.json"));
  EXPECT_TRUE(fs::exists(folder / "metrics.jsonl"));
  EXPECT_TRUE(fs::exists(folder / "earlier-1/summary.json"));
  EXPECT_TRUE(fs::exists(folder / "earlier-1/metrics.jsonl"));
  ASSERT_TRUE(KeepEarlier(folder).ok());
  EXPECT_TRUE(fs::exists(folder / "earlier-2/metrics.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "earlier-2/summary.json"));
}

TEST(OutFolderTest, ARecordingIsPutAsideBeforeServersOverwriteIt) {
  const fs::path folder = TestFolder();
  WriteFile(folder / "trace-server-0.jsonl", "first\n");
  WriteFile(folder / "trace-server-10.jsonl", "last\n");
  ASSERT_TRUE(KeepEarlier(folder).ok());
  EXPECT_FALSE(fs::exists(folder / "trace-server-0.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "trace-server-10.jsonl"));
  EXPECT_TRUE(fs::exists(folder / "earlier-1/trace-server-0.jsonl"));
  EXPECT_TRUE(fs::exists(folder / "earlier-1/trace-server-10.jsonl"));
}

// Writes the config of a run whose processes are all on one host.
config::ClusterConfig WriteConfig(const fs::path& folder,
                                  const std::string& host, int port) {
  WriteFile(folder / "cluster.textproto",
            absl::StrCat("job: \"j\"\ncoordinator { host: \"", host,
                         "\" port: ", port, " }\nserver { host: \"", host,
                         "\" }\nworker { host: \"", host,
                         "\" }\noptimizer { sgd { learning_rate: 1 } }\n"
                         "train { epochs: 1 }\n"));
  absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(folder / "cluster.textproto");
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

TEST(OutFolderTest, OfARunWhoseHostDoesNotAnswerNobodyKnowsThatItIsGone) {
  const fs::path folder = TestFolder();
  WriteFile(folder / "metrics.jsonl",
            R"({"kind":"train","rank":0,"step":20,"seconds":1.0,"loss":2.0})");
  const auto unknown_on = [&](const std::string& host, int port) {
    const absl::StatusOr<std::optional<RunInFolder>> found =
        FindRunIn(folder, WriteConfig(folder, host, port), {.new_run = true});
    EXPECT_TRUE(found.ok()) << found.status();
    return (**found).unknown;
  };
  EXPECT_EQ(unknown_on("127.0.0.1",
                       PortReservation::AnyFree("127.0.0.1").value().port()),
            "");
  const std::string unknown = unknown_on("nowhere.invalid", 7700);
  EXPECT_THAT(unknown, HasSubstr("tcp://nowhere.invalid:7700: "));
  EXPECT_THAT(
      UnknownRunText(folder, unknown),
      AllOf(HasSubstr("runs still is not known here: tcp://nowhere"),
            HasSubstr("its records end at step 20"),
            HasSubstr("no process of it is left"), Not(HasSubstr("gone"))));
  WriteFile(folder / "summary.json", "{}");
  EXPECT_EQ(UnknownRunText(folder, unknown), "") << "it has said how it ended";
  EXPECT_EQ(unknown_on("nowhere.invalid", 7700), "") << "nor is it looked for";
}

TEST(OutFolderTest, OfARunThatHasEndedThePortIsAnybodys) {
  const fs::path folder = TestFolder();
  WriteFile(folder / "metrics.jsonl", "line\n");
  ZmqTransport transport;
  const auto other = transport.Listen({});
  ASSERT_TRUE(other.ok()) << other.status();
  const auto at = (*other)->Bind("tcp://127.0.0.1:0");
  ASSERT_TRUE(at.ok()) << at.status();
  const config::ClusterConfig config = WriteConfig(
      folder, "127.0.0.1", std::stoi(at->substr(at->rfind(':') + 1)));
  const absl::Status may_run =
      FindRunIn(folder, config, {.new_run = true}).status();
  EXPECT_THAT(
      std::string(may_run.message()),
      AllOf(HasSubstr("Address already in use; at " + *at +
                      " a coordinator of the run in " + folder.string() +
                      " may be"),
            HasSubstr("`slackline status " + folder.string() + "` says"),
            HasSubstr("give another --out, and --resume " + folder.string())));
  WriteFile(folder / "summary.json", R"({"state": "FAILED", "steps": 3})");
  const auto ended = FindRunIn(folder, config, {.new_run = true});
  EXPECT_TRUE(ended.ok()) << ended.status();
}

TEST(OutFolderTest, WhoNamesItsCheckpointIsToldToThatNobodyKnows) {
  const fs::path folder = TestFolder();
  const config::ClusterConfig config =
      WriteConfig(folder, "nowhere.invalid", 7700);
  ASSERT_TRUE(RunFiles::Create(folder, {.run = 5, .folder = 2}).ok());
  checkpoint::Manifest manifest;
  manifest.set_format(kCheckpointFormat);
  manifest.set_job("j");
  manifest.set_run(5);
  manifest.set_mode("bsp");
  manifest.set_workers(1);
  manifest.set_steps_per_epoch(10);
  manifest.set_clock(20);
  checkpoint::Table& table = *manifest.add_table();
  table.set_name("t");
  table.add_shape(1);
  const std::vector<float> values = {1};
  const std::string root = folder / "checkpoints";
  const auto part =
      WritePart(PartialFolder(root, 5, 1), "server-0-thread-0.safetensors",
                {{.table = "t",
                  .region = {0, 1},
                  .values = Payload::Copy(values.data(), sizeof(float))}});
  ASSERT_TRUE(part.ok()) << part.status();
  *manifest.add_part() = *part;
  const auto checkpoint = CompleteCheckpoint(root, 5, 1, manifest, 3);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  RunOptions options;
  options.out_dir = folder;
  options.resume = *checkpoint;
  Display display;
  ::testing::internal::CaptureStderr();
  const absl::StatusOr<std::string> chosen = ChooseOutFolder(
      options, config, *checkpoint, /*has_run=*/false, &display);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_THAT(said, HasSubstr("runs still is not known here: "
                              "tcp://nowhere.invalid:7700: "));
}

TEST(OutFolderTest, ARecordingThatBeganBeforeAnyRecordIsNoPartOfTheNext) {
  const fs::path folder = TestFolder();
  WriteFile(folder / "trace-server-1.jsonl", "of the run before\n");
  RunOptions options;
  options.out_dir = folder;
  options.new_run = true;
  Display display;
  const absl::StatusOr<std::string> chosen =
      ChooseOutFolder(options, WriteConfig(folder, "127.0.0.1", 7700),
                      /*resume=*/"", /*has_run=*/true, &display);
  EXPECT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_FALSE(fs::exists(folder / "trace-server-1.jsonl"));
  EXPECT_TRUE(fs::exists(folder / "replaced-1/trace-server-1.jsonl"));
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
  const std::string worker0 = "0  4711  alive  0.1 s ago     20";
  const std::string worker1 = "1  4711  alive  0.1 s ago     21";
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
  const std::string table = StatusTable(status, {}, {.top = 1});
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
  const std::string table = StatusTable(status);
  EXPECT_THAT(table, HasSubstr("is failed"));
  EXPECT_THAT(table, HasSubstr("reason: nobody came\n"));
}

Configured LocalMembers(int servers, int workers) {
  return {.servers = std::vector<std::string>(servers, "127.0.0.1"),
          .workers = std::vector<std::string>(workers, "127.0.0.1")};
}

TEST(StatusTest, JsonHasMembersByTheirIndex) {
  wire::StatusReply status;
  for (const int index : {2, 0, 1}) {
    status.add_server()->set_index(index);
    status.add_worker()->set_rank(index);
    status.mutable_view()->add_server()->set_index(index);
    status.mutable_view()->add_worker()->set_rank(index);
  }
  const nlohmann::ordered_json json = StatusJson(status);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(json["server"][i]["index"], i);
    EXPECT_EQ(json["worker"][i]["rank"], i);
    EXPECT_EQ(json["view"]["server"][i]["index"], i);
    EXPECT_EQ(json["view"]["worker"][i]["rank"], i);
  }
}

TEST(StatusTest, SaysWhomServersHaveRefused) {
  wire::StatusReply status = MakeStatus();
  EXPECT_THAT(StatusTable(status), Not(HasSubstr("refused")));
  status.mutable_refused()->set_other_key(12);
  status.mutable_refused()->set_not_allowed(1);
  EXPECT_THAT(StatusTable(status),
              HasSubstr("\nrefused: 12 connections with another key, 1 message "
                        "that the key of the sender does not allow\n"));
  EXPECT_EQ(StatusJson(status)["refused"]["other_key"], 12);
}

TEST(StatusTest, SaysWhereTheCoordinatorIsIfThatMayChange) {
  wire::StatusReply status = MakeStatus();
  status.set_coordinator_server(2);
  Configured configured = LocalMembers(1, 2);
  EXPECT_THAT(StatusTable(status, configured), Not(HasSubstr("coordinator")));
  configured.any_server_takes_over = true;
  EXPECT_THAT(StatusTable(status, configured),
              HasSubstr("\nmembers: 1 server, 2 workers; coordinator: server "
                        "2\n"));
  EXPECT_EQ(StatusJson(status)["coordinator_server"], 2);
  EXPECT_EQ(StatusJson(MakeStatus())["coordinator_server"], 0);
}

TEST(StatusTest, CountsTheMembersThatAreThere) {
  EXPECT_THAT(StatusTable(MakeStatus(), LocalMembers(1, 2)),
              HasSubstr("\nmembers: 1 server, 2 workers\n"));
  EXPECT_THAT(StatusTable(MakeStatus()),
              HasSubstr("\nmembers: 1 server, 2 workers\n"));
}

TEST(StatusTest, AMemberThatIsNotThereHasALine) {
  const std::string table = StatusTable(MakeStatus(), LocalMembers(2, 3));
  EXPECT_THAT(table, HasSubstr("\nmembers: 1 of 2 servers (server 1: gone), 2 "
                               "of 3 workers (worker 2: gone)\n"));
  EXPECT_THAT(table, HasSubstr("\n     2        gone\n"));
  wire::StatusReply forming = MakeStatus();
  forming.mutable_view()->set_state(wire::FORMING);
  EXPECT_THAT(StatusTable(forming, LocalMembers(1, 3)),
              HasSubstr("2 of 3 workers (worker 2: missing)\n"));
}

TEST(StatusTest, OfManyAbsentMembersTheFirstOnesAreNamed) {
  wire::StatusReply status;
  status.mutable_view()->set_state(wire::FORMING);
  const std::string table = StatusTable(status, LocalMembers(1, 500));
  EXPECT_THAT(table, HasSubstr("0 of 500 workers (worker 0, worker 1, worker 2 "
                               "and 497 more: missing)\n"));
  EXPECT_LT(table.size(), 2000u) << table;
}

TEST(StatusTest, HostsAreShownWhereTheyAreNotThisMachine) {
  EXPECT_THAT(StatusTable(MakeStatus(), LocalMembers(1, 2)),
              Not(HasSubstr("host")));
  Configured configured = LocalMembers(1, 3);
  configured.workers[2] = "10.0.0.7";
  wire::StatusReply status = MakeStatus();
  wire::ServerMember& added = *status.mutable_view()->add_server();
  added.set_index(4);
  added.add_thread()->add_endpoint("tcp://10.0.0.8:4711");
  status.add_server()->set_index(4);
  const std::string table = StatusTable(status, configured);
  EXPECT_THAT(table, HasSubstr("worker  host        pid"));
  EXPECT_THAT(table, HasSubstr("     0  127.0.0.1  4711  alive"));
  EXPECT_THAT(table, HasSubstr("     2  10.0.0.7         gone\n"));
  EXPECT_THAT(table, HasSubstr("     4  10.0.0.8     0  alive"));
}

wire::Follower& AddFollower(int shard, int server, bool in_sync,
                            wire::StatusReply* status) {
  wire::Follower& follower = *status->mutable_view()->add_follower();
  follower.set_shard(shard);
  follower.set_server(server);
  follower.set_in_sync(in_sync);
  return follower;
}

// Three shards of server 0, of which each is to have `replicas` copies.
TEST(StatusTest, TellsHowManyCopiesTheShardsHave) {
  wire::StatusReply status = MakeStatus();
  for (int i = 0; i < 3; ++i) status.mutable_view()->add_owner_server(0);
  Configured configured = LocalMembers(1, 2);
  EXPECT_THAT(StatusTable(status, configured), Not(HasSubstr("copies")))
      << "there are to be none";
  configured.replicas = 1;
  EXPECT_THAT(StatusTable(status, configured),
              HasSubstr("\ncopies: 3 of 3 shards have fewer in sync than "
                        "replicas: 1; 3 have none, and the job is lost with "
                        "the server of such a shard\n"));
  for (int i = 0; i < 3; ++i) AddFollower(i, 1, /*in_sync=*/i < 2, &status);
  run::FollowerState& state = *status.mutable_server(0)->add_follower();
  state.set_bytes(1500);
  EXPECT_THAT(StatusTable(status, configured),
              HasSubstr("\ncopies: 1 of 3 shards has fewer in sync than "
                        "replicas: 1; 1 has none, and the job is lost with the "
                        "server of such a shard; being copied: 1 (1.50 kB "
                        "sent)\n"));
  status.mutable_view()->mutable_follower(2)->set_in_sync(true);
  EXPECT_THAT(StatusTable(status, configured),
              HasSubstr("\ncopies: all of 3 shards have 1 in sync\n"));
  status.set_copies("for 3 no server is left");
  EXPECT_THAT(StatusTable(status, configured),
              HasSubstr("\ncopies to come: for 3 no server is left\n"));
  configured.replicas = 2;
  EXPECT_THAT(StatusTable(status, configured),
              HasSubstr("\ncopies: 3 of 3 shards have fewer in sync than "
                        "replicas: 2\n"));
}

TEST(StatusTest, TellsWhatAServerHasOfCopies) {
  wire::StatusReply status = MakeStatus();
  status.mutable_server(0)->set_copies(7);
  status.mutable_server(0)->set_bytes_to_followers(2500000);
  status.mutable_server(0)->set_answers_held(11);
  Configured configured = LocalMembers(1, 2);
  EXPECT_THAT(StatusTable(status, configured), Not(HasSubstr("to copies")));
  configured.replicas = 1;
  const std::string table = StatusTable(status, configured);
  EXPECT_THAT(table, HasSubstr("malformed  copies  to copies  held\n"));
  EXPECT_THAT(table, HasSubstr("        0       7    2.50 MB    11\n"));
}

// Each metric that has a column shows its own figure there, and the manual says
// what it is.
TEST(StatusTest, ShowsAndExplainsTheMetricsThatHaveAColumn) {
  std::stringstream manual;
  manual
      << std::ifstream(SLACKLINE_SOURCE_DIR "/docs/manual/commands.md").rdbuf();
  int value = 100;
  const auto set = [&](absl::Span<const Metric> metrics,
                       google::protobuf::Message* stats) {
    std::vector<std::string> words;
    for (const Metric& metric : metrics) {
      const std::string title = metric.column.title;
      if (title.empty()) continue;
      EXPECT_THAT(manual.str(),
                  AnyOf(HasSubstr(absl::StrCat("\n| ", title, " |")),
                        HasSubstr(absl::StrCat("\n| ", title, " (a column)"))));
      const google::protobuf::FieldDescriptor* const field =
          stats->GetDescriptor()->FindFieldByNumber(metric.field);
      const google::protobuf::Reflection& write = *stats->GetReflection();
      ++value;
      if (metric.kind == Metric::Kind::kHistogram) {
        auto* const histogram =
            static_cast<run::Histogram*>(write.MutableMessage(stats, field));
        histogram->add_bin(1);
        histogram->set_max(value);
        words.push_back(absl::StrCat("0/0/", value));
        continue;
      }
      switch (field->cpp_type()) {
        case google::protobuf::FieldDescriptor::CPPTYPE_UINT64:
          write.SetUInt64(stats, field, static_cast<uint64_t>(value));
          break;
        case google::protobuf::FieldDescriptor::CPPTYPE_INT64:
          write.SetInt64(stats, field, value);
          break;
        default:
          write.SetInt32(stats, field, value);
      }
      words.push_back(absl::StrCat(
          value, metric.column.form == StatusColumn::Form::kBytes ? " B" : ""));
    }
    return words;
  };
  wire::StatusReply status = MakeStatus();
  const std::vector<std::string> server =
      set(ServerMetrics(), status.mutable_server(0));
  const std::vector<std::string> worker =
      set(WorkerMetrics(), status.mutable_worker(0));
  Configured configured = LocalMembers(1, 2);
  configured.replicas = 1;
  const std::string table = StatusTable(status, configured);
  const auto spaced = [](const std::vector<std::string>& words) {
    return ContainsRegex(absl::StrJoin(words, " +"));
  };
  EXPECT_THAT(table, spaced(server));
  EXPECT_THAT(table, spaced(worker));
  EXPECT_THAT(table, spaced({"worker", "pid", "state", "heard", "clock", "loss",
                             "examples/s", "waiting", "pushed", "pulled",
                             "retries", "doing"}));
  EXPECT_THAT(
      table, spaced({"server", "pid", "state", "heard", "shards", "busy",
                     "share", "queue", "pushes", "pulls", "parked", "staleness",
                     "in", "out", "malformed", "copies", "to copies", "held"}));
}

TEST(StatusTest, JsonCountsTheCopies) {
  wire::StatusReply status = MakeStatus();
  status.mutable_view()->add_owner_server(0);
  EXPECT_TRUE(StatusJson(status)["redundancy"].is_null());
  AddFollower(0, 1, /*in_sync=*/true, &status);
  AddFollower(0, 2, /*in_sync=*/false, &status);
  Configured configured;
  configured.replicas = 2;
  EXPECT_EQ(StatusJson(status, configured)["redundancy"].dump(),
            "{\"replicas\":2,\"shards\":1,\"complete\":0,\"alone\":0,"
            "\"copying\":1,\"copying_bytes\":0}");
}

// Two heartbeats of different ages look like a lead that the mode forbids: what
// the servers have measured stands beside the clocks.
TEST(StatusTest, TellsTheLeadThatTheServersHaveMeasured) {
  wire::StatusReply status = MakeStatus();
  EXPECT_THAT(StatusTable(status),
              HasSubstr("two clocks are not of one moment\n"));
  run::Histogram& lead = *status.mutable_server(0)->mutable_lead();
  for (const int count : {6, 2, 1, 1}) lead.add_bin(count);
  lead.set_max(3);
  EXPECT_THAT(StatusTable(status),
              HasSubstr("lead over the slowest when servers answered: "
                        "p50/p99/max 0/3/3 clocks\n"));
}

TEST(StatusTest, JsonHasTheNamesOfTheSchemaAndZeros) {
  const nlohmann::ordered_json json =
      StatusJson(MakeStatus(), LocalMembers(1, 3));
  EXPECT_EQ(json["view"]["state"], "RUNNING");
  EXPECT_EQ(json["server"][0]["pulls_parked"], 3);
  EXPECT_EQ(json["server"][0]["index"], 0);
  EXPECT_EQ(json["worker"][0]["retries"], 0);
  EXPECT_EQ(json["worker"][0]["clock"], 20);
  EXPECT_EQ(json["worker"][1]["clock"], 21);
  EXPECT_EQ(json["moved"], nlohmann::ordered_json::array());
  EXPECT_EQ(json["gone"], nlohmann::ordered_json({"worker 2"}));
}

TEST(JsonTest, NumbersAreNumbersAndModesAreAsForTheFlag) {
  run::ModeRecord record;
  record.set_from_clock(int64_t{1} << 40);
  *record.mutable_to() = ModeOf("ssp:3");
  record.set_model_hash(0xabc);
  const nlohmann::ordered_json json = ToJson(record);
  EXPECT_EQ(json["from_clock"], int64_t{1} << 40);
  EXPECT_EQ(json["to"], "ssp:3");
  EXPECT_TRUE(json["from"].is_null());
  EXPECT_EQ(json["bytes"], 0);
  EXPECT_EQ(json["model_hash"], "0000000000000abc");
  EXPECT_EQ(json.begin().key(), "seconds") << "in the order of the schema";
}

TEST(JsonTest, WhatIsOptionalOrNoNumberIsNull) {
  run::MetricRecord record;
  record.set_accuracy(std::nan(""));
  (*record.mutable_value())["b"] = 0;
  (*record.mutable_value())["a"] = 1.5;
  const nlohmann::ordered_json json = ToJson(record);
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_EQ(json["value"].dump(), "{\"a\":1.5,\"b\":0.0}");
  EXPECT_EQ(nlohmann::json::parse(json.dump())["accuracy"], nullptr);
}

TEST(JsonTest, OfAChoiceOnlyTheBranchThatIsTakenIsThere) {
  config::Optimizer optimizer;
  optimizer.mutable_sgd()->set_learning_rate(0.5);
  const nlohmann::ordered_json json = ToJson(optimizer);
  EXPECT_EQ(json["sgd"]["learning_rate"], 0.5);
  EXPECT_FALSE(json.contains("adam"));
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

TEST(StatusTableTest, SaysWhoIsSlowAndWhereTheTimeOfEachGoes) {
  wire::StatusReply status;
  status.mutable_view()->set_state(wire::RUNNING);
  run::Straggler& slow = *status.add_straggler();
  slow.set_sentence("worker 2 is 2.4 times slower");
  slow.set_advice("in bsp the others wait");
  run::WorkerStats& worker = *status.add_worker();
  worker.set_rank(2);
  EXPECT_THAT(StatusTable(status), Not(HasSubstr("loading")));
  worker.mutable_recent()->set_count(20);
  worker.mutable_recent()->mutable_mean()->set_loading(0.041);
  worker.mutable_recent()->mutable_mean()->set_pulling(0.0205);
  const std::string text = StatusTable(status);
  EXPECT_THAT(text, HasSubstr("\nslow: worker 2 is 2.4 times slower; in bsp "
                              "the others wait\n"));
  EXPECT_THAT(text, HasSubstr("worker      step  loading  computing  waiting  "
                              "pushing  pulling  reducing\n"));
  EXPECT_THAT(text,
              HasSubstr("     2  61.50 ms     67 %          -        -        "
                        "-     33 %         -\n"));
}

TEST(SummaryTableTest, SaysWhichServersTheJobWentOnWithout) {
  run::Summary summary = MakeSummary("bsp");
  summary.add_servers_lost("server 1 (pid 7 on host) is dead");
  EXPECT_THAT(SummaryTable({{.folder = "run", .summary = summary}}),
              HasSubstr("lost in digits bsp: server 1 (pid 7 on host) is "
                        "dead\n"));
}

TEST(SummaryTableTest, SaysWhichFilesLackRecords) {
  run::Summary summary = MakeSummary("bsp");
  summary.set_files_incomplete("run/metrics.jsonl lacks 2 records: no space");
  EXPECT_THAT(SummaryTable({{.folder = "run", .summary = summary}}),
              HasSubstr("incomplete in digits bsp: run/metrics.jsonl lacks 2 "
                        "records: no space\n"));
}

}  // namespace slackline::cli_files_test
