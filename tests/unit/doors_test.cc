#include "tools/cli/doctor/doors.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::doors_test {

using ::testing::HasSubstr;

doctor::Open DoorAt(int port) {
  doctor::Open open;
  doctor::Door& door = *open.add_door();
  door.set_label("server 0");
  door.set_host("127.0.0.1");
  door.set_port(port);
  return open;
}

doctor::Connection TryPort(int port, bool transfer = false) {
  doctor::Try targets;
  doctor::Try::Target& target = *targets.add_target();
  target.set_host("127.0.0.1");
  target.set_port(port);
  target.set_label("server 0");
  target.set_transfer(transfer);
  return TryDoors(targets).connection(0);
}

TEST(DoorsTest, AnOpenDoorAnswersAndIsMeasured) {
  const Doors doors(DoorAt(0));
  const doctor::Opened::State& state = doors.opened().door(0);
  EXPECT_EQ(state.error(), "");
  EXPECT_EQ(state.address(), "127.0.0.1");
  const doctor::Connection connection = TryPort(state.port(), true);
  EXPECT_EQ(connection.state(), doctor::Connection::OPEN);
  EXPECT_EQ(connection.label(), "server 0");
  EXPECT_GT(connection.round_trip_us(), 0);
  EXPECT_GT(connection.bytes(), 100'000);
  EXPECT_GT(connection.micros(), 0);
}

TEST(DoorsTest, ADoorIsFreeOnceItIsClosed) {
  int port = 0;
  {
    const Doors doors(DoorAt(0));
    port = doors.opened().door(0).port();
    EXPECT_EQ(TryPort(port).state(), doctor::Connection::OPEN);
    const Doors second(DoorAt(port));
    EXPECT_TRUE(second.opened().door(0).taken());
    EXPECT_THAT(second.opened().door(0).error(), HasSubstr("in use"));
  }
  EXPECT_EQ(TryPort(port).state(), doctor::Connection::REFUSED);
  const Doors again(DoorAt(port));
  EXPECT_EQ(again.opened().door(0).error(), "");
}

TEST(DoorsTest, AnotherProgramIsNoDoor) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  ASSERT_EQ(bind(listener, address, size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, address, &size), 0);
  std::thread other([listener] {
    const int peer = accept(listener, nullptr, nullptr);
    send(peer, "SSH-2.0-OpenSSH_9.2p1 and more than that\n", 41, MSG_NOSIGNAL);
    char byte = 0;
    recv(peer, &byte, 1, 0);
    close(peer);
  });
  EXPECT_EQ(TryPort(ntohs(at.sin_port)).state(), doctor::Connection::STRANGER);
  other.join();
  close(listener);
}

// Whoever does not know the line is sent away.
TEST(DoorsTest, AStrangerGetsNoAnswer) {
  const Doors doors(DoorAt(0));
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(doors.opened().door(0).port()));
  ASSERT_EQ(connect(stranger, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_EQ(send(stranger, "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL), 16);
  char byte = 0;
  EXPECT_LE(recv(stranger, &byte, 1, 0), 0);
  close(stranger);
}

}  // namespace slackline::doors_test
