// Goal: nothing that an endpoint does takes a caller of etcd longer than it
// may, or more memory; and what etcd does not answer is an error that names it.
// Method: servers that answer as no etcd does.
#include "server/coordinator/state/etcd_client.h"

#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/time/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/state/etcd_state_store.h"
#include "tests/net/fake_etcd.h"
#include "tests/support/must.h"
#include "tests/support/temp_folder.h"

namespace slackline::etcd_client_test {

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

// ---- Users ------------------------------------------------------------------

// What an etcd with one user answers: a token for its password, and an empty
// range for its last token.
class OneUser {
 public:
  explicit OneUser(const std::string& password) : password_(password) {}
  FakeEtcd::Serve Serves() {
    return [this](FakeEtcd& server, int connection) {
      std::string asked;
      while (!IsWhole(asked)) {
        if (!server.Receive(connection, 1000, &asked)) return;
      }
      server.Send(connection, AnswerTo(asked));
    };
  }
  // As `etcdctl user passwd`, which makes the token worth nothing, too.
  void SetPassword(const std::string& password) {
    const std::lock_guard lock(mutex_);
    password_ = password;
    token_.clear();
  }
  // Other users change, so often: now, and while tokens are given.
  void ChangeOthers(int times) {
    const std::lock_guard lock(mutex_);
    changes_ = times - 1;
    token_.clear();
  }

 private:
  static bool IsWhole(const std::string& asked) {
    const size_t end = asked.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    constexpr char kLength[] = "Content-Length: ";
    const size_t length = asked.find(kLength);
    size_t bytes = 0;
    if (length < end) {
      const size_t begin = length + sizeof(kLength) - 1;
      EXPECT_TRUE(absl::SimpleAtoi(
          asked.substr(begin, asked.find("\r\n", begin) - begin), &bytes));
    }
    return asked.size() >= end + 4 + bytes;
  }
  static std::string Answer(int status, const std::string& json) {
    return absl::StrCat("HTTP/1.1 ", status,
                        " OK\r\nConnection: close\r\nContent-Length: ",
                        json.size(), "\r\n\r\n", json);
  }
  std::string AnswerTo(const std::string& asked) {
    const std::lock_guard lock(mutex_);
    if (absl::StartsWith(asked, "POST /v3/auth/authenticate ")) {
      if (!absl::StrContains(
              asked, absl::StrCat("\"password\":\"", password_, "\""))) {
        return Answer(400,
                      "{\"code\": 3, \"message\": \"etcdserver: "
                      "authentication failed, invalid user ID or password\"}");
      }
      const std::string token = absl::StrCat("token.", ++tokens_);
      const bool stale = changes_ > 0;
      changes_ -= stale;
      token_ = stale ? "" : token;
      return Answer(200, absl::StrCat("{\"token\": \"", token, "\"}"));
    }
    if (!token_.empty() &&
        absl::StrContains(asked,
                          absl::StrCat("Authorization: ", token_, "\r\n"))) {
      return Answer(200, "{\"header\": {}}");
    }
    return Answer(401,
                  "{\"code\": 16, \"message\": \"etcdserver: invalid auth "
                  "token\"}");
  }

  std::mutex mutex_;
  std::string password_;
  std::string token_;  // Empty: none is any good.
  int changes_ = 0;
  int tokens_ = 0;
};

class EtcdPasswordTest : public ::testing::Test {
 protected:
  void Write(const std::string& password) {
    file_ = folder_.Write("password", password + "\n");
    ASSERT_EQ(chmod(file_.c_str(), 0600), 0);
  }
  std::unique_ptr<EtcdClient> Client() {
    return Must(EtcdClient::Create({.endpoints = {server_.url()},
                                    .user = "job",
                                    .password_file = file_,
                                    .timeout = absl::Seconds(4)}));
  }
  static absl::StatusCode CodeOf(EtcdClient& client) {
    return client.Get("a").status().code();
  }

  const TempFolder folder_{"etcd_password."};
  std::string file_;
  OneUser user_{"one"};
  FakeEtcd server_{user_.Serves()};
};

TEST_F(EtcdPasswordTest, TokensAreAskedForUntilOneIsTaken) {
  Write("one");
  const auto client = Client();
  Must(client->Get("a"));
  user_.ChangeOthers(4);
  Must(client->Get("a"));
}

TEST_F(EtcdPasswordTest, TheFileMayHaveTheNewOneFirst) {
  Write("one");
  const auto client = Client();
  Must(client->Get("a"));
  Write("two");
  user_.ChangeOthers(1);
  Must(client->Get("a"));
  user_.SetPassword("two");
  Must(client->Get("a"));
}

TEST_F(EtcdPasswordTest, EtcdMayHaveTheNewOneFirst) {
  Write("one");
  const auto client = Client();
  Must(client->Get("a"));
  user_.SetPassword("two");
  EXPECT_EQ(CodeOf(*client), absl::StatusCode::kUnavailable);
  Write("two");
  Must(client->Get("a"));
}

TEST_F(EtcdPasswordTest, AFileThatIsJustBeingWrittenIsNoEnd) {
  Write("one");
  const auto client = Client();
  ASSERT_EQ(chmod(file_.c_str(), 0644), 0);
  Must(client->Get("a"));  // With the one that was there before.
  ASSERT_EQ(unlink(file_.c_str()), 0);
  user_.ChangeOthers(1);
  Must(client->Get("a"));
  user_.SetPassword("two");
  EXPECT_EQ(CodeOf(*client), absl::StatusCode::kUnavailable);
  Write("two");
  Must(client->Get("a"));
}

TEST_F(EtcdPasswordTest, OneThatHasNeverWorkedIsRefusedAtOnce) {
  Write("two");
  EXPECT_EQ(CodeOf(*Client()), absl::StatusCode::kInvalidArgument);
}

}  // namespace slackline::etcd_client_test
