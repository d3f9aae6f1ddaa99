// Goal: a job over a link of 5 Mbit/s with 20 ms and 1 % loss sends hardly more
// than it has to: no gradient goes twice because its answer is late. Nor does
// anything that servers send to copies, over a link that loses nothing and has
// a long queue. Method: real processes in two network namespaces, the server in
// one and two workers in the other, or a server in each, with the link of
// tun_link between them. What was sent is counted by the members, and by the
// link itself. Skipped, aloud, where the machine allows no namespaces or has no
// TUN devices.
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::slow_link_test {

constexpr int kWorkers = 2;
constexpr absl::Duration kJobOverLinkMax = absl::Minutes(3);

// `hidden` units make pushes of about 284 bytes each.
std::string JobOverLink(int hidden, int steps) {
  // The namespaces are the test's own, and so are all their ports.
  return absl::StrCat(R"(
job: "slow_link"
insecure: true
coordinator { port: 7700 }
server { host: "10.77.0.1" }
worker { host: "10.77.0.2" count: 2 }
model { mlp { hidden: )",
                      hidden, R"( } }
data {
  teacher_student {
    features: 64 classes: 4 train_examples: 8000 test_examples: 200
  }
  batch_size: 20
}
sync { asp {} }
optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }
train { epochs: 1 seed: 1 max_steps: )",
                      steps, R"( }
limits { lease_ms: 10000 }
)");
}

// Each server has the copies of the other one. A clock's gradients and their
// copies are 600 kB, a quarter of a second of the link and more than its queue.
std::string JobWithCopies(const std::string& mode, int steps) {
  return absl::StrCat(R"(
job: "copies_behind_a_link"
insecure: true
coordinator { port: 7700 }
server { host: "10.77.0.1" }
server { host: "10.77.0.2" }
worker { host: "10.77.0.1" count: 2 }
model { mlp { hidden: 1400 } }
data {
  teacher_student {
    features: 64 classes: 4 train_examples: 8000 test_examples: 200
  }
  batch_size: 20
}
replicas: 1
sync { )",
                      mode, R"( {} }
optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }
train { epochs: 1 seed: 1 max_steps: )",
                      steps, R"( }
limits { lease_ms: 10000 shard_kib: 32 }
)");
}

