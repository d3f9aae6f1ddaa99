// Goal: nothing that an endpoint does takes a caller of etcd longer than it
// may, or more memory; and what etcd does not answer is an error that names it.
// Method: servers that answer as no etcd does.
#include "server/coordinator/state/etcd_client.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/time/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/state/etcd_state_store.h"
#include "tests/net/fake_etcd.h"
#include "tests/support/must.h"

namespace slackline {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

FakeEtcd::Serve IsSilent() {
  return [](FakeEtcd& server, int connection) {
    for (std::string asked; server.Receive(connection, 10, &asked);) {
    }
  };
}

FakeEtcd::Serve Answers(const std::string& bytes) {
  return [bytes](FakeEtcd& server, int connection) {
    std::string asked;
    if (server.Receive(connection, 1000, &asked))
      server.Send(connection, bytes);
  };
}

FakeEtcd::Serve AnswersJson(const std::string& json, int status = 200) {
  return Answers(absl::StrCat("HTTP/1.1 ", status, " OK\r\nContent-Length: ",
                              json.size(), "\r\n\r\n", json));
}

FakeEtcd::Serve Repeats(const std::string& begin, const std::string& bytes,
                        int every_ms = 0) {
  return [=](FakeEtcd& server, int connection) {
    if (!server.Send(connection, begin)) return;
    std::string asked;
    while (server.Send(connection, bytes) &&
           (every_ms == 0 || server.Receive(connection, every_ms, &asked))) {
    }
  };
}

TEST(EtcdClientTest, WhatIsNoEtcdEndsInAnErrorInTime) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const std::vector<std::pair<std::string, FakeEtcd::Serve>> servers = {
      {"ends the connection", [](FakeEtcd&, int) {}},
      {"is silent", IsSilent()},
      {"no HTTP", Answers("SSH-2.0-OpenSSH_9.2\r\n")},
      {"bytes without end", Repeats("", std::string(10000, 'x'))},
      {"headers without end", Repeats(ok, "A: b\r\n")},
      {"a header without end", Repeats(ok + "A: ", std::string(10000, 'x'))},
      {"a body without end", Repeats(ok + "\r\n", std::string(100000, 'x'))},
      {"chunks without end",
       Repeats(ok + "Transfer-Encoding: chunked\r\n\r\n", "4\r\nabcd\r\n")},
      {"continues without end", Repeats("", "HTTP/1.1 100 Continue\r\n\r\n")},
      {"headers that drip", Repeats(ok, "A", 20)},
      {"a body that drips", Repeats(ok + "\r\n", "{", 20)},
      {"a long body is promised",
       Answers(ok + "Content-Length: 99999999999999999\r\n\r\n{}")},
      {"a body is cut off",
       Answers(ok + "Content-Length: 100\r\n\r\n{\"header\":")},
      {"leads elsewhere",
       Answers("HTTP/1.1 302 Found\r\nLocation: "
               "http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")},
      {"a page", AnswersJson("<html>Bad Gateway</html>", 502)},
      {"no object", AnswersJson("[1, 2]")},
      {"nested deeply", AnswersJson(std::string(1000000, '['))},
      {"nothing in it", AnswersJson("{}")},
      {"other types", AnswersJson("{\"kvs\": 1}")},
      {"entries of other types", AnswersJson("{\"kvs\": [1, {\"key\": {}}]}")},
      {"no base 64", AnswersJson("{\"kvs\": [{\"key\": \"*\"}]}")},
      {"no numbers", AnswersJson("{\"kvs\": [{\"lease\": \"1e9\"}]}")},
      {"an error of no type",
       AnswersJson("{\"error\": [], \"code\": \"x\"}", 500)},
      {"an error",
       AnswersJson("{\"error\": \"no\", \"message\": \"no\", \"code\": 3}",
                   400)},
      {"a lease that is none", AnswersJson("{\"ID\": \"-\", \"TTL\": {}}")},
  };
  const TimeSource time;
  for (const auto& [name, serve] : servers) {
    SCOPED_TRACE(name);
    FakeEtcd server(serve);
    const absl::Time begin = time.Now();
    const absl::Status status =
        EtcdStateStore::Create({.etcd = {.endpoints = {server.url()},
                                         .timeout = absl::Milliseconds(400)},
                                .prefix = "/slackline/digits",
                                .endpoint = "tcp://127.0.0.1:4000",
                                .lease = absl::Seconds(1),
                                .wait_max = absl::ZeroDuration()})
            .status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.ToString(), AnyOf(HasSubstr(server.url()),
                                         HasSubstr("etcd's answer to /v3/")));
    EXPECT_LT(status.ToString().size(), 1000u);
    EXPECT_LT(time.Now() - begin, absl::Seconds(10)) << status;
  }
}

TEST(EtcdClientTest, AnEndpointHasToBeOne) {
  for (const std::vector<std::string>& endpoints : {std::vector<std::string>{},
                                                    {"127.0.0.1:2379"},
                                                    {"file:///etc/passwd"}}) {
    EXPECT_EQ(EtcdClient::Create({.endpoints = endpoints}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(EtcdClientTest, AnEndpointThatIsSilentLeavesTheOthersTheirTime) {
  FakeEtcd silent(IsSilent());
  FakeEtcd answers(AnswersJson("{\"header\": {}}"));
  const auto client = Must(EtcdClient::Create(
      {.endpoints = {silent.url(), "http://127.0.0.1:1", answers.url()},
       .timeout = absl::Seconds(4)}));
  EXPECT_FALSE(Must(client->Get("a")).has_value());
}

}  // namespace
}  // namespace slackline
