// `slackline run --on ssh`, through a real sshd at addresses that stand for
// hosts.
#include <signal.h>
#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/version.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "proto/agent.pb.h"
#include "tests/cluster/ssh_daemon.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"
#include "tools/cli/agent/agent_frames.h"

namespace slackline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace fs = std::filesystem;

constexpr char kInterruptedText[] = "exited with code 130";

class SshTest : public JobTest {
 protected:
  void SetUp() override {
    if (SshDaemon::Program().empty()) GTEST_SKIP() << kNoSshd;
    daemon_ = std::make_unique<SshDaemon>(Path("ssh"));
    // So the command lines of agents name the test.
    fs::create_symlink(SLACKLINE_BIN_DIR, Path("bin"));
  }

  // SmallJob() with a launch block: the folders of runs on the hosts are in
  // there/. `more` is in the block, too.
  std::string Job(const SmallJobOptions& options = {},
                  const std::string& more = "") const {
    return JobWith(daemon_->Block(), options, more);
  }
  std::string JobWith(const std::string& ssh_block,
                      const SmallJobOptions& options = {},
                      const std::string& more = "") const {
    return absl::StrCat(SmallJob(options), "launch { runs_dir: \"",
                        Path("there"), "\" ",
                        absl::StrContains(more, "bin_dir")
                            ? ""
                            : absl::StrCat("bin_dir: \"", Path("bin"), "\" "),
                        more, " ", ssh_block, " }\n");
  }

  std::unique_ptr<Process> StartOnHosts(
      const std::string& name, const std::string& config,
      std::vector<std::string> arguments = {}) {
    // Before what the caller may have behind "--".
    arguments.insert(arguments.begin(),
                     {"--on=ssh", "--hosts=127.0.0.2:2,127.0.0.3:2"});
    return StartRun(name, config, arguments);
  }
  // The config that the run has written: it has the coordinator's port.
  std::string ClusterFile(const std::string& name) const {
    return Path(absl::StrCat(name, "/cluster.textproto"));
  }

  // The folder of the run on the hosts; empty: there is none.
  std::string There(const std::string& name) const {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(Path("there"), ignored)) {
      if (absl::StartsWith(entry.path().filename().string(),
                           absl::StrCat(name, "-"))) {
        return entry.path().string();
      }
    }
    return "";
  }

  // The ssh that leads to the host.
  static pid_t SshTo(const std::string& host, const std::string& folder) {
    for (const std::string& process : ProcessesMentioning(folder)) {
      int pid = 0;
      if (absl::StrContains(process, absl::StrCat(" -- ", host, " ")) &&
          absl::SimpleAtoi(process.substr(0, process.find(':')), &pid)) {
        return pid;
      }
    }
    ADD_FAILURE() << "no ssh to " << host;
    return 0;
  }

  // What brings this version to the host.
  std::string Installs(const std::string& host, const std::string& folder,
                       const std::string& flag = "") const {
    return absl::StrCat("rsync -a ", flag, "-e 'ssh -p ", daemon_->port(),
                        " -i ", Path("ssh"), "/user' ", SLACKLINE_BIN_DIR, "/ ",
                        host, ":", folder,
                        "/, or name the folder of the same version there by "
                        "--set launch.bin_dir=DIR");
  }

  std::unique_ptr<SshDaemon> daemon_;
};

constexpr char kLong[] = "epochs: 1000 seed: 1";

