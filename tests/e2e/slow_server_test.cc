// Goal: a server that is slow is named, with what it costs: one whose shard
// threads have always been slow, and one that does little from some moment on.
// And so is a worker whose link is slow: it is neither its server nor its
// model. Method: real processes. The first has a slowdown in its config; the
// second is stopped by signals three quarters of the time; the worker has a
// link of the config's conditions.
#include <signal.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::slow_server_test {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The alarm about a server; nullptr: there is none.
const run::Straggler* AlarmOf(const wire::StatusReply& status, int server) {
  const auto alarm =
      absl::c_find_if(status.straggler(), [&](const run::Straggler& slow) {
        return slow.has_server() && slow.server() == server;
      });
  return alarm == status.straggler().end() ? nullptr : &*alarm;
}

class SlowServer : public JobTest {
 protected:
  std::optional<wire::StatusReply> AwaitAlarmOf(int server) {
    return AwaitStatus(Path("run/cluster.textproto"), kJobMax,
                       [server](const wire::StatusReply& status) {
                         return AlarmOf(status, server) != nullptr;
                       });
  }
  // What status, and in the end the summary, say of server 1.
  void ExpectNamed(Process* run, const std::string& how) {
    const std::unique_ptr<Process> status =
        StartTool("status", {"status", Path("run")});
    EXPECT_EQ(status->WaitText(kJobMax), kEndedWell);
    (void)EndEarly("run", run);
    const nlohmann::json summary = ReadJson(Path("run/summary.json"));
    EXPECT_THAT(summary["stragglers"].get<std::vector<std::string>>(),
                Contains(AllOf(StartsWith("server 1 is "),
                               HasSubstr(absl::StrCat(" times slower than ",
                                                      how, " since step ")),
                               HasSubstr("; of a step of "))));
    EXPECT_THAT(ReadText(Path("run/logs/server-0.log")),
                HasSubstr("server 1 is "));
  }
};

TEST_F(SlowServer, ThatSignalsStopMostOfTheTimeIsNamed) {
  const std::string config = Write("job.textproto", SmallJob());
  const std::unique_ptr<Process> run =
      StartRun("run", config,
               {"--mode=bsp", "--epochs=1000000",
                "--set=worker[0].conditions.step_ms=1"});
  // Long enough to know how it is usually.
  const auto usual = AwaitStatus(
      Path("run/cluster.textproto"), kJobMax,
      [](const wire::StatusReply& s) { return s.run_seconds() > 15; });
  ASSERT_TRUE(usual.has_value()) << run->Output();
  std::atomic<bool> slow{true};
  // How long it is stopped is what is tested, so there is no event to wait for.
  std::thread signals([&, pid = ServerPid(*usual, 1)] {
    while (slow) {
      SignalProcess(pid, SIGSTOP);
      absl::SleepFor(absl::Milliseconds(15));
      SignalProcess(pid, SIGCONT);
      absl::SleepFor(absl::Milliseconds(5));
    }
  });
  const auto named = AwaitAlarmOf(1);
  slow = false;
  signals.join();
  ASSERT_TRUE(named.has_value()) << ReadText(Path("run/logs/server-0.log"));
  EXPECT_TRUE(AlarmOf(*named, 1)->than_before());
  ExpectNamed(run.get(), "before");
}

TEST_F(SlowServer, ThatHasAlwaysBeenSlowIsNamed) {
  // A clock's gradients are 4 MB, so that a step waits for what servers do.
  const std::string config =
      Write("job.textproto",
            absl::StrReplaceAll(SmallJob({.workers = 2}),
                                {{"server { host: \"127.0.0.1\" count: 2 }",
                                  "server { host: \"127.0.0.1\" }\n"
                                  "server { host: \"127.0.0.1\" slowdown: 8 }"},
                                 {"hidden: 32", "hidden: 4096"},
                                 {"features: 16", "features: 256"},
                                 {"shard_kib: 1", "shard_kib: 64"}}));
  const std::unique_ptr<Process> run =
      StartRun("run", config, {"--mode=bsp", "--epochs=1000000"});
  const auto named = AwaitAlarmOf(1);
  ASSERT_TRUE(named.has_value()) << ReadText(Path("run/logs/server-0.log"));
  EXPECT_FALSE(AlarmOf(*named, 1)->than_before());
  ExpectNamed(run.get(), "the others");
}

TEST_F(SlowServer, TheSlowLinkOfAWorkerIsItsOwn) {
  // 150 kB each way for a step, which take it 60 ms.
  const std::string config = Write(
      "job.textproto",
      absl::StrReplaceAll(SmallJob({.workers = 2}),
                          {{"hidden: 32", "hidden: 1800"},
                           {"model {",
                            "worker { host: \"127.0.0.1\" conditions { link { "
                            "bandwidth_mbit: 20 } } }\nmodel {"}}));
  const std::unique_ptr<Process> run =
      StartRun("run", config, {"--mode=bsp", "--epochs=1000000"});
  const auto named = AwaitStatus(
      Path("run/cluster.textproto"), kJobMax,
      [](const wire::StatusReply& s) { return s.straggler_size() > 0; });
  ASSERT_TRUE(named.has_value()) << ReadText(Path("run/logs/server-0.log"));
  const run::Straggler& slow = named->straggler(0);
  EXPECT_FALSE(slow.has_server());
  EXPECT_EQ(slow.rank(), 2);
  EXPECT_THAT(slow.phase(), AnyOf("pushing", "pulling"));
  (void)EndEarly("run", run.get());
}

}  // namespace slackline::slow_server_test
