// Which host a process is on, against its entry in the config.
#include "common/process/join_request.h"

#include "common/block/bounds.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::join_request_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(JoinRequestTest, AnEntryOnAnotherHostIsNamed) {
  EXPECT_EQ(WhyOnAnotherHost("worker 2", "127.0.0.1", ""), "");
  EXPECT_EQ(WhyOnAnotherHost("worker 2", "localhost", ""), "");
  // Of documents, so of no machine.
  EXPECT_THAT(WhyOnAnotherHost("worker 2", "198.51.100.7", ""),
              AllOf(HasSubstr("the config has worker 2 on 198.51.100.7"),
                    HasSubstr("which is not this host"),
                    HasSubstr("--index of another one")));
}

TEST(JoinRequestTest, WhereAnEntryListensSaysWhichHostItIs) {
  EXPECT_EQ(WhyOnAnotherHost("worker 2", "198.51.100.7", "0.0.0.0"), "");
  EXPECT_EQ(WhyOnAnotherHost("worker 2", "198.51.100.7", "::"), "");
  EXPECT_EQ(WhyOnAnotherHost("worker 2", "198.51.100.7", "127.0.0.1"), "");
  EXPECT_THAT(WhyOnAnotherHost("worker 2", "127.0.0.1", "198.51.100.7"),
              HasSubstr("the config has worker 2 on 198.51.100.7"));
}

TEST(JoinRequestTest, AConfigThatIsTooLongIsLeftOut) {
  config::ClusterConfig config;
  config.set_job("small");
  EXPECT_EQ(
      JoinRequestOf(wire::JoinRequest::WORKER, 0, "here", config).config(),
      config.SerializeAsString());
  config.set_job(std::string(kJoinConfigBytesMax, 'x'));
  EXPECT_EQ(
      JoinRequestOf(wire::JoinRequest::WORKER, 0, "here", config).config(), "");
}

}  // namespace slackline::join_request_test