TEST_F(SshTest, TrainsTheSameModelAsProcessesHereAndBringsAllFilesBack) {
  Run("here", Write("here.textproto", SmallJob()));
  // Slow enough that its progress is seen.
  const std::string config =
      Write("job.textproto",
            absl::StrReplaceAll(
                Job(), {{"worker {", "worker { conditions { step_ms: 5 }"}}));
  const std::unique_ptr<Process> run = StartOnHosts("there-too", config);
  ASSERT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_EQ(ModelSha256(ReadModel(Path("there-too"))),
            ModelSha256(ReadModel(Path("here"))));
  EXPECT_THAT(
      run->Output(),
      AllOf(HasSubstr("hosts: 127.0.0.2, 127.0.0.3 (ssh)"), HasSubstr("(0:0")));
  const std::string written = ReadText(ClusterFile("there-too"));
  EXPECT_THAT(written, HasSubstr("host: \"127.0.0.3\""));
  for (const char* const name :
       {"logs/server-0.log", "logs/server-1.log", "logs/worker-0.log",
        "logs/worker-3.log", "metrics.jsonl", "summary.json",
        "model.safetensors", "runs.txt"}) {
    EXPECT_EQ(ReadText(Path(absl::StrCat("there-too/", name))),
              ReadText(absl::StrCat(There("there-too"), "/", name)))
        << name;
  }
  EXPECT_THAT(ReadText(Path("there-too/logs/worker-3.log")), HasSubstr("done"));
  EXPECT_FALSE(fs::exists(Path("there-too/from-127.0.0.3")));
  for (const std::string& folder : {Path("there-too"), There("there-too")}) {
    for (const auto& entry : fs::directory_iterator(folder))
      EXPECT_NE(entry.path().filename().string()[0], '.') << entry.path();
  }
  // The same command again knows that it has been done.
  const std::unique_ptr<Process> again = StartOnHosts("there-too", config);
  EXPECT_EQ(again->WaitText(kJobMax), kEndedWell) << again->Output();
  EXPECT_THAT(again->Output(), HasSubstr("nothing is begun"));
}

TEST_F(SshTest, CtrlCEndsTheJobWithItsModel) {
  const std::string config = Write("job.textproto", Job({.train = kLong}));
  const std::unique_ptr<Process> run = StartOnHosts("run", config);
  ASSERT_TRUE(AwaitProgress(ClusterFile("run")).has_value());
  run->Signal(SIGINT);
  EXPECT_EQ(run->WaitText(kJobMax), kInterruptedText) << run->Output();
  EXPECT_FALSE(ReadModel(Path("run")).empty());
  daemon_.reset();
  ExpectNoProcessLeft();
}

TEST_F(SshTest, AWorkerThatIsKilledThereIsNamedAndStartedAgain) {
  const std::string config =
      Write("job.textproto", Job({.train = kLong, .lease_ms = 2000}));
  const std::unique_ptr<Process> run =
      StartOnHosts("run", config, {"--restart-workers=1"});
  const auto status = AwaitProgress(ClusterFile("run"));
  ASSERT_TRUE(status.has_value());
  const pid_t killed = WorkerPid(*status, 3);
  SignalProcess(killed, SIGKILL);
  EXPECT_TRUE(
      AwaitStatus(ClusterFile("run"), kJobMax,
                  [&](const wire::StatusReply& now) {
                    for (const run::WorkerStats& worker : now.worker()) {
                      if (worker.rank() == 3 && worker.pid() != killed &&
                          worker.clock() > 0) {
                        return true;
                      }
                    }
                    return false;
                  })
          .has_value());
  run->Signal(SIGINT);
  EXPECT_EQ(run->WaitText(kJobMax), kInterruptedText) << run->Output();
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr(absl::StrCat("worker 3 (pid ", killed,
                                           " on 127.0.0.3) was killed by "
                                           "signal 9 (SIGKILL)")),
                    HasSubstr("started worker 3 again")));
  EXPECT_TRUE(fs::exists(Path("run/logs/worker-3.2.log")));
}

