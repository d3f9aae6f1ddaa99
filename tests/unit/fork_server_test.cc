// Goal: a process that a fork server has made is as one that was started, and
// whatever is wrong with the fork server, there is a process.
// Method: this program is the fork server; what it makes of itself does as its
// first argument says.
#include "common/process/fork_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tools/cli/fork_server_client.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Self() { return fs::read_symlink("/proc/self/exe").string(); }

// What the process that is made says of itself; its exit code.
int Describe(int argc, char** argv) {
  std::cout << "arguments";
  for (int i = 1; i < argc; ++i) std::cout << " [" << argv[i] << "]";
  std::cout << "\nparent " << getppid() << "\ngroup of its own "
            << (getpgrp() == getpid()) << "\ninput bytes "
            << read(STDIN_FILENO, argv[0], 1) << "\ncommand line "
            << absl::StrReplaceAll(
                   std::string(ReadAll("/proc/self/cmdline").c_str() +
                               std::strlen(argv[0]) + 1),
                   {{Self(), "SELF"}})
            << std::endl;
  std::cerr << "and on stderr" << std::endl;
  return 7;
}

[[noreturn]] void SleepForever() {
  while (true) pause();
}

// Starts one, says its number, and goes without a goodbye.
[[noreturn]] void StartAndLeave() {
  ForkServerClient client(Self());
  absl::StatusOr<ChildProcess> child =
      client.Start({Self(), "sleep"}, "/dev/null");
  std::cout << (child.ok() ? child->pid() : 0) << std::endl;
  _exit(0);
}

class ForkServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              absl::StrCat("slackline-fork-server-", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Log() const { return (folder_ / "log").string(); }

  fs::path folder_;
};

TEST_F(ForkServerTest, AProcessIsAsOneThatWasStarted) {
  ForkServerClient client(Self());
  for (int i = 0; i < 2; ++i) {
    fs::remove(Log());
    absl::StatusOr<ChildProcess> child =
        client.Start({Self(), "describe", "a b", ""}, Log());
    ASSERT_TRUE(child.ok()) << child.status();
    EXPECT_EQ(child->Wait().ToString(), "exited with code 7");
    EXPECT_EQ(ReadAll(Log()),
              absl::StrCat("arguments [describe] [a b] []\nparent ", getpid(),
                           "\ngroup of its own 1\ninput bytes 0\ncommand line "
                           "describe\nand on stderr\n"));
  }
}

TEST_F(ForkServerTest, SignalsEndIt) {
  ForkServerClient client(Self());
  absl::StatusOr<ChildProcess> child = client.Start({Self(), "sleep"}, Log());
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->Poll(), std::nullopt);
  child->Signal(SIGTERM);
  EXPECT_EQ(child->Wait().signal, SIGTERM);
}

TEST_F(ForkServerTest, ItOutlivesTheForkServerAndDiesWithWhoeverStartedIt) {
  absl::StatusOr<ChildProcess> starter = ChildProcess::Start(
      {.command = {Self(), "start-and-leave"}, .log_path = Log()});
  ASSERT_TRUE(starter.ok()) << starter.status();
  EXPECT_EQ(starter->Wait().ToString(), "exited with code 0");
  int pid = 0;
  ASSERT_TRUE(absl::SimpleAtoi(ReadAll(Log()), &pid)) << ReadAll(Log());
  ASSERT_GT(pid, 0);
  // Nobody may have waited for it yet.
  const std::string stat = absl::StrCat("/proc/", pid, "/stat");
  while (kill(pid, 0) == 0 && !absl::StrContains(ReadAll(stat), ") Z "))
    absl::SleepFor(absl::Milliseconds(1));

  std::optional<ChildProcess> child;
  {
    ForkServerClient client(Self());
    absl::StatusOr<ChildProcess> made = client.Start({Self(), "sleep"}, Log());
    ASSERT_TRUE(made.ok()) << made.status();
    child = *std::move(made);
  }
  EXPECT_EQ(child->Poll(), std::nullopt);
}

TEST_F(ForkServerTest, AProgramThatIsNoForkServerIsStarted) {
  ForkServerClient client("/bin/sh");
  for (const char* const text : {"one", "two"}) {
    absl::StatusOr<ChildProcess> child =
        client.Start({"/bin/sh", "-c", absl::StrCat("echo ", text)}, Log());
    ASSERT_TRUE(child.ok()) << child.status();
    EXPECT_EQ(child->Wait().ToString(), "exited with code 0");
  }
  EXPECT_EQ(ReadAll(Log()), "one\ntwo\n");
}

TEST_F(ForkServerTest, ACommandThatIsTooLongForARequestIsStarted) {
  ForkServerClient client(Self());
  const std::string text(kForkRequestBytesMax, 'x');
  absl::StatusOr<ChildProcess> child =
      client.Start({Self(), "describe", text}, Log());
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->Wait().ToString(), "exited with code 7");
  EXPECT_THAT(ReadAll(Log()),
              StartsWith(absl::StrCat("arguments [describe] [", text, "]")));
}

TEST_F(ForkServerTest, WhatIsMissingIsNamed) {
  const std::string program = (folder_ / "missing").string();
  ForkServerClient client(program);
  EXPECT_THAT(client.Start({program}, Log()).status().message(),
              HasSubstr(program));
  ForkServerClient other(Self());
  const std::string log = (folder_ / "none/log").string();
  EXPECT_THAT(other.Start({Self(), "describe"}, log).status().message(),
              HasSubstr(log));
}

TEST_F(ForkServerTest, WhatIsNoRequestMakesNoProcess) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  Descriptor ours(ends[0]);
  Descriptor theirs(ends[1]);
  absl::StatusOr<ChildProcess> server =
      ChildProcess::Start({.command = {Self(), kForkServerFlag,
                                       std::string(kForkServerPadding, ' ')},
                           .log_path = Log(),
                           .standard_input = theirs.get()});
  ASSERT_TRUE(server.ok()) << server.status();
  theirs = Descriptor();
  for (const std::string& body :
       {std::string("no end"), std::string(1, '\0'), std::string(200000, 'x'),
        std::string(kForkRequestBytesMax + 1, '\0')}) {
    EXPECT_EQ(send(ours.get(), body.data(), body.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(body.size()))
        << std::strerror(errno);
  }
  EXPECT_EQ(server->Poll(), std::nullopt);
  ours = Descriptor();
  EXPECT_EQ(server->Wait().ToString(), "exited with code 0");
  EXPECT_EQ(ReadAll(Log()), "");
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) {
  slackline::ForkServerArguments arguments(argc, argv);
  const std::string does = arguments.argc() > 1 ? arguments.argv()[1] : "";
  if (does == "describe")
    return slackline::Describe(arguments.argc(), arguments.argv());
  if (does == "sleep") slackline::SleepForever();
  if (does == "start-and-leave") slackline::StartAndLeave();
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
