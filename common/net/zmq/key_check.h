// KeyCheck: whose keys the listeners of a ZeroMQ context let in. ZeroMQ asks it
// of each new connection, by the ZAP protocol (rfc.zeromq.org/spec/27).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/keys/live_keys.h"
#include "common/keys/role.h"
#include "common/mutex.h"

namespace zmq {
class context_t;
class socket_t;
}  // namespace zmq

namespace slackline {

class KeyCheck {
 public:
  // One for each context, before its first listener binds. Fails with what
  // ZeroMQ says.
  static absl::StatusOr<std::unique_ptr<KeyCheck>> Start(
      zmq::context_t& context, std::shared_ptr<const LiveKeys> keys);
  // The context has been shut down.
  ~KeyCheck();
  KeyCheck(const KeyCheck&) = delete;
  KeyCheck& operator=(const KeyCheck&) = delete;

  // Whether it answers. Any thread.
  bool alive() const { return alive_.load(std::memory_order_acquire); }

  // Those that were refused of the connections to one listener, by the domain
  // that it has said, and the address of the last one. Any thread.
  struct Refusals {
    int64_t count = 0;
    std::string last = {};
  };
  Refusals RefusalsIn(const std::string& domain) const;

  // A peer has shown the key of this role, of this generation of keys.
  struct User {
    Role role = Role::kReader;
    int64_t generation = 0;
  };
  // What a message of an admitted peer has as its "User-Id": "worker 0".
  static std::string UserIdOf(const User& user);
  // False if it is no such text.
  static bool UserOf(absl::string_view user_id, User* user);

 private:
  KeyCheck(std::unique_ptr<zmq::socket_t> socket,
           std::shared_ptr<const LiveKeys> keys);
  void Run();

  void Answer();

  const std::shared_ptr<const LiveKeys> keys_;
  std::atomic<bool> alive_{true};
  mutable Mutex mutex_;
  std::map<std::string, Refusals> refusals_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<zmq::socket_t> socket_;  // Of thread_.
  std::thread thread_;
};

}  // namespace slackline