TEST_F(SshTest, AConnectionThatIsCutIsNamedAndItsProcessesEnd) {
  const std::string config =
      Write("job.textproto", Job({.train = kLong, .lease_ms = 1000}));
  const std::unique_ptr<Process> run = StartOnHosts("run", config);
  ASSERT_TRUE(AwaitProgress(ClusterFile("run")).has_value());
  SignalProcess(SshTo("127.0.0.3", Path("ssh")), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
  EXPECT_THAT(
      run->Output(),
      AllOf(HasSubstr(" on 127.0.0.3) was lost with the connection to "
                      "its host"),
            HasSubstr("the connection to host 127.0.0.3 is lost, and its "
                      "processes with it, which are killed there: its command "
                      "was killed by signal 9 (SIGKILL)")));
  daemon_.reset();
  ExpectNoProcessLeft();
}

TEST_F(SshTest, AJobThatIsRestoredGetsANewAgentWhereTheConnectionWasCut) {
  const SmallJobOptions options = {.train = "epochs: 8 seed: 1",
                                   .lease_ms = 3000};
  Run("here", Write("here.textproto", SmallJob(options)));
  // Slow enough that it does not end before its first checkpoint is there.
  const std::string job = absl::StrReplaceAll(
      Job(options), {{"worker {", "worker { conditions { step_ms: 5 }"}});
  const std::string config =
      Write("job.textproto",
            absl::StrCat(job,
                         "checkpoint { every_steps: 20 on_server_loss: RESTORE "
                         "folder: \"",
                         Path("checkpoints"), "\" }\n"));
  const std::unique_ptr<Process> run = StartOnHosts("run", config);
  ASSERT_TRUE(WaitUntil(kJobMax, [&] {
    std::error_code ignored;
    for (const auto& entry :
         fs::directory_iterator(Path("checkpoints"), ignored)) {
      if (absl::StartsWith(entry.path().filename().string(), "step-"))
        return true;
    }
    return false;
  })) << run->Output();
  SignalProcess(SshTo("127.0.0.3", Path("ssh")), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("restoring the job: "));
  EXPECT_EQ(ModelSha256(ReadModel(Path("run"))),
            ModelSha256(ReadModel(Path("here"))));
  daemon_.reset();
  ExpectNoProcessLeft();
}

// Nobody gets in for a while, as of a host that starts anew.
TEST_F(SshTest, ProcessesOfAHostThatWasAwayAreStartedOnceItIsBack) {
  const std::string config =
      Write("job.textproto", Job({.train = kLong, .lease_ms = 2000}));
  std::unique_ptr<Process> run = StartOnHosts(
      "run", config,
      {"--restart-workers=3", "--set=replicas=1", "--restart-servers=3"});
  ASSERT_TRUE(AwaitProgress(ClusterFile("run")).has_value()) << run->Output();
  daemon_->Stop();
  SignalProcess(SshTo("127.0.0.3", Path("ssh")), SIGKILL);
  ASSERT_TRUE(WaitUntil(kJobMax, [&] {
    return absl::StrContains(run->Output(), "; it is tried again for ");
  })) << run->Output();
  daemon_->Start();
  ASSERT_TRUE(WaitUntil(kJobMax, [&] {
    return absl::StrContains(run->Output(), "started worker 3 again on 127.");
  })) << run->Output();
  EXPECT_TRUE(AwaitStatus(ClusterFile("run"), kJobMax,
                          [](const wire::StatusReply& now) {
                            return now.worker_size() == 4;
                          })
                  .has_value())
      << run->Output();
  // While a host is away, Ctrl-C is for the others.
  daemon_->Stop();
  SignalProcess(SshTo("127.0.0.3", Path("ssh")), SIGKILL);
  ASSERT_TRUE(WaitUntil(kJobMax, [&] {
    return absl::StrContains(run->Output(),
                             "worker 3 is started again once its host answers");
  })) << run->Output();
  run->Signal(SIGINT);
  EXPECT_EQ(run->WaitText(kJobMax), kInterruptedText) << run->Output();
  EXPECT_FALSE(ReadModel(Path("run")).empty());
  daemon_.reset();
  ExpectNoProcessLeft();
}

// As when a host is shut down: SIGTERM to all that runs there.
TEST_F(SshTest, SigtermOnAHostSuspendsTheJobWithACheckpoint) {
  const std::string config =
      Write("job.textproto",
            absl::StrCat(Job({.train = kLong}), "checkpoint { folder: \"",
                         Path("checkpoints"), "\" }\n"));
  const std::unique_ptr<Process> run = StartOnHosts("run", config);
  ASSERT_TRUE(AwaitProgress(ClusterFile("run")).has_value()) << run->Output();
  for (const std::string& process : ProcessesMentioning(Path("bin"))) {
    int pid = 0;
    if (absl::EndsWith(process, "slackline agent ") &&
        !absl::StrContains(process, "ssh -T") &&
        absl::SimpleAtoi(process.substr(0, process.find(':')), &pid)) {
      SignalProcess(pid, SIGTERM);
      break;
    }
  }
  EXPECT_EQ(run->WaitText(kJobMax), "exited with code 75") << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("SIGTERM has come there"));
  // It goes on on other hosts, and its records with it.
  const std::string before = ReadText(Path("run/metrics.jsonl"));
  const std::string first_line = before.substr(0, before.find('\n') + 1);
  EXPECT_FALSE(first_line.empty());
  const std::unique_ptr<Process> on = StartRun(
      "run", config,
      {"--on=ssh", "--hosts=127.0.0.3:4", "--set=launch.runs_dir=" + Path("b"),
       absl::StrCat("--resume=", Path("checkpoints"))});
  ASSERT_TRUE(WaitUntil(kJobMax, [&] {
    return ReadText(Path("run/metrics.jsonl")).size() > before.size();
  })) << on->Output();
  EXPECT_THAT(ReadText(Path("run/metrics.jsonl")), StartsWith(first_line));
  ASSERT_TRUE(AwaitProgress(ClusterFile("run")).has_value()) << on->Output();
  on->Signal(SIGINT);
  EXPECT_EQ(on->WaitText(kJobMax), kInterruptedText) << on->Output();
  daemon_.reset();
  ExpectNoProcessLeft();
}

