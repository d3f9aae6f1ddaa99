// KeyCheck: whose keys the listeners of a ZeroMQ context let in. ZeroMQ asks it
// of each new connection, by the ZAP protocol (rfc.zeromq.org/spec/27).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/keys/credentials.h"
#include "common/keys/key_holder.h"
#include "common/keys/live_keys.h"
#include "common/mutex.h"

namespace zmq {
class context_t;
class message_t;
class socket_t;
}  // namespace zmq

namespace slackline {

class KeyCheck {
 public:
  // Makes the one for a context, before its first listener binds. Fails with
  // what ZeroMQ says.
  static absl::StatusOr<std::unique_ptr<KeyCheck>> Start(
      zmq::context_t& context, std::shared_ptr<const LiveKeys> keys);
  // The context has been shut down before.
  ~KeyCheck();
  KeyCheck(const KeyCheck&) = delete;
  KeyCheck& operator=(const KeyCheck&) = delete;

  // Whether it answers. Any thread.
  bool alive() const { return alive_.load(std::memory_order_acquire); }

  // The refused connections to one listener, by the domain that it has said,
  // and the address of the last one. Any thread.
  struct Refusals {
    int64_t count = 0;
    std::string last = {};
  };
  Refusals RefusalsIn(const std::string& domain) const;

  // A peer has shown this holder's key, of this generation of keys.
  struct User {
    KeyHolder holder = Role::kReader;
    int64_t generation = 0;
  };
  // What a message of an admitted peer has as its "User-Id": "worker 0" of
  // generation 0, and "worker 0 3" if its key is that of worker 3.
  static std::string UserIdOf(const User& user);
  // False if it is no such text.
  static bool UserOf(absl::string_view user_id, User* user);

 private:
  KeyCheck(std::unique_ptr<zmq::socket_t> socket,
           std::shared_ptr<const LiveKeys> keys);
  void Run();

  void Answer();
  // Whose the key is that a request of ZeroMQ brings.
  std::optional<KeyHolder> HolderIn(const std::vector<zmq::message_t>& request,
                                    const LiveKeys::Held& held);

  const std::shared_ptr<const LiveKeys> keys_;
  std::atomic<bool> alive_{true};
  mutable Mutex mutex_;
  std::map<std::string, Refusals> refusals_ ABSL_GUARDED_BY(mutex_);
  // thread_ alone uses what follows.
  const std::unique_ptr<zmq::socket_t> socket_;
  std::optional<Admission> admission_;
  int64_t admission_generation_ = 0;  // The generation of its keys.
  std::thread thread_;
};

}  // namespace slackline
