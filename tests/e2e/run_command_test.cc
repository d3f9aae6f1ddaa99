// Goal: what `slackline run` and `slackline status` show and promise beside the
// job itself. Method: the real programs, with a small job.
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/config/cluster_config.h"
#include "common/net/resolve.h"
#include "common/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::run_command_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kSoon = absl::Seconds(60);
constexpr char kWrongUsage[] = "exited with code 2";

class RunCommand : public JobTest {};

TEST_F(RunCommand, ShowsTheResultAndKeepsTheResolvedConfig) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()),
               {"--mode=ssp:2", "--epochs=1", "--seed=7"});
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("mode   steps"));
  EXPECT_THAT(run->Output(), HasSubstr("ssp:2    100"));
  const auto config = LoadJobConfig(Path("run/cluster.textproto"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(ModeText(*config), "ssp:2");
  EXPECT_EQ(config->train().seed(), 7);
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["mode"], "ssp:2");
  EXPECT_EQ(summary["seed"], 7);
  EXPECT_EQ(summary["steps"], 100);
}

// The coordinator may be elsewhere than a config says, and at its port may be
// that of another job.
TEST_F(RunCommand, StatusOfAConfigNamesTheFolderOfItsRun) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::string other =
      Write("other.textproto",
            absl::StrReplaceAll(ReadText(config),
                                {{"job: \"small\"", "job: \"other\""}}));
  std::filesystem::create_directories(Path("runs"));
  const std::unique_ptr<Process> run =
      StartRun("runs/small-1", config, {"--epochs=100000"});
  ASSERT_TRUE(AwaitProgress(config).has_value()) << run->Output();
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(Path(""));
  const std::unique_ptr<Process> mistaken =
      StartTool("mistaken", {"status", other});
  EXPECT_NE(mistaken->WaitText(kSoon), kEndedWell);
  EXPECT_THAT(mistaken->Output(),
              AllOf(HasSubstr("one that `slackline run` has started"),
                    HasSubstr("`slackline status runs/NAME`")));
  const std::string elsewhere =
      WriteWithPort("elsewhere.textproto", SmallJob());
  const std::unique_ptr<Process> lost =
      StartTool("lost", {"status", elsewhere});
  EXPECT_NE(lost->WaitText(kSoon), kEndedWell);
  EXPECT_THAT(lost->Output(), AllOf(HasSubstr("tcp://127.0.0.1:"),
                                    HasSubstr("`slackline status "
                                              "runs/small-1`")));
  std::filesystem::current_path(before);
  EndEarly("runs/small-1", run.get());
}

TEST_F(RunCommand, ADryRunPrintsTheWholeConfigAndStartsNothing) {
  const std::string config = Write("job.textproto", SmallJob());
  const std::unique_ptr<Process> dry =
      StartRun("run", config, {"--mode=ssp:2", "--epochs=1", "--dry-run"});
  EXPECT_EQ(dry->WaitText(kSoon), kEndedWell) << dry->Output();
  EXPECT_THAT(dry->Output(),
              HasSubstr("job small: mode ssp:2, seed 1, 1 epochs, 2 servers, 4 "
                        "workers\nnothing is started"));
  EXPECT_THAT(dry->Output(), HasSubstr("lease_ms: 5000"));
  EXPECT_FALSE(std::filesystem::exists(Path("run")));

  const std::unique_ptr<Process> wrong =
      StartRun("wrong", config, {"--dry-run", "--bin-dir", Path("nowhere")});
  EXPECT_EQ(wrong->WaitText(kSoon), kFailed) << wrong->Output();
  EXPECT_THAT(wrong->Output(), HasSubstr("nowhere"));
  EXPECT_THAT(wrong->Output(), Not(HasSubstr("nothing is started")));
}