// A key that is exchanged here is exchanged there, also for processes that are
// started again.
TEST_F(SshTest, ANewKeyReachesTheHosts) {
  const std::string user = Path("user.key");
  EXPECT_EQ(
      StartTool("init", {"keys", "init", "--key", user})->WaitText(kJobMax),
      kEndedWell);
  const std::string config = Write("job.textproto", Job({.train = kLong}));
  const std::unique_ptr<Process> run = StartOnHosts(
      "run", config,
      {absl::StrCat("--key=", user), "--mode=ssp", "--restart-workers=1"});
  const auto status = AwaitProgress(ClusterFile("run"));
  ASSERT_TRUE(status.has_value()) << run->Output();
  const std::unique_ptr<Process> rotate =
      StartTool("rotate", {"keys", "rotate", "--key", user, "--in", "6s"});
  EXPECT_EQ(rotate->WaitText(kJobMax), kEndedWell) << rotate->Output();
  for (const char* const member :
       {"server-0", "server-1", "worker-0", "worker-3"}) {
    const std::string log = Path(absl::StrCat("run/logs/", member, ".log"));
    EXPECT_TRUE(WaitUntil(kJobMax,
                          [&] {
                            return absl::StrContains(
                                ReadText(log),
                                "keys of the job have been exchanged");
                          }))
        << log << run->Output();
  }
  SignalProcess(WorkerPid(*status, 3), SIGKILL);
  const std::string again = Path("run/logs/worker-3.2.log");
  EXPECT_TRUE(WaitUntil(kJobMax, [&] {
    return fs::exists(again) &&
           absl::StrContains(ReadText(again), "the job runs");
  })) << run->Output();
  run->Signal(SIGINT);
  EXPECT_EQ(run->WaitText(kJobMax), kInterruptedText) << run->Output();
}

// The disk here has no room for a while, the hosts' disks have.
TEST_F(SshTest, WhatAFullDiskHereHadNoRoomForComesAfterwards) {
  const std::string small = Path("small");
  fs::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "no right to mount a small disk";
  const std::string config =
      Write("job.textproto", Job({.train = "epochs: 30 seed: 1"}));
  const std::unique_ptr<Process> run = StartOnHosts("small/run", config);
  EXPECT_TRUE(AwaitProgress(ClusterFile("small/run")).has_value())
      << run->Output();
  const std::string filler = absl::StrCat(small, "/filler");
  {
    std::ofstream file(filler, std::ios::binary);
    while (file) (file << std::string(4096, 'x')).flush();
  }
  EXPECT_TRUE(WaitUntil(kJobMax, [&] {
    return absl::StrContains(run->Output(), "; tried again for ");
  })) << run->Output();
  fs::remove(filler);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr("No space left on device; it is asked for until "
                              "it is"),
                    HasSubstr("there: writing ")));
  for (const char* const name :
       {"metrics.jsonl", "summary.json", "model.safetensors", "runs.txt"}) {
    EXPECT_EQ(ReadText(Path(absl::StrCat("small/run/", name))),
              ReadText(absl::StrCat(There("run"), "/", name)))
        << name;
  }
  umount2(small.c_str(), MNT_DETACH);
}

// Runs whose folders have one name here, and an old one there.
TEST_F(SshTest, FoldersOfOneNameAreSeveralThere) {
  const std::string config = Write("job.textproto", Job());
  for (const char* const out : {"a/run", "b/run"}) {
    fs::create_directories(Path(std::string(out, 1)));
    const std::unique_ptr<Process> run = StartOnHosts(out, config);
    EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  }
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(Path("there"))) {
    EXPECT_TRUE(fs::is_directory(entry)) << entry.path();
    ++folders;
  }
  EXPECT_EQ(folders, 2);
  EXPECT_EQ(ReadText(Path("a/run/runs.txt")).size(),
            ReadText(Path("b/run/runs.txt")).size());
}

