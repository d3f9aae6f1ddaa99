#include "common/host_port.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::host_port_test {

using ::testing::Pair;

TEST(HostPortTest, OnlyIpv6StandsInBrackets) {
  EXPECT_EQ(HostPort("node7", 7700), "node7:7700");
  EXPECT_EQ(HostPort("10.0.0.5", "*"), "10.0.0.5:*");
  EXPECT_EQ(TcpEndpoint("fd00::5", 7700), "tcp://[fd00::5]:7700");
}

TEST(HostPortTest, SplitsWhatItHasMade) {
  for (const char* host : {"node7", "10.0.0.5", "::1", "fd00::5"})
    EXPECT_THAT(SplitHostPort(TcpEndpoint(host, 77)), Pair(host, "77"));
  EXPECT_THAT(SplitHostPort("node7"), Pair("node7", ""));
  EXPECT_THAT(SplitHostPort("[::1]"), Pair("::1", ""));
  EXPECT_THAT(SplitHostPort(""), Pair("", ""));
  EXPECT_THAT(SplitHostPort("]:["), Pair("]", "["));
}

TEST(HostPortTest, AnAddressHasOneSpelling) {
  EXPECT_TRUE(IsIpv6("::1"));
  EXPECT_FALSE(IsIpv6("[::1]"));
  EXPECT_FALSE(IsIpv6("::1%lo"));
  EXPECT_FALSE(IsIpv6("127.0.0.1"));
  EXPECT_EQ(CanonicalHost("0:0::0:1"), "::1");
  EXPECT_EQ(CanonicalHost("FD00::A"), "fd00::a");
  EXPECT_EQ(CanonicalHost("Node7"), "node7");
}

}  // namespace slackline::host_port_test