// Over sockets: the coordinator, shard threads and all-reduce.
TEST_F(RunCommand, AJobWithAddressesOfIpv6TrainsAndIsFound) {
  const std::vector<std::string> own = OwnAddresses();
  if (std::find(own.begin(), own.end(), "::1") == own.end())
    GTEST_SKIP() << "this machine has no loopback address of IPv6";
  const std::string config = Write(
      "job.textproto",
      absl::StrReplaceAll(
          absl::StrCat(SmallJob({.workers = 2}),
                       "sync { phase { allreduce {} until_epoch: 0.1 } "
                       "phase { asp {} } }\n"),
          {{"127.0.0.1", "::1"}, {"limits {", "limits { transport: TCP"}}));
  const std::unique_ptr<Process> run =
      StartRun("run", config, {"--epochs=1000"});
  ASSERT_TRUE(AwaitStatus(Path("run/cluster.textproto"), kJobMax,
                          [](const wire::StatusReply& status) {
                            return status.worker_size() == 2 &&
                                   status.worker(0).clock() > 100;
                          })
                  .has_value())
      << run->Output();
  const std::unique_ptr<Process> show =
      StartTool("status", {"status", Path("run")});
  EXPECT_EQ(show->WaitText(kSoon), kEndedWell) << show->Output();
  EXPECT_THAT(show->Output(), HasSubstr("job small is running"));
  EXPECT_THAT(ReadText(Path("run/logs/worker-0.log")),
              AllOf(HasSubstr("over tcp"), Not(HasSubstr("is not tried"))));
  EXPECT_THAT(ReadText(Path("run/logs/server-0.log")),
              HasSubstr("shard thread 0 listens at tcp://[::1]:"));
  run->Signal(SIGTERM);
  EXPECT_EQ(run->WaitText(kSoon), kFailed) << run->Output();
}

// As in containers: members listen at all addresses of their machines, at ports
// that are open. Twice by all-reduce, so its ports are taken twice.
TEST_F(RunCommand, MembersListenElsewhereThanOthersAreTold) {
  std::vector<PortReservation> ports;
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<PortReservation> port =
        PortReservation::AnyFree("127.0.0.1");
    ASSERT_TRUE(port.ok()) << port.status();
    ports.push_back(*std::move(port));
  }
  std::string workers;
  for (const PortReservation& port : ports) {
    absl::StrAppend(&workers,
                    "worker { host: \"127.0.0.1\" listen: \"0.0.0.0\" port: ",
                    port.port(), " count: ");
  }
  const std::string config = Write(
      "job.textproto",
      absl::StrCat(
          absl::StrReplaceAll(
              SmallJob({.workers = 1}),
              {{"server { host", "server { listen: \"0.0.0.0\" host"},
               {"worker { host: \"127.0.0.1\" count: 1 }",
                absl::StrReplaceAll(workers, {{"count: ", "count: 1 } "}})},
               {"limits {", "limits { transport: TCP"}}),
          "sync { phase { allreduce {} until_epoch: 0.1 } "
          "phase { asp {} until_epoch: 0.2 } phase { allreduce {} } }\n"));
  const std::unique_ptr<Process> run =
      StartRun("run", config, {"--epochs=1000"});
  ASSERT_TRUE(AwaitStatus(Path("run/cluster.textproto"), kJobMax,
                          [](const wire::StatusReply& status) {
                            return status.worker_size() == 2 &&
                                   status.worker(0).clock() > 200;
                          })
                  .has_value())
      << run->Output();
  // The higher rank connects to the lower one.
  EXPECT_THAT(
      ReadText("/proc/net/tcp"),
      HasSubstr(absl::StrFormat("0100007F:%04X 0100007F:", ports[0].port())));
  EXPECT_THAT(ReadText(Path("run/logs/server-1.log")),
              AllOf(HasSubstr("listens at tcp://127.0.0.1:"),
                    HasSubstr("here at 0.0.0.0")));
  EXPECT_THAT(ReadText(Path("run/logs/server-0.log")),
              HasSubstr("coordinator listens at tcp://0.0.0.0:"));
  EXPECT_THAT(ReadText(Path("run/logs/worker-0.log")),
              Not(HasSubstr("failed")));
  run->Signal(SIGTERM);
  EXPECT_EQ(run->WaitText(kSoon), kFailed) << run->Output();
}

TEST_F(RunCommand, StatusShowsTheMembersOfARunningJob) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), {"--epochs=1000"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  const std::unique_ptr<Process> show =
      StartTool("status", {"status", Path("run")});
  EXPECT_EQ(show->WaitText(kSoon), kEndedWell) << show->Output();
  EXPECT_THAT(show->Output(), HasSubstr("job small is running"));
  EXPECT_THAT(show->Output(), HasSubstr("worker "));
  EXPECT_THAT(show->Output(), HasSubstr("server "));
  run->Signal(SIGTERM);
  EXPECT_EQ(run->WaitText(kSoon), kFailed) << run->Output();
}