TEST_F(SshTest, AgentsEndTheirProcessesWhenTheLaunchingProgramIsKilled) {
  const std::string config = Write("job.textproto", Job({.train = kLong}));
  const std::unique_ptr<Process> run = StartOnHosts("run", config);
  ASSERT_TRUE(AwaitProgress(ClusterFile("run")).has_value());
  run->Signal(SIGKILL);
  run->WaitText(kJobMax);
  daemon_.reset();
  ExpectNoProcessLeft();
}

TEST_F(SshTest, ProgramsOfTheUserRunThereWithTheirEnvironment) {
  // slackline_worker is told by the environment as such programs are.
  const std::string program =
      Write("program.sh",
            "#!/bin/sh\necho \"$GREETING from $PWD\"\n"
            "write() { head -c $1 /dev/zero | tr '\\0' x; }\n"
            "write 1500000\n"
            "while [ $(stat -Lc %s /proc/$$/fd/1) -gt 1000000 ]; do sleep 0.1; "
            "done\n"
            "write 500000\nexec \"$0.worker\"\n");
  fs::permissions(program, fs::perms::owner_all);
  fs::create_symlink(absl::StrCat(SLACKLINE_BIN_DIR, "/slackline_worker"),
                     absl::StrCat(program, ".worker"));
  const std::string config = Write(
      "job.textproto", Job({}, "environment: \"GREETING=hello\" log_mib: 1"));
  const std::unique_ptr<Process> run =
      StartOnHosts("run", config,
                   {"--", fs::relative(program, fs::current_path()).string()});
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  // Which has become long, and was put aside there.
  const std::string old = ReadText(Path("run/logs/worker-3.old.log"));
  EXPECT_THAT(
      old, HasSubstr(absl::StrCat("hello from ", fs::current_path().string())));
  EXPECT_GT(old.size(), 1000000u);
  const std::string log = ReadText(Path("run/logs/worker-3.log"));
  EXPECT_THAT(log, HasSubstr("worker 3 info: "));
  // It may have been put aside in the midst of what is written.
  EXPECT_LT(log.size(), 1100000u);
  EXPECT_GT(old.size() + log.size(), 2000000u);
}

TEST_F(SshTest, TheDoctorLooksAtEachHost) {
  const std::string config = Write("job.textproto", Job());
  const auto examine = [&](const std::string& name, const std::string& hosts,
                           std::vector<std::string> more) {
    more.insert(more.begin(),
                {"doctor", config, "--on=ssh", absl::StrCat("--hosts=", hosts),
                 absl::StrCat("--out=", Path("out"))});
    return StartTool(name, more);
  };
  const std::unique_ptr<Process> well =
      examine("well", "127.0.0.2:2,127.0.0.3:2", {"--json"});
  EXPECT_EQ(well->WaitText(kJobMax), kEndedWell) << well->Output();
  const nlohmann::json report = nlohmann::json::parse(well->Output());
  EXPECT_EQ(report.at("errors"), 0);
  int to_second = 0;
  for (const nlohmann::json& finding : report.at("finding")) {
    EXPECT_NE(finding.at("level"), "ERROR") << finding;
    const std::string value = finding.at("value");
    if (finding.at("host") == "127.0.0.2" &&
        absl::StartsWith(value, "to 127.0.0.3 at ")) {
      EXPECT_THAT(value, HasSubstr("B/s"));
      ++to_second;
    }
  }
  EXPECT_EQ(to_second, 1);
  // The others are looked at all the same.
  const std::unique_ptr<Process> unknown =
      examine("unknown", "127.0.0.2:2,127.0.0.4:2", {"--verbose"});
  EXPECT_EQ(unknown->WaitText(kJobMax), kFailed) << unknown->Output();
  EXPECT_THAT(unknown->Output(),
              AllOf(HasSubstr("error: 127.0.0.4: start: no agent was started "
                              "by ssh: its key is not known here: "
                              "`ssh-keyscan"),
                    HasSubstr("ok: 127.0.0.2: version: slackline_worker ")));
  daemon_.reset();
  ExpectNoProcessLeft();
}

