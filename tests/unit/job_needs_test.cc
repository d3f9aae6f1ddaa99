#include "tools/cli/doctor/job_needs.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"

namespace slackline::job_needs_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Servers on a and b, workers on b and c.
config::ClusterConfig JobOn(const std::string& more) {
  const auto config = ParseJobConfig(
      absl::StrCat("job: 'x' insecure: true coordinator { host: 'a' } "
                   "server { host: 'a' port: 7800 threads: 2 } "
                   "server { host: 'b' threads: 2 } "
                   "worker { host: 'b' } worker { host: 'c' count: 2 } "
                   "model { mlp { hidden: [100, 10] } } data { teacher_student "
                   "{ features: 100 train_examples: 9000 test_examples: 1000 } "
                   "} optimizer { sgd { learning_rate: 0.1 } } ",
                   more),
      "c.txt");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : config::ClusterConfig();
}

doctor::Job NeedsOf(const std::string& more, int coordinator_port = 7700) {
  return JobNeeds(JobOn(more), {.hosts = {"a", "b", "c"},
                                .coordinator_port = coordinator_port,
                                .engine = "ssh",
                                .data_dir = ""});
}

// "coordinator:7700 CS": who connects there.
std::vector<std::string> DoorsOf(const doctor::Job& job, int host) {
  std::vector<std::string> doors;
  for (const doctor::Door& door : job.host(host).door()) {
    doors.push_back(absl::StrCat(
        door.label(), ":", door.port(), " ", door.coordinator() ? "C" : "",
        door.servers() ? "S" : "", door.workers() ? "W" : ""));
  }
  return doors;
}

TEST(JobNeeds, DoorsAreWhereProcessesWillListen) {
  const doctor::Job job = NeedsOf("sync { ssp {} }");
  EXPECT_THAT(
      DoorsOf(job, 0),
      ElementsAre("coordinator:7700 C", "server 0:7800 S", "server 0:7801 S"));
  EXPECT_THAT(DoorsOf(job, 1), ElementsAre("any port:0 S"));
  EXPECT_THAT(DoorsOf(job, 2), IsEmpty()) << "nobody connects to workers";
}

TEST(JobNeeds, WorkersHaveDoorsWhereTheyMayAllReduce) {
  for (const char* const mode :
       {"sync { allreduce {} }", "sync { auto {} }",
        "sync { phase { ssp {} until_epoch: 1 } phase { allreduce {} } }"}) {
    const doctor::Job job = NeedsOf(mode);
    EXPECT_THAT(DoorsOf(job, 1), ElementsAre("any port:0 SW")) << mode;
    EXPECT_THAT(DoorsOf(job, 2), ElementsAre("any port:0 W")) << mode;
  }
}

TEST(JobNeeds, HealthPagesHaveDoorsToWhichNobodyConnects) {
  const doctor::Job job = NeedsOf("health { port: 8080 host: '0.0.0.0' }");
  EXPECT_THAT(DoorsOf(job, 0),
              ElementsAre("coordinator:7700 C", "server 0:7800 S",
                          "server 0:7801 S", "health page of server 0:8080 "));
  EXPECT_THAT(DoorsOf(job, 1),
              ElementsAre("any port:0 S", "health page of server 1:8080 ",
                          "health page of worker 0:8081 "));
  EXPECT_THAT(DoorsOf(job, 2), ElementsAre("health page of worker 1:8080 ",
                                           "health page of worker 2:8081 "));
  EXPECT_EQ(job.host(2).door(0).host(), "0.0.0.0");
  EXPECT_THAT(job.by_name(), ElementsAre("a"));
  EXPECT_THAT(DoorsOf(NeedsOf("health { port: 0 }"), 2), IsEmpty())
      << "any free one";
}

TEST(JobNeeds, AnyPortOfTheCoordinatorIsOne) {
  EXPECT_THAT(
      DoorsOf(NeedsOf("", 0), 0),
      ElementsAre("any port:0 C", "server 0:7800 S", "server 0:7801 S"));
}

TEST(JobNeeds, NamesThatOthersConnectBy) {
  EXPECT_THAT(NeedsOf("").by_name(), ElementsAre("a"));
  const doctor::Job job = NeedsOf("server { host: 'b' listen: '0.0.0.0' }");
  EXPECT_THAT(job.by_name(), ElementsAre("a", "b"));
}

TEST(JobNeeds, EachHostHasItsMembers) {
  const doctor::Job job = NeedsOf("checkpoint { every_epochs: 1 keep: 2 }");
  EXPECT_EQ(job.host(0).servers(), 1);
  EXPECT_EQ(job.host(0).workers(), 0);
  EXPECT_EQ(job.host(2).workers(), 2);
  EXPECT_TRUE(job.host(1).writes_checkpoints());
  EXPECT_FALSE(job.host(2).writes_checkpoints());
  EXPECT_TRUE(job.shares_checkpoints());
  EXPECT_EQ(job.checkpoint_keep(), 2);
  EXPECT_EQ(job.model_bytes(), (101 * 100 + 101 * 10) * 4);
  EXPECT_FALSE(job.host(2).data()) << "they are generated";
}

}  // namespace slackline::job_needs_test
