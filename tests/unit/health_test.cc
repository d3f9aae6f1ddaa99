// Goal: what a process says of its health follows from what its threads have
// said of themselves, and from nothing else. Method: tables of cases.
#include "common/health/health.h"

#include "common/config/cluster_config.h"
#include "common/health/health_page.h"
#include "common/health/health_place.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"

namespace slackline::health_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kStall = absl::Seconds(60);

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

TEST(HealthTest, WhatThreadsSayDecides) {
  using Stage = HealthStage;
  const std::optional<absl::Time> never;
  const struct {
    const char* name;
    Stage stage;
    std::optional<absl::Time> looked_at;
    std::optional<absl::Time> still_since;
    bool alive;
    bool ready;
    const char* why;  // Of /readyz; of /healthz, too, if that is not well.
  } cases[] = {
      {"reads its data", Stage::kStarting, never, never, true, false,
       "it reads its config and its data"},
      {"looks for the coordinator", Stage::kJoining, At(999), never, true,
       false, "the coordinator does not answer yet"},
      {"trains", Stage::kTakingPart, At(999.5), At(999), true, true, ""},
      {"waits for others, for long", Stage::kTakingPart, At(999.5), never, true,
       true, ""},
      {"has a step of just the bound", Stage::kTakingPart, At(999.5), At(940),
       true, true, ""},
      {"has a step beyond it", Stage::kTakingPart, At(999.5), At(939.9), false,
       false,
       "computing step 7 has come no further for 60 s, more than 60 s "
       "(limits.stall_timeout_ms)"},
      {"looks no more", Stage::kTakingPart, At(900), never, false, false,
       "has not looked for messages for 100 s"},
      {"looks no more while it joins", Stage::kJoining, At(900), never, false,
       false, "the coordinator does not answer yet"},
      {"is at its end, at which nothing looks", Stage::kEnding, At(100), At(1),
       true, false, "the job is over for it"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    const HealthFacts facts = {.role = "worker",
                               .index = 3,
                               .stage = each.stage,
                               .stage_since = At(990),
                               .looked_at = each.looked_at,
                               .clock = 7,
                               .doing = "computing step 7",
                               .still_since = each.still_since};
    const HealthBounds bounds = {.stall = kStall};
    const HealthReport alive = Healthz(facts, bounds, At(1000));
    const HealthReport ready = Readyz(facts, bounds, At(1000));
    EXPECT_EQ(alive.ok, each.alive) << alive.json;
    EXPECT_EQ(ready.ok, each.ready) << ready.json;
    EXPECT_THAT(ready.json, HasSubstr(each.why));
    EXPECT_EQ(ready.json.find("\"why\"") == std::string::npos, each.ready);
    EXPECT_EQ(alive.json.find("\"why\"") == std::string::npos, each.alive);
    EXPECT_EQ(ready.json.find('\n'), ready.json.size() - 1);
  }
}

TEST(HealthTest, ALineSaysWhoAndWhere) {
  const HealthReport report = Healthz({.role = "server",
                                       .index = 1,
                                       .stage = HealthStage::kTakingPart,
                                       .stage_since = At(10),
                                       .looked_at = At(29.75),
                                       .doing = "a \"name\"\n\xff"},
                                      {.stall = kStall}, At(30));
  EXPECT_EQ(
      report.json,
      "{\"ok\":true,\"role\":\"server\",\"index\":1,\"stage\":\"running\","
      "\"stage_seconds\":20.0,\"looked_seconds_ago\":0.3,"
      "\"doing\":\"a \\\"name\\\"\\n\xef\xbf\xbd\"}\n");
}

absl::StatusOr<config::ClusterConfig> Config(const std::string& health,
                                             const std::string& host) {
  return ParseClusterConfig(
      absl::StrCat("job: \"j\" coordinator { port: 7700 } server { host: \"",
                   host, "\" count: 2 } worker { host: \"", host,
                   "\" count: 3 } insecure: true ", health),
      "c.txt", kJobConfigParts);
}

TEST(HealthTest, ProcessesOfOneHostHavePortsOfTheirOwn) {
  const struct {
    const char* health;
    const char* host;
    std::optional<int> given;
    int ports[5];  // Two servers, three workers; -1: none.
  } cases[] = {
      {"", "127.0.0.1", std::nullopt, {-1, -1, -1, -1, -1}},
      {"", "127.0.0.1", 9000, {9000, 9000, 9000, 9000, 9000}},
      {"health {}", "127.0.0.1", std::nullopt, {0, 0, 0, 0, 0}},
      {"health { port: 9000 }",
       "localhost",
       std::nullopt,
       {9000, 9001, 9002, 9003, 9004}},
      // Servers and workers of one number share a host.
      {"health { port: 9000 }",
       "n{index}",
       std::nullopt,
       {9000, 9000, 9001, 9001, 9000}},
      {"health { port: 9000 }", "n1", 0, {0, 0, 0, 0, 0}},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(absl::StrCat(each.health, " ", each.host));
    const auto config = Config(each.health, each.host);
    ASSERT_TRUE(config.ok()) << config.status();
    for (int i = 0; i < 5; ++i) {
      const auto place =
          HealthPlaceOf(*config, i < 2, i < 2 ? i : i - 2, each.given);
      EXPECT_EQ(place.has_value() ? place->port : -1, each.ports[i]) << i;
    }
  }
  const auto config = Config("health { port: 9000 }", "n1");
  EXPECT_EQ(HealthPlaceOf(*config, true, 7, std::nullopt)->port, 0)
      << "a server that is added has no place in the config";
}

TEST(HealthTest, TheConfigRefusesWhatCannotBe) {
  EXPECT_THAT(Config("health { port: 65532 }", "n1").status().message(),
              AllOf(HasSubstr("health.port: value is 65532; at most 65531"),
                    HasSubstr("5 processes")));
  EXPECT_TRUE(Config("health { port: 65531 }", "n1").ok());
  EXPECT_TRUE(Config("health { host: \"0.0.0.0\" }", "n1").ok());
  EXPECT_THAT(Config("health { port: -1 }", "n1").status().message(),
              HasSubstr("health.port: value is -1"));
  EXPECT_THAT(Config("health { host: \"a b\" }", "n1").status().message(),
              HasSubstr("health.host"));
}

}  // namespace slackline::health_test
