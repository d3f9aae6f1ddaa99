// EtcdClient: calls of etcd (3.4 or later) through its JSON gateway.
// https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/
//
// By https, where etcd has to have a certificate that one of `ca` has signed,
// for the host of the endpoint; or by http, where nothing is proved. Of an etcd
// with users, as one of these: the token that its password brings goes with
// each call, and another one is asked for when etcd does not know that one any
// more.
//
// What comes from the socket is bounded: an answer in bytes, and a call in
// time, however slowly or wrongly it is answered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/time/time_source.h"

namespace slackline {

// Thread-compatible. Of errors that a call ends with, Unavailable says that no
// endpoint has answered as etcd does within the timeout, and what the last one
// did; nobody knows then whether etcd has done it. All others are etcd's own.
class EtcdClient {
 public:
  struct Options {
    // "https://host:port" or "http://host:port", of one cluster. At least one.
    std::vector<std::string> endpoints;
    // Files (PEM). With https: certificates of those who may have signed
    // etcd's; required. What this client shows if etcd asks for it; both, or
    // none.
    std::string ca = {};
    std::string certificate = {};
    std::string private_key = {};
    // A user of etcd; empty: it has no users. The password is in a file, which
    // nobody else may read, and is read again whenever a token is asked for.
    // After Create() a file that cannot be read is Unavailable, and so is a
    // password that etcd refuses once one has worked; the last one that has
    // worked is tried, too. Somebody may just be changing it, in the file or in
    // etcd first.
    std::string user = {};
    std::string password_file = {};
    std::string prefix = {};  // Of the keys that are used, for errors.
    // For one call with all of its tries: a call that is not answered is tried
    // again, at the next endpoint.
    absl::Duration timeout = absl::Seconds(10);
  };
  // An answer is no longer.
  static constexpr size_t kAnswerBytesMax = size_t{8} << 20;

  // InvalidArgument names what is wrong with an endpoint, FailedPrecondition
  // the file that cannot be read, or that others can.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Create(
      const Options& options);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  struct Entry {
    std::string key;
    std::string value;
    int64_t create_revision = 0;
    int64_t mod_revision = 0;
    int64_t lease = 0;  // 0: none.
  };
  // The entries in [begin, end), or of the key `begin` if `end` is empty, by
  // key; the first `count_max` of them.
  absl::StatusOr<std::vector<Entry>> Range(const std::string& begin,
                                           const std::string& end,
                                           int64_t count_max);
  absl::StatusOr<std::optional<Entry>> Get(const std::string& key);

  // Makes all of the changes if all of the revisions are these, else none. A
  // try whose answer is lost may have made them, and another one then sees
  // others.
  struct Transaction {
    struct Revision {
      std::string key;
      const char* target;    // "CREATE" or "MOD".
      int64_t revision = 0;  // 0: the key is not there.
    };
    struct Put {
      std::string key;
      std::string value;
      int64_t lease = 0;
    };
    struct Removal {
      std::string begin;
      std::string end;
    };
    std::vector<Revision> if_all;
    std::vector<Put> puts;
    std::vector<Removal> removals;  // They hold none of the keys put.
    std::vector<std::string> else_get;
  };
  struct TransactionResult {
    bool made = false;
    int64_t revision = 0;  // Of the changes.
    // What is there of else_get, if not made.
    std::vector<std::optional<Entry>> found;
  };
  absl::StatusOr<TransactionResult> Transact(const Transaction& transaction);

  struct Lease {
    int64_t id = 0;
    absl::Duration ttl;  // At least what was asked for.
  };
  absl::StatusOr<Lease> GrantLease(absl::Duration ttl);
  // False: the lease is over.
  absl::StatusOr<bool> KeepAlive(int64_t lease);
  // The keys with the lease go at once.
  absl::Status Revoke(int64_t lease);

 private:
  struct Connection;
  EtcdClient(Options options, std::string password,
             std::unique_ptr<Connection> connection);
  // Tries until an endpoint has answered with a JSON object or the timeout is
  // over.
  absl::StatusOr<nlohmann::json> Call(absl::string_view path,
                                      const nlohmann::json& request);
  // Tries at one endpoint; with a token, if there is a user. `wait_max` is for
  // both, asking for a token and the call.
  absl::StatusOr<nlohmann::json> TryAsUser(const std::string& endpoint,
                                           absl::string_view path,
                                           const std::string& body,
                                           absl::Duration wait_max);
  absl::StatusOr<nlohmann::json> Try(const std::string& url,
                                     const std::string& body,
                                     absl::Duration wait_max);
  // Asks for a token with the password of the file, else with the last one that
  // has worked.
  absl::Status Authenticate(const std::string& endpoint, absl::Time give_up);
  absl::Status AskToken(const std::string& endpoint,
                        const std::string& password, absl::Time give_up);
  // Says once that the password in the file does not work, and why.
  void WarnOfPassword(const absl::Status& error);
  void SetToken(const std::string& token);
  // An error of etcd's about users, with what mends it.
  absl::Status Explained(const absl::Status& error) const;

  const Options options_;
  const TimeSource time_;
  const std::unique_ptr<Connection> connection_;
  size_t endpoint_ = 0;  // The one that is tried next.
  std::string token_;    // Of the user; empty: to be asked for.
  // The last one that has worked; while none has, that of Create().
  std::string password_;
  bool password_worked_ = false;
  bool warned_ = false;  // It was said that the one in the file does not work.
};

}  // namespace slackline
