#include "tools/cli/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/signals.h"

namespace slackline::process_test {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class ProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* const test =
        ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("slackline-process-") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    auto signals = SignalWatch::Create();
    ASSERT_TRUE(signals.ok()) << signals.status();
    signals_ = *std::move(signals);
  }

  std::string Log() const { return (folder_ / "log").string(); }
  absl::StatusOr<ChildProcess> StartShell(const std::string& script) {
    return ChildProcess::Start(
        {.command = {"/bin/sh", "-c", script}, .log_path = Log()});
  }
  // Waits for SIGCHLD, not for a time.
  ExitStatus Await(ChildProcess* child) {
    while (true) {
      if (const std::optional<ExitStatus> status = child->Poll()) {
        return *status;
      }
      signals_->Wait(absl::Seconds(1));
    }
  }
  // Waits until the child has written something.
  void AwaitOutput() {
    while (ReadTail(Log()).empty()) signals_->Wait(absl::Milliseconds(5));
  }

  fs::path folder_;
  std::unique_ptr<SignalWatch> signals_;
};

TEST_F(ProcessTest, TellsTheExitCodeOnceAndKeepsTheOutput) {
  auto child = StartShell("echo out; echo err >&2; exit 3");
  ASSERT_TRUE(child.ok()) << child.status();
  const ExitStatus status = Await(&*child);
  EXPECT_EQ(status.ToString(), "exited with code 3");
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(child->running());
  EXPECT_EQ(child->Poll(), std::nullopt);
  EXPECT_EQ(ReadTail(Log()), "out\nerr\n");
}

TEST_F(ProcessTest, AKilledProcessIsNotOutOfMemoryUnlessTheKernelSaysSo) {
  auto child = StartShell("kill -KILL $$");
  ASSERT_TRUE(child.ok()) << child.status();
  const ExitStatus status = Await(&*child);
  EXPECT_EQ(status.ToString(), "was killed by signal 9 (SIGKILL)");
  EXPECT_FALSE(status.maybe_out_of_memory);
  EXPECT_GT(status.memory_bytes_max, 0);
}

TEST(ExitStatusTest, NamesTheMemoryOfAProcessThatMayHaveBeenTooLarge) {
  const ExitStatus status{.signal = SIGKILL,
                          .memory_bytes_max = 3'200'000'000,
                          .maybe_out_of_memory = true};
  EXPECT_EQ(status.ToString(),
            "was killed by signal 9 (SIGKILL), probably because the machine is "
            "out of memory: the kernel has killed a process for that "
            "meanwhile, and this one had 3.20 GB");
}

TEST_F(ProcessTest, TellsTheSignalThatKilled) {
  auto child = StartShell("kill -SEGV $$");
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(Await(&*child).ToString(), "was killed by signal 11 (SIGSEGV)");
}

TEST_F(ProcessTest, SignalsReachTheWholeProcessGroupWithDefaultHandling) {
  // We block SIGTERM; the child must not.
  auto child = StartShell("sleep 1000 & echo $!; wait");
  ASSERT_TRUE(child.ok()) << child.status();
  AwaitOutput();
  const pid_t grandchild = std::stoi(ReadTail(Log()));
  EXPECT_EQ(getpgid(child->pid()), child->pid());
  EXPECT_EQ(getpgid(grandchild), child->pid());
  child->Signal(SIGTERM);
  EXPECT_EQ(Await(&*child).signal, SIGTERM);
}

TEST_F(ProcessTest, WhatAChildHasStartedEndsWithIt) {
  auto child = StartShell("sleep 1000 & echo $!; exit 0");
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_TRUE(Await(&*child).ok());
  const pid_t grandchild = std::stoi(ReadTail(Log()));
  // Whoever inherits it has to wait for it, too.
  while (kill(grandchild, 0) == 0 &&
         !absl::StrContains(
             ReadTail(absl::StrCat("/proc/", grandchild, "/stat")), ") Z")) {
    signals_->Wait(absl::Milliseconds(5));
  }
}