// Of docs/manual/commands.md: each with --json, on a job that runs and on one
// that has ended.
TEST_F(RunCommand, EveryCommandPrintsJson) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()),
               {"--epochs=1000", "--mode=asp"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  int tools = 0;
  const auto json_of = [&](std::vector<std::string> command,
                           const char* how = kEndedWell) {
    command.push_back("--json");
    const std::unique_ptr<Process> tool =
        StartTool(absl::StrCat("tool-", ++tools), command);
    EXPECT_EQ(tool->WaitText(kSoon), how) << tool->Output();
    // Of stdout and stderr together: a line of progress may precede.
    const std::string output = tool->Output();
    const size_t begin = output.find_first_of("{[");
    auto json = nlohmann::json::parse(
        begin == std::string::npos ? "" : output.substr(begin), nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << output;
    return json.is_discarded() ? nlohmann::json() : json;
  };
  const std::string folder = Path("run");
  const nlohmann::json status = json_of({"status", folder});
  EXPECT_EQ(status["view"]["state"], "RUNNING");
  EXPECT_GT(status["worker"][3]["clock"], 0);
  EXPECT_TRUE(status["worker"][0]["retries"].is_number());
  EXPECT_EQ(status["gone"], nlohmann::json::array());
  EXPECT_EQ(json_of({"top", folder, "--count=1"})["view"]["job"], "small");
  const nlohmann::json moved =
      json_of({"move", folder, "mlp.0.weight", "--to=1"});
  EXPECT_EQ(moved["plan"]["move"].size(), moved["moved"].size());
  EXPECT_GT(moved["moved"].size(), 0);
  EXPECT_EQ(moved["abandoned"], nlohmann::json::array());
  EXPECT_TRUE(json_of({"rebalance", folder, "--dry-run"}).contains("plan"));
  EXPECT_EQ(json_of({"mode", "set", folder, "ssp:3"})["changed"]["to"],
            "ssp:3");
  EXPECT_EQ(json_of({"mode", "show", folder})["mode"], "ssp:3");
  EXPECT_EQ(json_of({"servers", "add", folder})["server"], 2);
  EXPECT_TRUE(json_of({"drain", folder, "1"}).contains("moved"));
  run->Signal(SIGTERM);
  EXPECT_EQ(run->WaitText(kSoon), kFailed) << run->Output();
  EXPECT_EQ(
      json_of({"status", folder}, "exited with code 5")["summary"]["state"],
      "FAILED");
  EXPECT_EQ(json_of({"top", folder})["summary"]["job"], "small");
  const nlohmann::json summary = json_of({"summary", folder, folder});
  ASSERT_EQ(summary.size(), 2);
  EXPECT_EQ(summary[1]["folder"], folder);
  EXPECT_TRUE(summary[1]["summary"]["duplicates"].is_number());
  EXPECT_EQ(json_of({"data", "stand-in", "--data-dir", Path("data")})["folder"],
            Path("data/mnist"));
}

TEST_F(RunCommand, WordsForAWrongCommandLine) {
  const struct {
    const char* name;
    std::vector<std::string> arguments;
    const char* words;
  } cases[] = {
      {"subcommand", {"statu", "run"}, "did you mean 'status'?"},
      {"flag",
       {"run", "job.textproto", "--epoch", "3"},
       "did you mean --epochs?"},
      {"field",
       {"run", "job.textproto", "--batch-size=3"},
       "did you mean --set data.batch_size=3?"},
  };
  for (const auto& c : cases) {
    const std::unique_ptr<Process> tool = StartTool(c.name, c.arguments);
    EXPECT_EQ(tool->WaitText(kSoon), kWrongUsage) << c.name;
    EXPECT_THAT(tool->Output(), HasSubstr(c.words));
  }
}

// Every config that it writes is one; the words of what does not fit are in
// first_config_test.
TEST_F(RunCommand, InitWritesAConfigThatRunsAndOverwritesNothing) {
  const std::vector<std::vector<std::string>> jobs = {
      {},
      {"--workers=5", "--servers=3", "--mode=ssp:4", "--copies"},
      {"--program=/bin/true 'a \"b\"'", "--on=ssh", "--hosts=n1:4,n2:2",
       "--checkpoints=/shared/checkpoints"},
      {"--program=/bin/true", "--mode=auto", "--checkpoints=here"},
      {"--on=slurm", "--workers=8"},
      {"--on=ray", "--workers=8"},
  };
  int number = 0;
  for (std::vector<std::string> arguments : jobs) {
    const std::string name = absl::StrCat("job", ++number);
    SCOPED_TRACE(absl::StrJoin(arguments, " "));
    const std::string file = Path(name + ".textproto");
    arguments.insert(arguments.begin(), {"init", file});
    const std::unique_ptr<Process> init = StartTool(name, arguments);
    EXPECT_EQ(init->WaitText(kSoon), kEndedWell) << init->Output();
    EXPECT_THAT(init->Output(),
                HasSubstr(absl::StrCat("next: slackline run ", file)));
    std::vector<std::string> dry = {"run", file, "--dry-run"};
    if (arguments.size() > 2 && arguments[2] == "--on=slurm")
      dry.push_back("--hosts=n1:4,n2:4");
    const std::unique_ptr<Process> run = StartTool(name + "-dry", dry);
    EXPECT_EQ(run->WaitText(kSoon), kEndedWell) << run->Output();
    const std::string text = ReadText(file);
    const std::unique_ptr<Process> again =
        StartTool(name + "-again", arguments);
    EXPECT_EQ(again->WaitText(kSoon), kWrongUsage);
    EXPECT_THAT(again->Output(), HasSubstr("is there already"));
    EXPECT_EQ(ReadText(file), text);
  }
}

// As `slackline run --on slurm --detach` leaves its folder.
TEST_F(RunCommand, StatusSaysThatAJobWaitsInSlurm) {
  std::filesystem::create_directories(Path("run/slurm"));
  Write("run/slurm/job.sh", "#!/bin/sh\n");
  const std::unique_ptr<Process> status =
      StartTool("status", {"status", Path("run")});
  EXPECT_EQ(status->WaitText(kSoon), "exited with code 3");
  EXPECT_THAT(status->Output(),
              HasSubstr("has not begun: it is a job of Slurm"));
}

TEST_F(RunCommand, BashCompletesCommandsFlagsAndFiles) {
  const std::string script = absl::StrCat(
      "source <(", SLACKLINE_BIN_DIR,
      "/slackline completion bash)\n"
      "complete_words() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); "
      "_slackline; echo \"<${COMPREPLY[*]}>\"; }\n"
      "cd ",
      Path(""),
      "\ntouch a-file\n"
      "complete_words slackline dra\n"
      "complete_words slackline mode s\n"
      "complete_words slackline run job --hostf\n"
      "complete_words slackline run a-f\n"
      "complete_words slackline run job -- a-f\n"
      "complete_words slackline agen\n");
  Process bash({"/bin/bash", "-c", script}, Path("bash.log"));
  EXPECT_EQ(bash.WaitText(kSoon), kEndedWell);
  EXPECT_EQ(bash.Output(),
            "<drain>\n<show set>\n<--hostfile>\n<a-file>\n<a-file>\n<>\n");
}

TEST_F(RunCommand, EveryProgramTellsItsVersion) {
  for (const std::string name : {"slackline", "slackline_server",
                                 "slackline_worker", "slackline_replay"}) {
    Process program({absl::StrCat(SLACKLINE_BIN_DIR, "/", name), "--version"},
                    Path(name + ".log"));
    EXPECT_EQ(program.WaitText(kSoon), kEndedWell);
    EXPECT_EQ(program.Output(), VersionText(name) + "\n");
  }
}

TEST_F(RunCommand, RefusesWhatTheMemoryDoesNotHold) {
  const std::string config = Write("job.textproto", SmallJob());
  const std::unique_ptr<Process> run = StartRun(
      "run", config,
      {"--set=model.mlp.hidden=[65536, 65536, 65536, 65536, 65536, 65536, "
       "65536, 65536, 65536]"});
  EXPECT_EQ(run->WaitText(kSoon), kFailed);
  EXPECT_THAT(run->Output(), HasSubstr("of memory, and "));
  EXPECT_THAT(run->Output(), HasSubstr("4 workers with 550 GB each"));
  EXPECT_FALSE(std::filesystem::exists(Path("run/cluster.textproto")));
}

// The config is where `slackline run` puts it, and not in every log.
TEST_F(RunCommand, ByHandServerZeroKeepsTheConfig) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::vector<std::unique_ptr<Process>> members =
      StartSmallJobByHand(config, "by-hand", {"--set=train.epochs=1"});
  for (const std::unique_ptr<Process>& member : members) {
    EXPECT_EQ(member->WaitText(kJobMax), kEndedWell) << member->Output();
    EXPECT_THAT(member->Output(), HasSubstr("--set=train.epochs=1\n"));
    EXPECT_THAT(member->Output(), Not(HasSubstr("lease_ms")));
  }
  const auto kept = LoadJobConfig(Path("by-hand/cluster.textproto"));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->train().epochs(), 1);
}