class SlowLink : public JobTest {
 protected:
  // False: it is not possible here.
  bool StartLink(const std::vector<std::string>& flags = {
                     "--bandwidth-mbit=5", "--latency-ms=20", "--loss=0.01"}) {
    std::vector<std::string> command = {SLACKLINE_TUN_LINK};
    command.insert(command.end(), flags.begin(), flags.end());
    link_ = std::make_unique<Process>(command, Path("tun_link.log"));
    EXPECT_TRUE(WaitUntil(
        kJobMax, [&] { return !link_->running() || !JsonLines().empty(); }));
    if (JsonLines().empty()) {
      EXPECT_EQ(link_->WaitText(kJobMax), "exited with code 77");
      return false;
    }
    return true;
  }
  std::vector<nlohmann::json> JsonLines() const {
    std::vector<nlohmann::json> lines;
    const std::string output = link_->Output();
    const size_t end = output.rfind('\n');
    if (end == std::string::npos) return lines;
    for (const absl::string_view line :
         absl::StrSplit(output.substr(0, end), '\n')) {
      nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object()) lines.push_back(std::move(json));
    }
    return lines;
  }
  // At end "a" or "b" of the link.
  std::unique_ptr<Process> StartAt(const std::string& end,
                                   const std::string& program, int index,
                                   const std::string& cluster_file) {
    const std::string path = JsonLines().at(0).at(end);
    return std::make_unique<Process>(
        std::vector<std::string>{"/usr/bin/env", "nsenter",
                                 absl::StrCat("--net=", path),
                                 absl::StrCat(SLACKLINE_BIN_DIR, "/", program),
                                 absl::StrCat("--cluster=", cluster_file),
                                 absl::StrCat("--index=", index),
                                 absl::StrCat("--out=", Path("run"))},
        Path(absl::StrCat(program, "-", index, ".log")));
  }
  void RunAndCheck(int hidden, int steps) {
    if (!StartLink()) {
      GTEST_SKIP() << "no slow link on this machine: " << link_->Output();
    }
    const std::string cluster =
        Write("job.textproto", JobOverLink(hidden, steps));
    const std::unique_ptr<Process> server =
        StartAt("a", "slackline_server", 0, cluster);
    std::vector<std::unique_ptr<Process>> workers;
    for (int i = 0; i < kWorkers; ++i)
      workers.push_back(StartAt("b", "slackline_worker", i, cluster));
    for (const std::unique_ptr<Process>& worker : workers) {
      ASSERT_EQ(worker->WaitText(kJobOverLinkMax), kEndedWell)
          << worker->Output();
    }
    ASSERT_EQ(server->WaitText(kJobMax), kEndedWell) << server->Output();
    link_->Signal(SIGTERM);
    ASSERT_EQ(link_->WaitText(kJobMax), kEndedWell);

    const nlohmann::json summary = ReadJson(Path("run/summary.json"));
    const nlohmann::json carried = JsonLines().back();
    const double pushed = summary["bytes_pushed"];
    const double pulled = summary["bytes_pulled"];
    const double resent = summary["bytes_resent"];
    const double up = carried["b_to_a"]["bytes"];
    const double down = carried["a_to_b"]["bytes"];
    std::printf(
        "pushed %.0f, sent again %.0f, carried up %.0f (%.3f of pushed); "
        "pulled %.0f, carried down %.0f (%.3f of pulled); %.1f s; %s\n",
        pushed, resent, up, up / pushed, pulled, down, down / pulled,
        static_cast<double>(summary["wall_seconds"]), carried.dump().c_str());
    EXPECT_EQ(summary["steps"], steps);
    EXPECT_EQ(summary["workers_lost"].size(), 0u);
    EXPECT_GT(carried["b_to_a"]["lost"], 0) << "the link is not what it says";
    EXPECT_LE(pushed + resent, 1.2 * pushed);
    // Headers of packets, what TCP repeats, heartbeats: the rest is ours.
    EXPECT_LE(up, 1.3 * pushed);
    EXPECT_LE(down, 1.3 * pulled);
  }

  void RunWithCopies(const std::string& mode) {
    constexpr int kSteps = 12;
    if (!StartLink({"--bandwidth-mbit=20", "--latency-ms=2", "--loss=0",
                    "--queue-ms=200"})) {
      GTEST_SKIP() << "no slow link on this machine: " << link_->Output();
    }
    const std::string cluster =
        Write("job.textproto", JobWithCopies(mode, kSteps));
    std::vector<std::unique_ptr<Process>> members;
    members.push_back(StartAt("a", "slackline_server", 0, cluster));
    members.push_back(StartAt("b", "slackline_server", 1, cluster));
    for (int i = 0; i < kWorkers; ++i)
      members.push_back(StartAt("a", "slackline_worker", i, cluster));
    for (const std::unique_ptr<Process>& member : members) {
      ASSERT_EQ(member->WaitText(kJobOverLinkMax), kEndedWell)
          << member->Output();
    }
    link_->Signal(SIGTERM);
    ASSERT_EQ(link_->WaitText(kJobMax), kEndedWell);
    const nlohmann::json summary = ReadJson(Path("run/summary.json"));
    const nlohmann::json carried = JsonLines().back();
    const double pushed = summary["bytes_pushed"];
    const double copied = summary["bytes_to_followers"];
    const double up = carried["a_to_b"]["bytes"];
    std::printf(
        "%s: pushed %.0f, to copies %.0f (%.3f), carried %.0f; %.1f s\n",
        mode.c_str(), pushed, copied, copied / pushed, up,
        static_cast<double>(summary["wall_seconds"]));
    EXPECT_EQ(summary["steps"], kSteps);
    EXPECT_EQ(summary["bytes_to_followers_resent"], 0);
    // In BSP it may be fewer: sums.
    EXPECT_LE(copied, 1.02 * pushed);
    // Half of the shards are at the other end, and the copies of the rest.
    EXPECT_LE(up, 1.3 * (pushed + copied) * 0.6);
  }

  std::unique_ptr<Process> link_;
};

TEST_F(SlowLink, CopiesInBspGoOnce) { RunWithCopies("bsp"); }

TEST_F(SlowLink, CopiesInAspGoOnce) { RunWithCopies("asp"); }

TEST_F(SlowLink, PushesOf130KilobytesGoOnce) { RunAndCheck(460, 25); }

TEST_F(SlowLink, PushesOfAMegabyteGoOnce) { RunAndCheck(3600, 6); }

}  // namespace slackline::slow_link_test
