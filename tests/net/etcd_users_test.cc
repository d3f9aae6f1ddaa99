// Goal: the state of a job is in an etcd with users as one of them, whose
// password can change meanwhile; and whoever is refused hears why, and what
// mends it, without the password.
// Method: a real etcd, in which users are made here; skipped aloud without it.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/state/etcd_client.h"
#include "server/coordinator/state/etcd_state_store.h"
#include "tests/support/etcd.h"
#include "tests/support/must.h"
#include "tests/support/temp_folder.h"

namespace slackline::etcd_users_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr char kPrefix[] = "/slackline/digits";

class EtcdUsersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string program = EtcdProgram();
    if (program.empty()) GTEST_SKIP() << kNoEtcd;
    etcd_.emplace(program);
    etcd_->Start();
    WritePassword("open-sesame");
  }
  // The user `job` has the keys below the prefix.
  void MakeUsers() {
    Call("auth/user/add", {{"name", "root"}, {"password", "root-password"}});
    Call("auth/role/add", {{"name", "root"}});
    Call("auth/user/grant", {{"user", "root"}, {"role", "root"}});
    Call("auth/user/add", {{"name", "job"}, {"password", "open-sesame"}});
    Call("auth/role/add", {{"name", "jobs"}});
    Call("auth/user/grant", {{"user", "job"}, {"role", "jobs"}});
    Call("auth/role/grant",
         {{"name", "jobs"},
          {"perm",
           {{"permType", "READWRITE"},
            {"key", absl::Base64Escape(absl::StrCat(kPrefix, "/"))},
            {"range_end", absl::Base64Escape(absl::StrCat(kPrefix, "0"))}}}});
    Call("auth/enable", Json::object());
  }
  // As etcdctl does.
  Json Call(const std::string& path, const Json& request,
            const std::string& token = "") {
    const std::string body = request.dump();
    const std::string text = absl::StrCat(
        "POST /v3/", path,
        " HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Type: "
        "application/json\r\n",
        token.empty() ? "" : absl::StrCat("Authorization: ", token, "\r\n"),
        "Content-Length: ", body.size(), "\r\n\r\n", body);
    const int connection = etcd_->Connect();
    EXPECT_EQ(send(connection, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    std::string answer;
    char bytes[4096];
    for (ssize_t count;
         (count = recv(connection, bytes, sizeof(bytes), 0)) > 0;)
      answer.append(bytes, static_cast<size_t>(count));
    close(connection);
    EXPECT_EQ(answer.find("HTTP/1.1 200"), 0) << path << ": " << answer;
    const size_t head = answer.find("\r\n\r\n");
    return Json::parse(answer.substr(head + 4), nullptr, false);
  }
  void WritePassword(const std::string& password) {
    password_file_ = folder_.Write("password", password + "\n");
    ASSERT_EQ(chmod(password_file_.c_str(), 0600), 0);
  }
  EtcdStateStore::Options Options() const {
    EtcdStateStore::Options options = {.etcd = etcd_->client(),
                                       .prefix = kPrefix,
                                       .endpoint = "tcp://127.0.0.1:4000",
                                       .lease = absl::Minutes(1)};
    options.etcd.user = "job";
    options.etcd.password_file = password_file_;
    options.etcd.prefix = kPrefix;
    return options;
  }
  // Of a state that cannot be kept.
  static std::string ErrorOf(const EtcdStateStore::Options& options) {
    const absl::Status status = EtcdStateStore::Create(options).status();
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(status.ToString(), AllOf(Not(HasSubstr("open-sesame")),
                                         Not(HasSubstr("wrong-one"))));
    return status.ToString();
  }

  const TempFolder folder_{"etcd_users."};
  std::string password_file_;
  std::optional<Etcd> etcd_;
};

TEST_F(EtcdUsersTest, AStateIsKeptAndFoundAlsoWithAnotherPassword) {
  MakeUsers();
  {
    const auto store = Must(EtcdStateStore::Create(Options()));
    Must(store->Commit({{.key = "view", .value = "7"}}));
    Must(store->KeepAlive());
    // Which makes the token worth nothing.
    const Json root = Call("auth/authenticate",
                           {{"name", "root"}, {"password", "root-password"}});
    Call("auth/user/changepw", {{"name", "job"}, {"password", "another"}},
         root.at("token"));
    WritePassword("another");
    Must(store->Commit({{.key = "view", .value = "8"}}));
    Must(store->KeepAlive());
  }
  EXPECT_EQ(Must(EtcdStateStore::Open(Options()))->state().at("view"), "8");
}

TEST_F(EtcdUsersTest, TheFileMayHaveTheNewPasswordFirst) {
  MakeUsers();
  const auto as_root = [&](const std::string& path, const Json& request) {
    const Json root = Call("auth/authenticate",
                           {{"name", "root"}, {"password", "root-password"}});
    Call(path, request, root.at("token"));
  };
  const auto store = Must(EtcdStateStore::Create(Options()));
  Must(store->KeepAlive());
  WritePassword("another");
  // Which makes all tokens worth nothing.
  as_root("auth/role/add", {{"name", "others"}});
  Must(store->Commit({{.key = "view", .value = "7"}}));
  Must(store->KeepAlive());
  as_root("auth/user/changepw", {{"name", "job"}, {"password", "another"}});
  Must(store->Commit({{.key = "view", .value = "8"}}));
  Must(store->KeepAlive());
}

TEST_F(EtcdUsersTest, AWrongPasswordIsNamedByItsFile) {
  MakeUsers();
  WritePassword("wrong-one");
  EXPECT_THAT(ErrorOf(Options()),
              AllOf(HasSubstr("no user 'job', or that has another password"),
                    HasSubstr(password_file_)));
}

TEST_F(EtcdUsersTest, WhoMayNotWriteThereIsToldWhatToGrant) {
  MakeUsers();
  EtcdStateStore::Options options = Options();
  options.prefix = options.etcd.prefix = "/slackline/others";
  EXPECT_THAT(ErrorOf(options),
              AllOf(HasSubstr("user 'job' has to be allowed"),
                    HasSubstr("grant-permission ROLE --prefix readwrite "
                              "/slackline/others/")));
}

TEST_F(EtcdUsersTest, WhoIsNobodyIsToldToBeSomebody) {
  MakeUsers();
  EtcdStateStore::Options options = Options();
  options.etcd.user = options.etcd.password_file = "";
  EXPECT_THAT(ErrorOf(options),
              HasSubstr("this etcd has users: name the job's with coordinator "
                        "{ etcd { user, password_file } }"));
}

TEST_F(EtcdUsersTest, AnEtcdWithoutUsersTakesNone) {
  EXPECT_THAT(ErrorOf(Options()), HasSubstr("this etcd has no users"));
}

TEST_F(EtcdUsersTest, AFileThatOthersCanReadIsRefused) {
  MakeUsers();
  ASSERT_EQ(chmod(password_file_.c_str(), 0644), 0);
  EXPECT_THAT(ErrorOf(Options()),
              AllOf(HasSubstr("password_file"), HasSubstr("mode is 644"),
                    HasSubstr(absl::StrCat("chmod 600 ", password_file_)),
                    HasSubstr("etcdctl user passwd")));
}

TEST_F(EtcdUsersTest, AFileWithoutAPasswordIsRefused) {
  MakeUsers();
  for (const char* const text : {"", "two\nlines", "a\tb"}) {
    WritePassword(text);
    EXPECT_THAT(ErrorOf(Options()), HasSubstr("a password in one line"));
  }
  EtcdStateStore::Options options = Options();
  options.etcd.password_file = folder_.File("nothing");
  EXPECT_THAT(ErrorOf(options), HasSubstr("each server reads that file"));
}

}  // namespace slackline::etcd_users_test