TEST_F(RunCommand, ItsProcessesDoNotOutliveItsOwnDeath) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), {"--epochs=1000"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  ASSERT_TRUE(WaitUntil(kSoon, [&] {
    std::error_code none_yet;
    return std::filesystem::file_size(Path("run/metrics.jsonl"), none_yet) >
               0 &&
           !none_yet;
  }));
  run->Signal(SIGKILL);
  EXPECT_EQ(run->WaitText(kSoon), "was killed by signal 9 (SIGKILL)");
  EXPECT_TRUE(WaitUntil(
      kSoon, [&] { return ProcessesMentioning(Path("run")).empty(); }));
  const std::unique_ptr<Process> show =
      StartTool("status", {"status", Path("run"), "--timeout-ms=100"});
  EXPECT_EQ(show->WaitText(kSoon), "exited with code 6");
  EXPECT_THAT(show->Output(), HasSubstr("ended without a word"));
  EXPECT_THAT(show->Output(), HasSubstr("its records end at step "));
  EXPECT_THAT(show->Output(), HasSubstr("--new-run` begins it anew"));
  EXPECT_THAT(show->Output(), HasSubstr("see the logs in"));
  // As by hand, where nobody writes logs into the folder.
  std::filesystem::remove_all(Path("run/logs"));
  const std::unique_ptr<Process> by_hand =
      StartTool("by-hand", {"status", Path("run"), "--timeout-ms=100"});
  EXPECT_EQ(by_hand->WaitText(kSoon), "exited with code 6");
  EXPECT_THAT(by_hand->Output(),
              AllOf(HasSubstr("were not started by `slackline run`"),
                    Not(HasSubstr("see the logs in"))));
}