// Those of the pages, with the addresses of the test in place of their hosts.
TEST_F(SshTest, CommandsOfThePagesRun) {
  int commands = 0;
  for (const char* const page : {"clusters", "doctor"}) {
    const std::string text = ReadText(
        absl::StrCat(SLACKLINE_SOURCE_DIR, "/docs/manual/", page, ".md"));
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      line = absl::StripTrailingAsciiWhitespace(line.substr(0, line.find('#')));
      if (!absl::StartsWith(line, "slackline ") ||
          !absl::StrContains(line, " --on ssh --hosts n1:2,n2:2")) {
        continue;
      }
      const std::string command = absl::StrReplaceAll(
          line,
          {{"slackline ", absl::StrCat(SLACKLINE_BIN_DIR, "/slackline ")},
           {"examples/", absl::StrCat(SLACKLINE_SOURCE_DIR, "/examples/")},
           {"n1:", "127.0.0.2:"},
           {"n2:", "127.0.0.3:"}});
      Process run(
          {"/bin/sh", "-c",
           absl::StrCat("exec ", command, " --set train.epochs=1 --out ",
                        Path("page"), " --set 'launch.ssh={",
                        absl::StripSuffix(
                            absl::StripPrefix(daemon_->Block(), "ssh {"), "}"),
                        "}'")},
          Path("page.log"));
      EXPECT_EQ(run.WaitText(kJobMax), kEndedWell) << line << run.Output();
      ++commands;
    }
  }
  EXPECT_EQ(commands, 3);
}

// Else the start of a job would wait for slackline_worker to load for that.
TEST_F(SshTest, TheVersionStandsInTheFilesOfPrograms) {
  for (const std::string name : {"slackline_server", "slackline_worker"}) {
    EXPECT_EQ(absl::StrCat(name, " ",
                           VersionInFile(ReadText(
                               absl::StrCat(SLACKLINE_BIN_DIR, "/", name)))),
              VersionText(name));
  }
  EXPECT_EQ(VersionInFile("#!/bin/sh\n"), "");
}

// A folder of two versions, of which slackline is this one.
TEST_F(SshTest, AProgramOfAnotherVersionIsNamedBeforeAnythingStarts) {
  const std::string bins = Path("bins");
  fs::create_directory(bins);
  fs::create_symlink(absl::StrCat(SLACKLINE_BIN_DIR, "/slackline"),
                     absl::StrCat(bins, "/slackline"));
  for (const char* const name : {"slackline_server", "slackline_worker"}) {
    const std::string program = absl::StrCat(bins, "/", name);
    std::ofstream(program) << "#!/bin/sh\n[ \"$1\" = --version ] || touch "
                           << Path("started") << "\necho '" << name
                           << " 0.0.1 (x)'\n";
    fs::permissions(program, fs::perms::owner_all);
  }
  const std::unique_ptr<Process> run = StartOnHosts(
      "run",
      Write("job.textproto", Job({}, absl::StrCat("bin_dir: \"", bins, "\""))));
  EXPECT_EQ(run->WaitText(kJobMax), kFailed);
  std::string lines;
  for (const char* const host : {"127.0.0.2", "127.0.0.3"}) {
    for (const char* const name : {"slackline_server", "slackline_worker"}) {
      absl::StrAppend(&lines, "error: ", host, ": version: ", bins, "/", name,
                      " is 0.0.1 (slackline here is ", VersionNumber(), "); ",
                      Installs(host, bins), "\n");
    }
  }
  EXPECT_EQ(run->Output(),
            absl::StrCat("slackline run: the job would not start:\n", lines,
                         "`slackline doctor`, with the same flags, looks "
                         "closer\n"));
  EXPECT_FALSE(fs::exists(Path("started")));
  EXPECT_FALSE(fs::exists(Path("there")));
  EXPECT_FALSE(fs::exists(Path("run")));
}

