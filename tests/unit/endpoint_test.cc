// Goal: an endpoint over the network keeps its scheme and port under another
// host's name, and one that nobody can connect to is told from one that all
// can. Method: one text of each sort.
#include "common/endpoint.h"

#include <gtest/gtest.h>

namespace slackline::endpoint_test {

TEST(EndpointTest, AHostIsKnownByAnotherName) {
  EXPECT_EQ(WithHost("tcp://0.0.0.0:7700", "node7"), "tcp://node7:7700");
  EXPECT_EQ(WithHost("tcp://[::]:7700", "10.0.0.5"), "tcp://10.0.0.5:7700");
  EXPECT_EQ(WithHost("tcp://10.0.0.5:7700", "fd00::5"), "tcp://[fd00::5]:7700");
}

TEST(EndpointTest, WhatOthersConnectToHasAHostAndAPort) {
  for (const char* text : {"tcp://node7:1", "tcp://10.0.0.5:65535",
                           "tcp://[fd00::5]:7700", "tcp://[fe80::1%eth0]:7"})
    EXPECT_TRUE(HasHostAndPort(text)) << text;
  for (const char* text :
       {"", "tcp://", "tcp://node7", "tcp://node7:", "tcp://:7700",
        "tcp://node7:0", "tcp://node7:65536", "tcp://node7:7x",
        "tcp://node7:-7", "tcp://node 7:7700", "node7:7700", "udp://node7:7700",
        "ipc://@name:7", "shm://@name:7"})
    EXPECT_FALSE(HasHostAndPort(text)) << text;
}

}  // namespace slackline::endpoint_test