TEST_F(RunCommand, NeverOverwritesARun) {
  std::filesystem::create_directories(Path("run"));
  Write("run/precious", "data");
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()));
  EXPECT_EQ(run->WaitText(kSoon), kFailed);
  EXPECT_THAT(run->Output(), HasSubstr(Path("run") + " is not empty"));
  EXPECT_FALSE(std::filesystem::exists(Path("run/cluster.textproto")));
}

TEST_F(RunCommand, AFolderThatNobodyCouldNameIsRefused) {
  const std::string config = Write("job.textproto", SmallJob());
  const std::unique_ptr<Process> run =
      StartTool("run", {"run", config, "--out", Path("r\xFF")});
  EXPECT_EQ(run->WaitText(kSoon), kWrongUsage);
  EXPECT_THAT(run->Output(), AllOf(HasSubstr("--out: the path"),
                                   HasSubstr("r\\xff' is not UTF-8")));
  EXPECT_FALSE(std::filesystem::exists(Path("r\xFF")));
}

TEST_F(RunCommand, TheSameCommandIsTheRightOneWhateverHasBecomeOfTheRun) {
  const std::string config =
      Write("job.textproto",
            absl::StrCat("checkpoint { every_steps: 20 }\n", SmallJob()));
  const auto start = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--epochs=1", "--mode=bsp",
                                          "--set=train.trace=true"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return StartRun("run", config, arguments);
  };
  // It fails in its midst.
  std::unique_ptr<Process> run =
      start({"--set=worker[0].conditions.step_ms=20"});
  const auto has_checkpoint = [&] {
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(Path("run/checkpoints"), error)) {
      if (absl::StartsWith(entry.path().filename().string(), "step-"))
        return true;
    }
    return false;
  };
  ASSERT_TRUE(WaitUntil(kJobMax, has_checkpoint)) << run->Output();
  run->Signal(SIGKILL);
  run->WaitText(kSoon);
  ASSERT_TRUE(WaitUntil(
      kSoon, [&] { return ProcessesMentioning(Path("run")).empty(); }));
  // Of other flags it is another job.
  run = start({});
  EXPECT_EQ(run->WaitText(kSoon), kFailed);
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr("is of another config"), HasSubstr("--new-run")));
  run = start({"--set=worker[0].conditions.step_ms=20"});
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr("goes on from its last checkpoint"),
                    HasSubstr("train.trace records from step ")));
  EXPECT_TRUE(std::filesystem::exists(Path("run/trace-server-0.jsonl")));
  EXPECT_TRUE(
      std::filesystem::exists(Path("run/earlier-1/trace-server-0.jsonl")));
  const std::string summary = ReadText(Path("run/summary.json"));
  const std::string metrics = ReadText(Path("run/metrics.jsonl"));
  run = start({"--set=worker[0].conditions.step_ms=20"});
  EXPECT_EQ(run->WaitText(kSoon), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), AllOf(HasSubstr("has ended before this: finished"),
                                   HasSubstr("--new-run")));
  EXPECT_EQ(ReadText(Path("run/summary.json")), summary);
  run = start({"--new-run"});
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_EQ(ReadText(Path("run/replaced-1/summary.json")), summary);
  EXPECT_EQ(ReadText(Path("run/replaced-1/metrics.jsonl")), metrics);
  EXPECT_TRUE(std::filesystem::exists(Path("run/replaced-1/checkpoints")));
  EXPECT_TRUE(
      std::filesystem::exists(Path("run/replaced-1/trace-server-0.jsonl")));
  EXPECT_FALSE(ReadJson(Path("run/summary.json")).contains("resumed_from"));
  ExpectNoProcessLeft();
}

