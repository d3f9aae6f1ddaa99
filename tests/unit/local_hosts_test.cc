#include "tools/cli/members/local_hosts.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/net/resolve.h"
#include "common/net/zmq/zmq_transport.h"

namespace slackline::local_hosts_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

config::ClusterConfig ConfigWithHosts(const std::string& coordinator,
                                      const std::string& server,
                                      const std::string& worker) {
  config::ClusterConfig config;
  config.mutable_coordinator()->set_host(coordinator);
  config.add_server()->set_host(server);
  config.add_worker()->set_host(worker);
  return config;
}

// Whether this process may listen at the port the way others try to: without
// SO_REUSEADDR.
bool CanBindExclusively(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool ok =
      bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0;
  close(fd);
  return ok;
}

TEST(LocalHostsTest, LoopbackAndInterfaceAddressesAreOwn) {
  const std::vector<std::string> own = {"10.0.0.5"};
  EXPECT_TRUE(IsOwnAddress("127.0.0.1", own));
  EXPECT_TRUE(IsOwnAddress("127.3.2.1", own));
  EXPECT_TRUE(IsOwnAddress("10.0.0.5", own));
  EXPECT_FALSE(IsOwnAddress("10.0.0.6", own));
  EXPECT_FALSE(IsOwnAddress("12.7.0.1", own));
  EXPECT_TRUE(IsOwnAddress("::1", own));
  EXPECT_FALSE(IsOwnAddress("::2", own));
}

TEST(LocalHostsTest, ThisMachineHasTheLoopbackAddress) {
  EXPECT_THAT(OwnAddresses(), Contains("127.0.0.1"));
}

TEST(LocalHostsTest, HostsThatAreElsewhereAreNamedOnce) {
  EXPECT_THAT(
      HostsElsewhere(ConfigWithHosts("127.0.0.1", "localhost", "127.0.0.1")),
      IsEmpty());
  // 192.0.2.0/24 is for documentation (RFC 5737): no machine has it.
  EXPECT_THAT(
      HostsElsewhere(ConfigWithHosts("192.0.2.1", "127.0.0.1", "192.0.2.1")),
      ElementsAre("192.0.2.1"));
}

TEST(PortReservationTest, KeepsThePortFromOthers) {
  int port = 0;
  {
    const absl::StatusOr<PortReservation> reservation =
        PortReservation::AnyFree("127.0.0.1");
    ASSERT_TRUE(reservation.ok()) << reservation.status();
    port = reservation->port();
    EXPECT_GT(port, 0);
    EXPECT_FALSE(CanBindExclusively(port));
  }
  EXPECT_TRUE(CanBindExclusively(port));
}

TEST(PortReservationTest, TheServerForWhichItIsKeptCanListen) {
  const absl::StatusOr<PortReservation> reservation =
      PortReservation::AnyFree("127.0.0.1");
  ASSERT_TRUE(reservation.ok()) << reservation.status();
  const std::string endpoint =
      absl::StrCat("tcp://127.0.0.1:", reservation->port());
  ZmqTransport transport;
  auto router = transport.Listen({});
  ASSERT_TRUE(router.ok()) << router.status();
  const absl::StatusOr<std::string> bound = (*router)->Bind(endpoint);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(*bound, endpoint);
}

TEST(CheckPortFreeTest, ATakenPortIsNamed) {
  ZmqTransport transport;
  auto router = transport.Listen({});
  ASSERT_TRUE(router.ok()) << router.status();
  const absl::StatusOr<std::string> bound =
      (*router)->Bind("tcp://127.0.0.1:0");
  ASSERT_TRUE(bound.ok()) << bound.status();
  const int port = std::stoi(bound->substr(bound->rfind(':') + 1));
  const absl::Status taken = CheckPortFree("127.0.0.1", port);
  EXPECT_TRUE(absl::IsUnavailable(taken));
  EXPECT_THAT(std::string(taken.message()),
              HasSubstr(absl::StrCat("127.0.0.1:", port)));
}

}  // namespace slackline::local_hosts_test
