// Goal: a server that dies ends the job soon, with a sentence that names it.
// Method: kill -9 in the midst of a job.
#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::server_death_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLease = absl::Seconds(2);
// Its lease, or two of the coordinator's silence, and then some for everybody
// to be told and to go.
const absl::Duration kEndMax = 2 * kLease + absl::Seconds(5);

class ServerDeath : public JobTest {
 protected:
  const std::vector<std::string> arguments_ = {
      "--mode=ssp:3", "--set=train.epochs=40",
      absl::StrCat("--set=limits.lease_ms=",
                   absl::ToInt64Milliseconds(kLease))};
  std::string Log(const std::string& member) const {
    return ReadText(Path(absl::StrCat("run/logs/", member, ".log")));
  }
};

TEST_F(ServerDeath, Server1IsNamedByEverybody) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), arguments_);
  const auto status = AwaitProgress(Path("run/cluster.textproto"));
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t pid = ServerPid(*status, 1);
  SignalProcess(pid, SIGKILL);
  EXPECT_EQ(run->WaitText(kEndMax), kFailed) << run->Output();
  ExpectNoProcessLeft();

  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["state"], "FAILED");
  EXPECT_EQ(summary["cause"], "SERVER_LOST");
  EXPECT_EQ(summary["about"], nlohmann::json({"server 1"}));
  EXPECT_GT(summary["steps"], 0);
  const std::string who = absl::StrCat("server 1 (pid ", pid);
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr(absl::StrCat("the job failed (logs: ",
                                           Path("run"), "/logs): ", who)),
                    HasSubstr("its shards are lost, so the job cannot go on")));
  for (const char* const member :
       {"server-0", "worker-0", "worker-1", "worker-2", "worker-3"}) {
    EXPECT_THAT(Log(member), HasSubstr(who)) << member;
  }
  // The page says the same, with its exit, and what to type; the terminal names
  // the page, and so does status.
  const std::string page = Path("run/failure.txt");
  EXPECT_THAT(
      ReadText(page),
      AllOf(HasSubstr("SERVER_LOST: server 1"),
            HasSubstr(absl::StrCat("server 1 (pid ", pid, " on ")),
            HasSubstr("was killed by signal 9 (SIGKILL)"),
            HasSubstr("/logs/server-1.log:\n  | "), HasSubstr("worker 3 "),
            HasSubstr("Then:       slackline run ")));
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr("\nwhat to do: server 1 was killed by SIGKILL"),
                    HasSubstr("\nthen: slackline run "),
                    HasSubstr(absl::StrCat("all that is known: ", page))));
  const std::unique_ptr<Process> shown =
      StartTool("status", {"status", Path("run")});
  shown->WaitText(absl::Seconds(20));
  EXPECT_THAT(shown->Output(), HasSubstr(page));
}

TEST_F(ServerDeath, Server0IsNamedByTheRun) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), arguments_);
  const auto status = AwaitProgress(Path("run/cluster.textproto"));
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t pid = ServerPid(*status, 0);
  SignalProcess(pid, SIGKILL);
  EXPECT_EQ(run->WaitText(kEndMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(run->Output(),
              HasSubstr(absl::StrCat("the job failed (logs: ", Path("run"),
                                     "/logs): server 0 (pid ", pid,
                                     ") was killed by signal 9 (SIGKILL)")));
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["state"], "FAILED");
  EXPECT_EQ(summary["cause"], "SERVER_LOST");
  EXPECT_EQ(summary["about"], nlohmann::json({"server 0"}));
  // What the records have, although nobody is left who knows more.
  int64_t step = 0;
  double seconds = 0;
  for (const nlohmann::json& record :
       ReadJsonLines(Path("run/metrics.jsonl"))) {
    step = std::max(step, record["step"].get<int64_t>());
    if (record["kind"] == "train")
      seconds = std::max(seconds, record["seconds"].get<double>());
  }
  ASSERT_GT(step, 0);
  EXPECT_GE(summary["steps"], step);
  EXPECT_EQ(summary["wall_seconds"], seconds);
  EXPECT_GT(summary["examples_per_second"], 0);
  EXPECT_TRUE(summary["train_loss"].is_number());
  EXPECT_THAT(summary["files_incomplete"].get<std::string>(),
              HasSubstr(absl::StrCat("the records end early, at step ", step)));
}

TEST_F(ServerDeath, WithoutARunTheOthersNoticeTheSilenceOfServer0) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::vector<std::unique_ptr<Process>> members =
      StartSmallJobByHand(config, "by-hand", arguments_);
  ASSERT_TRUE(AwaitProgress(config).has_value()) << members[0]->Output();
  members[0]->Signal(SIGKILL);
  const absl::Time deadline = absl::Now() + kEndMax;
  for (const std::unique_ptr<Process>& member : members) {
    if (member == members[0]) continue;
    EXPECT_EQ(member->WaitText(deadline - absl::Now()), kFailed)
        << member->Output();
    EXPECT_THAT(member->Output(), HasSubstr("the coordinator in server 0 at "));
    EXPECT_THAT(member->Output(), HasSubstr("has been silent for "));
  }
}

}  // namespace slackline::server_death_test
