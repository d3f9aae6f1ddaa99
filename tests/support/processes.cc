#include "tests/support/processes.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "gtest/gtest.h"

namespace slackline {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(5);

// Empty if it cannot be read.
std::string ReadAll(const std::string& path) {
  // A file of a process that ends meanwhile cannot be read; iterators of the
  // file would throw then.
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file.is_open()) text << file.rdbuf();
  return text.str();
}

}  // namespace

bool WaitUntil(absl::Duration wait_max, const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + wait_max;
  while (!done()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(kLookEvery);
  }
  return true;
}

Process::Process(const std::vector<std::string>& command,
                 const std::string& log)
    : name_(absl::StrJoin(command, " ")), log_(log) {
  absl::StatusOr<ChildProcess> child =
      ChildProcess::Start({.command = command, .log_path = log});
  SL_CHECK(child.ok(), child.status().ToString());
  child_.emplace(*std::move(child));
}

bool Process::running() {
  if (const std::optional<ExitStatus> exit = child_->Poll()) exit_ = exit;
  return child_->running();
}

std::optional<ExitStatus> Process::Wait(absl::Duration wait_max) {
  EXPECT_TRUE(WaitUntil(wait_max, [&] { return !running(); }))
      << name_ << " (pid " << pid() << ") still runs after " << wait_max
      << ". Its output:\n"
      << Output();
  return exit_;
}

std::string Process::WaitText(absl::Duration wait_max) {
  const std::optional<ExitStatus> exit = Wait(wait_max);
  return exit.has_value() ? exit->ToString() : "still runs";
}

void Process::Signal(int signal) {
  if (running()) kill(pid(), signal);
}

std::string Process::Output() const { return ReadAll(log_); }

std::vector<std::string> ProcessesMentioning(const std::string& text) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc", error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) ||
        pid == getpid()) {
      continue;
    }
    std::string command = ReadAll((entry.path() / "cmdline").string());
    if (!absl::StrContains(command, text)) continue;
    std::replace(command.begin(), command.end(), '\0', ' ');
    found.push_back(absl::StrCat(pid, ": ", command));
  }
  return found;
}

}  // namespace slackline
