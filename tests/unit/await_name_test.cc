// Goal: a name that is not known yet is waited for, which is said once; at the
// end of the time the error names it. Method: a resolver and a clock by hand.
#include "common/process/await_name.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::await_name_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

struct World {
  absl::Time now = absl::UnixEpoch();
  absl::Time known_at = absl::InfiniteFuture();
  absl::Time stopped_at = absl::InfiniteFuture();
  std::string host = "server-0.job";  // The one that becomes known.
  std::vector<std::string> said = {};

  absl::Status Await(const std::vector<std::string>& hosts) {
    return AwaitName(
        "coordinator.host", hosts, absl::Seconds(60),
        {.resolve =
             [&](const std::string& name) -> absl::StatusOr<std::string> {
           if (name == host && now >= known_at) return "10.0.0.1";
           return absl::NotFoundError("host " + name + ": not known");
         },
         .now = [&] { return now; },
         .pause =
             [&] {
               now += absl::Seconds(1);
               return now < stopped_at;
             },
         .say = [&](const std::string& text) { said.push_back(text); }});
  }
};

TEST(AwaitNameTest, AKnownNameIsNotWaitedFor) {
  World world{.known_at = absl::UnixEpoch()};
  EXPECT_TRUE(world.Await({"server-0.job"}).ok());
  EXPECT_THAT(world.said, SizeIs(0));
}

TEST(AwaitNameTest, OneThatComesIsWaitedForAndThatIsSaidOnce) {
  World world{.known_at = absl::UnixEpoch() + absl::Seconds(20)};
  EXPECT_TRUE(world.Await({"other", "server-0.job"}).ok());
  ASSERT_THAT(world.said, SizeIs(1));
  EXPECT_THAT(world.said[0],
              AllOf(HasSubstr("coordinator.host: other, server-0.job is not "
                              "known yet, and is waited for, up to 1m"),
                    HasSubstr("host server-0.job: not known")));
}

TEST(AwaitNameTest, OneThatNeverComesIsTheError) {
  World world;
  const absl::Status status = world.Await({"server-0.job"});
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("coordinator.host: server-0.job did not become known "
                      "within 1m (limits { start_timeout_ms: ... })"),
            HasSubstr("host server-0.job: not known")));
  EXPECT_EQ(world.now, absl::UnixEpoch() + absl::Seconds(60));
}

TEST(AwaitNameTest, AStopSignalEndsTheWait) {
  World world{.stopped_at = absl::UnixEpoch() + absl::Seconds(3)};
  EXPECT_TRUE(absl::IsAborted(world.Await({"server-0.job"})));
}

}  // namespace slackline::await_name_test
