#include "common/net/zmq/key_check.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// Where ZeroMQ asks.
constexpr char kEndpoint[] = "inproc://zeromq.zap.01";
// Of a request: version, its id, domain, address, routing id, mechanism, and
// what the mechanism has, of CURVE the peer's public key.
enum Frame { kVersion, kId, kDomain, kAddress, kRoutingId, kMechanism, kKey };

}  // namespace

absl::StatusOr<std::unique_ptr<KeyCheck>> KeyCheck::Start(
    zmq::context_t& context, const std::map<PublicKey, Role>& admits) {
  try {
    auto socket = std::make_unique<zmq::socket_t>(context, ZMQ_REP);
    socket->set(zmq::sockopt::linger, 0);
    socket->bind(kEndpoint);
    return std::unique_ptr<KeyCheck>(new KeyCheck(std::move(socket), admits));
  } catch (const zmq::error_t& error) {
    return absl::UnavailableError(
        absl::StrCat("check the keys of peers: ", error.what()));
  }
}

KeyCheck::KeyCheck(std::unique_ptr<zmq::socket_t> socket,
                   const std::map<PublicKey, Role>& admits)
    : admits_(admits),
      socket_(std::move(socket)),
      thread_(&KeyCheck::Run, this) {}

KeyCheck::~KeyCheck() { thread_.join(); }

std::string KeyCheck::UserIdOf(Role role) { return RoleName(role); }

bool KeyCheck::RoleOf(absl::string_view user_id, Role* role) {
  for (const Role of :
       {Role::kServer, Role::kWorker, Role::kOperator, Role::kReader}) {
    if (user_id != RoleName(of)) continue;
    *role = of;
    return true;
  }
  return false;
}

void KeyCheck::Run() {
  while (true) {
    std::vector<zmq::message_t> request;
    try {
      do {
        request.emplace_back();
        if (!socket_->recv(request.back())) return;
      } while (request.back().more());
      std::optional<Role> role;
      if (request.size() == kKey + 1 &&
          request[kMechanism].to_string_view() == "CURVE" &&
          request[kKey].size() == Secret::kBytes) {
        PublicKey key;
        std::memcpy(key.data(), request[kKey].data(), key.size());
        const auto admitted = admits_.find(key);
        if (admitted != admits_.end()) role = admitted->second;
      }
      const std::string user =
          role.has_value() ? UserIdOf(*role) : std::string();
      std::vector<zmq::const_buffer> reply = {
          zmq::str_buffer("1.0"),
          request.size() > kId ? zmq::const_buffer(request[kId].data(),
                                                   request[kId].size())
                               : zmq::const_buffer(),
          role.has_value() ? zmq::str_buffer("200") : zmq::str_buffer("400"),
          role.has_value() ? zmq::str_buffer("OK")
                           : zmq::str_buffer("no key of the job"),
          zmq::buffer(user),
          zmq::const_buffer()};
      for (size_t i = 0; i < reply.size(); ++i) {
        (void)socket_->send(reply[i], i + 1 < reply.size()
                                          ? zmq::send_flags::sndmore
                                          : zmq::send_flags::none);
      }
    } catch (const zmq::error_t& error) {
      // ETERM: the context has been shut down.
      if (error.num() != EINTR) break;
    }
  }
  socket_->close();
}

}  // namespace slackline