// Each ends at the start, with a sentence that says what to do.
TEST_F(SshTest, WhatIsWrongOnAHostIsNamedWithWhatMendsIt) {
  const auto expect = [&](const std::string& name, const std::string& config,
                          const std::string& hosts, const auto& matcher,
                          const std::vector<std::string>& program = {}) {
    SCOPED_TRACE(name);
    std::vector<std::string> arguments = {"--on=ssh",
                                          absl::StrCat("--hosts=", hosts)};
    if (!program.empty()) arguments.emplace_back("--");
    arguments.insert(arguments.end(), program.begin(), program.end());
    const std::unique_ptr<Process> run = StartRun(
        name, Write(absl::StrCat(name, ".textproto"), config), arguments);
    EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
    EXPECT_THAT(run->Output(), matcher);
  };
  const char* const both = "127.0.0.2:2,127.0.0.3:2";
  expect("name", Job(), "no-such-host.invalid:4",
         HasSubstr("host no-such-host.invalid: no agent was started by ssh: "
                   "its name is not known here"));
  expect("key", JobWith(daemon_->BlockWithOtherKey()), both,
         AllOf(HasSubstr("host 127.0.0.2: no agent was started by ssh: no key "
                         "of yours is accepted there: `ssh-copy-id"),
               HasSubstr("host 127.0.0.3: no agent")));
  expect("host-key", Job(), "127.0.0.2:2,127.0.0.4:2",
         HasSubstr("host 127.0.0.4: no agent was started by ssh: its key is "
                   "not known here: `ssh-keyscan"));
  expect("changed-key", Job(), "127.0.0.2:2,127.0.0.5:2",
         HasSubstr("host 127.0.0.5: no agent was started by ssh: the host has "
                   "another key than before"));
  const std::string bins = Path("bins");
  expect("program", Job({}, absl::StrCat("bin_dir: \"", bins, "\"")), both,
         HasSubstr(absl::StrCat(bins, "/slackline is not there: ",
                                Installs("127.0.0.3", bins, "--mkpath "))));
  // Another version says so in its first message.
  fs::create_directory(bins);
  agent::FromAgent hello;
  hello.mutable_hello()->set_version("0.0.1");
  hello.mutable_hello()->set_protocol(kProtocol);
  std::ofstream(absl::StrCat(bins, "/hello"), std::ios::binary)
      << kAgentGreeting << AgentFrame(hello);
  std::ofstream(absl::StrCat(bins, "/slackline"))
      << "#!/bin/sh\ncat " << bins << "/hello; cat > /dev/null\n";
  fs::permissions(absl::StrCat(bins, "/slackline"), fs::perms::owner_all);
  expect("version", Job({}, absl::StrCat("bin_dir: \"", bins, "\"")), both,
         AllOf(HasSubstr("/slackline is of version 0.0.1 (protocol "),
               HasSubstr(absl::StrCat("and this is ", VersionNumber())),
               HasSubstr(absl::StrCat("; ", Installs("127.0.0.3", bins)))));
  // /proc takes no folders, not even of root.
  expect("folder", absl::StrReplaceAll(Job(), {{Path("there"), "/proc/there"}}),
         both,
         AllOf(HasSubstr("host 127.0.0.2: folder /proc/there/folder-"),
               HasSubstr(" cannot be made: No such file or directory; name "
                         "another by --set launch.runs_dir=DIR, or --out\n"),
               HasSubstr("\nwhat to do: mend what the sentence above names\n"),
               HasSubstr("failure.txt")));
  expect("data",
         absl::StrReplaceAll(
             Job({}, "data_dir: \"/no/data\""),
             {{"teacher_student {\n    features: 16 classes: 4 train_examples: "
               "8000 test_examples: 1000\n  }",
               "idx {}"}}),
         both,
         AllOf(HasSubstr("host 127.0.0.2: the data are not in /no/data, which "
                         "is no folder"),
               HasSubstr("host 127.0.0.3: the data are not"),
               HasSubstr("; copy them there, or name their folder there by "
                         "--set launch.data_dir=DIR")));
  expect("own-program", Job(), both,
         HasSubstr(absl::StrCat(
             "host 127.0.0.3: program './absent.py' cannot be started: No such "
             "file or directory; it is looked for in ",
             fs::current_path().string(),
             ", where slackline run was called: put it there on this host, "
             "too")),
         {"./absent.py"});
  expect("own-script", Job(), both,
         AllOf(HasSubstr(" before the job had started: "),
               HasSubstr("can't open file '"), HasSubstr("absent.py'"),
               HasSubstr("what to do: mend what the sentence above and the end "
                         "of the log of worker ")),
         {"python3", "absent.py"});
  // Each host has a folder of its own there.
  expect("checkpoints", absl::StrCat(Job(), "checkpoint { every_steps: 20 }\n"),
         both,
         AllOf(HasSubstr("host 127.0.0.2: "),
               HasSubstr("the checkpoints of a job are in one folder that this "
                         "machine and all hosts of servers share")));
  daemon_.reset();
  ExpectNoProcessLeft();
}

}  // namespace
}  // namespace slackline