TEST_F(RunCommand, RefusesAModeThatDoesNotExist) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), {"--mode=fast"});
  EXPECT_EQ(run->WaitText(kSoon), kWrongUsage);
  EXPECT_THAT(run->Output(), HasSubstr("'fast' is no mode"));
}

TEST_F(RunCommand, ShowsEveryProblemOfAConfigAtItsPlace) {
  const std::string config =
      Write("job.textproto",
            absl::StrCat("limits {\n  lease_ms: 5\n  window_kib: 0\n}\n",
                         SmallJob().replace(SmallJob().find("limits"),
                                            std::string::npos, "\n")));
  const std::unique_ptr<Process> run = StartRun("run", config);
  EXPECT_EQ(run->WaitText(kSoon), kWrongUsage);
  EXPECT_THAT(run->Output(), HasSubstr(config + ":2:3: limits.lease_ms: "));
  EXPECT_THAT(run->Output(), HasSubstr(config + ":3:3: limits.window_kib: "));
}

class MemberCommand : public JobTest,
                      public ::testing::WithParamInterface<const char*> {};

TEST_P(MemberCommand, RefusesAnIndexAndAPortThatCannotBe) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::unique_ptr<Process> beyond =
      StartMember("beyond", GetParam(), 4, config, "out");
  EXPECT_EQ(beyond->WaitText(kSoon), kWrongUsage);
  EXPECT_THAT(beyond->Output(), HasSubstr("--index: 4 is outside [0, "));
  const std::unique_ptr<Process> no_port = StartMember(
      "no-port", GetParam(), 0,
      Write("no-port.textproto", "coordinator { port: 0 }\n" + SmallJob()),
      "out");
  EXPECT_EQ(no_port->WaitText(kSoon), kWrongUsage);
  EXPECT_THAT(no_port->Output(), HasSubstr("coordinator.port: value is 0"));
}

INSTANTIATE_TEST_SUITE_P(Both, MemberCommand,
                         ::testing::Values("slackline_server",
                                           "slackline_worker"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_F(RunCommand, AServerRefusesFlagsThatSayWhatTheConfigSays) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const struct {
    const char* name;
    int index;
    std::vector<std::string> flags;
    const char* reason;
  } cases[] = {
      {"in-config",
       1,
       {"--add"},
       "--index: 1 belongs to the config, which has"},
      {"host", 1, {"--host=127.0.0.1"}, "--host and --threads are for --add"},
      {"threads", 1, {"--threads=2"}, "--host and --threads are for --add"},
      {"no-threads", 7, {"--add", "--threads=0"}, "--threads: "},
  };
  for (const auto& c : cases) {
    const std::unique_ptr<Process> server = StartMember(
        c.name, "slackline_server", c.index, config, "out", c.flags);
    EXPECT_EQ(server->WaitText(kSoon), kWrongUsage) << c.name;
    EXPECT_THAT(server->Output(), HasSubstr(c.reason));
  }
  const std::unique_ptr<Process> worker =
      StartMember("worker", "slackline_worker", 7, config, "out", {"--add"});
  EXPECT_EQ(worker->WaitText(kSoon), kWrongUsage)
      << "workers join without being told";
}

}  // namespace slackline::run_command_test
