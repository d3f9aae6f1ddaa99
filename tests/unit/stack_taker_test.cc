// Goal: whoever asks for stacks gets them, in bounds, and nobody dies of it.
// Method: this process stands in for one with Python: a handler that writes
// what faulthandler would, and children of every kind, which are to live on.
#include "common/inspection/stack_taker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/inspection/proc.h"
#include "common/thread_name.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::stack_taker_test {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Of the handler, which can be given nothing.
int memfd_of_handler = -1;

void WriteStack(int) {
  const char text[] =
      "Current thread 0x00007f3686da3040 (most recent call first):\n"
      "  File \"/home/u/train.py\", line 41 in load\n";
  (void)!write(memfd_of_handler, text, std::strlen(text));
}

class StackTakerTest : public ::testing::Test {
 protected:
  StackTakerTest() {
    signal_ = FreeSignal().value();
    struct sigaction action = {};
    action.sa_handler = WriteStack;
    action.sa_flags = SA_RESTART;
    sigaction(signal_, &action, nullptr);
    memfd_of_handler = memfd_create("stacks", MFD_CLOEXEC);
    fcntl(memfd_of_handler, F_SETFL, O_APPEND);
  }
  ~StackTakerTest() override {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    close(memfd_of_handler);
    signal(signal_, SIG_DFL);
  }

  // A child that does this, then waits for its end. Returns once it waits.
  pid_t Fork(const std::function<void()>& first) {
    int ready[2] = {};
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
      first();
      close(ready[1]);
      while (true) pause();
    }
    close(ready[1]);
    char none = 0;
    (void)!read(ready[0], &none, 1);
    close(ready[0]);
    children_.push_back(child);
    return child;
  }
  std::unique_ptr<StackTaker> Taker(
      absl::Duration youngest = absl::ZeroDuration(),
      absl::Duration time_max = absl::Minutes(10)) {
    auto taker = StackTaker::OfPython(TimeSource(),
                                      {.signal = signal_,
                                       .descriptor = memfd_of_handler,
                                       .libraries = {},
                                       .youngest = youngest},
                                      time_max);
    EXPECT_TRUE(taker.ok()) << taker.status();
    return *std::move(taker);
  }
  void ExpectAllAlive() {
    for (const pid_t child : children_)
      EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << child;
  }

  int signal_ = 0;
  std::vector<pid_t> children_;
};

TEST_F(StackTakerTest, ShowsTheMainThreadAndAllThreadsByName) {
  std::atomic<bool> over = false;
  std::thread other([&over] {
    NameThisThread("a name that is long");
    over.wait(false);
  });
  while (TasksOf(getpid(), 100).back().name != "a name that is ")
    std::this_thread::yield();
  // Somebody else asks: the main thread may be anywhere.
  wire::Stacks stacks;
  std::thread asks([&] { stacks = Taker()->Take(); });
  asks.join();
  over = true;
  over.notify_all();
  other.join();
  EXPECT_EQ(stacks.where(), "train.py line 41, in load");
  EXPECT_THAT(stacks.text(),
              AllOf(HasSubstr("main thread, in train.py line 41, in load:\n  "
                              "File \"/home/u/train.py\", line 41, in load\n"),
                    ContainsRegex("a name that is +sleeping +[0-9.]+ s")));
}

TEST_F(StackTakerTest, AsksOnlyWhoExpectsIt) {
  const pid_t same = Fork([] {});
  const pid_t closed = Fork([] { close(memfd_of_handler); });
  const pid_t another_file = Fork([] {
    const int other = memfd_create("other", 0);
    dup2(other, memfd_of_handler);
  });
  const pid_t by_default = Fork([this] { signal(signal_, SIG_DFL); });
  const pid_t blocks = Fork([this] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal_);
    sigprocmask(SIG_BLOCK, &set, nullptr);
  });
  const pid_t stopped = Fork([] {});
  kill(stopped, SIGSTOP);
  waitpid(stopped, nullptr, WUNTRACED);
  // It closes its end of the pipe by exec.
  int to_cat[2] = {};
  ASSERT_EQ(pipe2(to_cat, O_CLOEXEC), 0);
  const pid_t another_program = Fork([&to_cat] {
    dup2(to_cat[0], STDIN_FILENO);
    execlp("cat", "cat", nullptr);
  });
  const std::string text = Taker()->Take().text();
  const auto line = [](pid_t child, const std::string& said) {
    return ContainsRegex(absl::StrCat("process ", child, " .*", said));
  };
  EXPECT_THAT(text, line(same, "in train.py line 41, in load:\n"));
  EXPECT_THAT(text, line(closed, "it has closed the file for its stacks"));
  EXPECT_THAT(text, line(another_file, "it has closed the file"));
  EXPECT_THAT(text, line(by_default, "it was started anew"));
  EXPECT_THAT(text, line(another_program, "it was started anew"));
  EXPECT_THAT(text, line(blocks, "it blocks the signal"));
  EXPECT_THAT(text, line(stopped, "it is stopped"));
  ExpectAllAlive();
  close(to_cat[0]);
  close(to_cat[1]);
}

TEST_F(StackTakerTest, DoesNotAskWhoHasOnlyJustBeenForked) {
  const pid_t young = Fork([] {});
  EXPECT_THAT(Taker(/*youngest=*/absl::Hours(1))->Take().text(),
              ContainsRegex(absl::StrCat("process ", young,
                                         " .*it has only just been started")));
}

TEST_F(StackTakerTest, SaysWhyThereIsNoStackOfThisProcess) {
  const auto taker =
      Taker(absl::ZeroDuration(), /*time_max=*/absl::Milliseconds(40));
  signal(signal_, [](int) {});
  EXPECT_THAT(taker->Take().text(),
              HasSubstr("main thread: no stack, the script has given the "
                        "signal another handler"));
  signal(signal_, SIG_DFL);
  EXPECT_THAT(taker->Take().text(), HasSubstr("another handler"));
  // The handler is ours again and writes elsewhere.
  signal(signal_, WriteStack);
  const int ours = memfd_of_handler;
  memfd_of_handler = memfd_create("other", MFD_CLOEXEC);
  EXPECT_THAT(taker->Take().text(), HasSubstr("has written nothing"));
  close(memfd_of_handler);
  memfd_of_handler = ours;
}

TEST_F(StackTakerTest, RefusesASignalThatNobodyHandles) {
  signal(signal_, SIG_DFL);
  EXPECT_TRUE(absl::IsInvalidArgument(
      StackTaker::OfPython(
          TimeSource(),
          {.signal = signal_, .descriptor = memfd_of_handler, .libraries = {}})
          .status()));
  signal(signal_, WriteStack);
  EXPECT_TRUE(absl::IsInvalidArgument(
      StackTaker::OfPython(
          TimeSource(), {.signal = signal_, .descriptor = -1, .libraries = {}})
          .status()));
  EXPECT_NE(FreeSignal(), signal_);
}

TEST_F(StackTakerTest, AProcessWithoutPythonShowsItsThreads) {
  const pid_t child = Fork([] {});
  const wire::Stacks stacks = StackTaker(TimeSource()).Take();
  EXPECT_EQ(stacks.where(), "");
  EXPECT_THAT(stacks.text(), AllOf(HasSubstr("threads (number, name, state"),
                                   HasSubstr(absl::StrCat("process ", child)),
                                   Not(HasSubstr("main thread"))));
  EXPECT_LE(stacks.text().size(), StackTaker::kTextBytesMax);
}

}  // namespace slackline::stack_taker_test