TEST_F(ProcessTest, TheEnvironmentIsOursWithSomeOfItsOwn) {
  auto child = ChildProcess::Start(
      {.command = {"/bin/sh", "-c",
                   "echo $SLACKLINE_TEST $TZ; test -n \"$PATH\""},
       .log_path = Log(),
       .environment = {{"SLACKLINE_TEST", "a b"}, {"TZ", "UTC"}}});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_TRUE(Await(&*child).ok());
  EXPECT_EQ(ReadTail(Log()), "a b UTC\n");
}

TEST(FindProgramTest, LooksAsAShellDoes) {
  const absl::StatusOr<std::string> shell = FindProgram("sh");
  ASSERT_TRUE(shell.ok()) << shell.status();
  EXPECT_THAT(*shell, EndsWith("/sh"));
  EXPECT_EQ(*FindProgram("/bin/sh"), "/bin/sh");
  const absl::Status unknown = FindProgram("no-such-program").status();
  EXPECT_TRUE(absl::IsNotFound(unknown)) << unknown;
  EXPECT_THAT(unknown.message(), HasSubstr("as in ./no-such-program"));
  EXPECT_TRUE(absl::IsNotFound(FindProgram("./no/such").status()));
  EXPECT_TRUE(absl::IsNotFound(FindProgram("/bin/sh/x").status()));
  EXPECT_TRUE(absl::IsNotFound(FindProgram("/tmp").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(FindProgram("/etc/passwd").status()));
}

TEST_F(ProcessTest, ADestroyedProcessIsGone) {
  pid_t pid = 0;
  {
    auto child = StartShell("trap '' TERM; echo ready; sleep 1000");
    ASSERT_TRUE(child.ok()) << child.status();
    AwaitOutput();
    pid = child->pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(ProcessTest, ADetachedProcessOutlivesItsOwnerOnceReleased) {
  pid_t pid = 0;
  {
    auto child = ChildProcess::Start(
        {.command = {"/bin/sh", "-c", "echo ready; exec sleep 1000"},
         .log_path = Log(),
         .detached = true});
    ASSERT_TRUE(child.ok()) << child.status();
    AwaitOutput();
    pid = child->pid();
    EXPECT_EQ(getsid(pid), pid) << "a session of its own";
    child->Release();
  }
  EXPECT_EQ(kill(pid, 0), 0);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

TEST_F(ProcessTest, ADetachedProcessThatIsNotReleasedEndsWithItsOwner) {
  pid_t pid = 0;
  {
    auto child = ChildProcess::Start(
        {.command = {"/bin/sh", "-c", "echo ready; exec sleep 1000"},
         .log_path = Log(),
         .detached = true});
    ASSERT_TRUE(child.ok()) << child.status();
    AwaitOutput();
    pid = child->pid();
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(ProcessTest, AMissingProgramOrLogIsNamed) {
  const absl::Status program =
      ChildProcess::Start({.command = {"/no/such/program"}, .log_path = Log()})
          .status();
  EXPECT_FALSE(program.ok());
  EXPECT_THAT(std::string(program.message()),
              HasSubstr("/no/such/program: No such file"));
  const absl::Status log =
      ChildProcess::Start({.command = {"/bin/true"}, .log_path = "/no/log"})
          .status();
  EXPECT_FALSE(log.ok());
  EXPECT_THAT(std::string(log.message()), HasSubstr("/no/log"));
}

TEST_F(ProcessTest, InterruptsAreCountedAndDoNotKill) {
  ASSERT_EQ(kill(getpid(), SIGINT), 0);
  EXPECT_EQ(signals_->Wait(absl::Seconds(10)).all(), 1);
  EXPECT_EQ(signals_->Wait(absl::ZeroDuration()).all(), 0);
}

}  // namespace slackline::process_test
