// Goal: a process connects to a shard thread in the best way that reaches it,
// and is told if the way that the config demands does not.
// Method: a server with all endpoints, and processes here and elsewhere.
#include "common/net/shard_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace slackline::shard_endpoint_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kUser = 1000;
constexpr char kTcp[] = "tcp://10.0.0.1:7";
constexpr char kIpc[] = "ipc://@a";
constexpr char kShm[] = "shm://@b";

wire::ServerMember Server(const std::vector<std::string>& endpoints = {
                              kTcp, kIpc, kShm}) {
  wire::ServerMember server;
  server.set_index(3);
  server.set_host_id("here");
  wire::Endpoints& thread = *server.add_thread();
  for (const std::string& endpoint : endpoints) thread.add_endpoint(endpoint);
  thread.set_uid(kUser);
  return server;
}

const LocalProcess kSame = {.host_id = "here", .uid = kUser};
const LocalProcess kOtherUser = {.host_id = "here", .uid = 0};
const LocalProcess kElsewhere = {.host_id = "there", .uid = kUser};

std::string Refusal(const wire::ServerMember& server, const LocalProcess& self,
                    config::Limits::Transport transport) {
  const auto endpoints = ShardEndpoints(server, 0, self, transport);
  EXPECT_EQ(endpoints.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(endpoints.status().message());
}

TEST(ShardEndpointTest, TheBestWayThatReachesIsFirst) {
  const wire::ServerMember server = Server();
  EXPECT_THAT(*ShardEndpoints(server, 0, kSame, config::Limits::AUTO),
              ElementsAre(kShm, kIpc, kTcp));
  EXPECT_THAT(*ShardEndpoints(server, 0, kOtherUser, config::Limits::AUTO),
              ElementsAre(kTcp));
  EXPECT_THAT(*ShardEndpoints(server, 0, kElsewhere, config::Limits::AUTO),
              ElementsAre(kTcp));
  EXPECT_THAT(
      *ShardEndpoints(Server({kTcp, kIpc}), 0, kSame, config::Limits::AUTO),
      ElementsAre(kIpc, kTcp));
}

TEST(ShardEndpointTest, TheWayOfTheConfigIsTheOnlyOne) {
  for (const LocalProcess& self : {kSame, kOtherUser, kElsewhere}) {
    EXPECT_THAT(*ShardEndpoints(Server(), 0, self, config::Limits::TCP),
                ElementsAre(kTcp));
  }
  EXPECT_THAT(*ShardEndpoints(Server(), 0, kSame, config::Limits::IPC),
              ElementsAre(kIpc));
  EXPECT_THAT(*ShardEndpoints(Server(), 0, kSame, config::Limits::SHM),
              ElementsAre(kShm));
}

TEST(ShardEndpointTest, OnlySharedMemoryIsNoSocket) {
  EXPECT_FALSE(IsBySocket(Server(), 0, kSame, config::Limits::AUTO));
  EXPECT_FALSE(IsBySocket(Server(), 0, kSame, config::Limits::SHM));
  EXPECT_TRUE(IsBySocket(Server(), 0, kSame, config::Limits::IPC));
  EXPECT_TRUE(IsBySocket(Server(), 0, kSame, config::Limits::TCP));
  EXPECT_TRUE(IsBySocket(Server(), 0, kElsewhere, config::Limits::AUTO));
  EXPECT_TRUE(IsBySocket(Server({kTcp, kIpc}), 0, kSame, config::Limits::AUTO));
}

TEST(ShardEndpointTest, AWayThatDoesNotReachIsSaid) {
  for (const auto transport : {config::Limits::IPC, config::Limits::SHM}) {
    EXPECT_THAT(Refusal(Server(), kElsewhere, transport),
                HasSubstr("server 3 is not on this host; use AUTO or TCP"));
    EXPECT_THAT(Refusal(Server(), kOtherUser, transport),
                HasSubstr("server 3 is of another user (uid 1000; this process "
                          "is of 0); use AUTO or TCP"));
    EXPECT_THAT(Refusal(Server({kTcp}), kSame, transport),
                HasSubstr("server 3 offers none"));
  }
}

// A way that a peer of another version has is left out.
TEST(ShardEndpointTest, WhatIsNotKnownIsNotTaken) {
  EXPECT_THAT(*ShardEndpoints(Server({"ucx://there", kTcp}), 0, kSame,
                              config::Limits::AUTO),
              ElementsAre(kTcp));
}

}  // namespace slackline::shard_endpoint_test
