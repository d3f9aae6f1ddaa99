// KeyCheck: whose keys the listeners of a ZeroMQ context let in. ZeroMQ asks it
// of each new connection, by the ZAP protocol (rfc.zeromq.org/spec/27).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/keys/credentials.h"
#include "common/keys/role.h"

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
      zmq::context_t& context, const std::map<PublicKey, Role>& admits);
  // The context has been shut down.
  ~KeyCheck();
  KeyCheck(const KeyCheck&) = delete;
  KeyCheck& operator=(const KeyCheck&) = delete;

  // What a message of an admitted peer has as its "User-Id".
  static std::string UserIdOf(Role role);
  // False if it is no such text.
  static bool RoleOf(absl::string_view user_id, Role* role);

 private:
  KeyCheck(std::unique_ptr<zmq::socket_t> socket,
           const std::map<PublicKey, Role>& admits);
  void Run();

  const std::map<PublicKey, Role> admits_;
  const std::unique_ptr<zmq::socket_t> socket_;  // Of thread_.
  std::thread thread_;
};

}  // namespace slackline
