#include "common/net/zmq/key_check.h"

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/thread_name.h"

namespace slackline {
namespace {

// Where ZeroMQ asks.
constexpr char kEndpoint[] = "inproc://zeromq.zap.01";
// Of a request: version, its id, domain, address, routing id, mechanism, and
// what the mechanism has, of CURVE the peer's public key.
enum Frame { kVersion, kId, kDomain, kAddress, kRoutingId, kMechanism, kKey };

}  // namespace

absl::StatusOr<std::unique_ptr<KeyCheck>> KeyCheck::Start(
    zmq::context_t& context, std::shared_ptr<const LiveKeys> keys) {
  try {
    auto socket = std::make_unique<zmq::socket_t>(context, ZMQ_REP);
    socket->set(zmq::sockopt::linger, 0);
    socket->bind(kEndpoint);
    return std::unique_ptr<KeyCheck>(
        new KeyCheck(std::move(socket), std::move(keys)));
  } catch (const std::exception& error) {  // Also of a thread.
    return absl::UnavailableError(
        absl::StrCat("check the keys of peers: ", error.what()));
  }
}

KeyCheck::KeyCheck(std::unique_ptr<zmq::socket_t> socket,
                   std::shared_ptr<const LiveKeys> keys)
    : keys_(std::move(keys)), socket_(std::move(socket)) {
  // Signals are for other threads: an answer goes out as a whole.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread(&KeyCheck::Run, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

KeyCheck::~KeyCheck() { thread_.join(); }

KeyCheck::Refusals KeyCheck::RefusalsIn(const std::string& domain) const {
  const MutexLock lock(mutex_);
  const auto found = refusals_.find(domain);
  return found == refusals_.end() ? Refusals() : found->second;
}

std::string KeyCheck::UserIdOf(const User& user) {
  return absl::StrCat(RoleName(user.role), " ", user.generation);
}

bool KeyCheck::UserOf(absl::string_view user_id, User* user) {
  for (const Role role :
       {Role::kServer, Role::kWorker, Role::kOperator, Role::kReader}) {
    absl::string_view rest = user_id;
    if (!absl::ConsumePrefix(&rest, RoleName(role))) continue;
    user->role = role;
    return absl::ConsumePrefix(&rest, " ") &&
           absl::SimpleAtoi(rest, &user->generation);
  }
  return false;
}

void KeyCheck::Run() {
  NameThisThread("keys of peers");
  while (true) {
    try {
      Answer();
    } catch (const zmq::error_t& error) {
      if (error.num() == EINTR) continue;
      alive_.store(false, std::memory_order_release);
      if (error.num() != ETERM) {
        std::fprintf(stderr, "the check of keys has ended: %s\n", error.what());
      }
      break;
    }
  }
  socket_->close();
}

void KeyCheck::Answer() {
  std::vector<zmq::message_t> request;
  do {
    request.emplace_back();
    if (!socket_->recv(request.back())) return;
  } while (request.back().more());
  const std::shared_ptr<const LiveKeys::Held> held = keys_->Get();
  const std::map<PublicKey, Role>& admits = held->credentials.admits;
  std::optional<Role> role;
  if (request.size() == kKey + 1 &&
      request[kMechanism].to_string_view() == "CURVE" &&
      request[kKey].size() == Secret::kBytes) {
    PublicKey key;
    std::memcpy(key.data(), request[kKey].data(), key.size());
    const auto admitted = admits.find(key);
    if (admitted != admits.end()) role = admitted->second;
  }
  if (!role.has_value() && request.size() > kAddress) {
    const MutexLock lock(mutex_);
    Refusals& refused = refusals_[request[kDomain].to_string()];
    ++refused.count;
    refused.last = request[kAddress].to_string();
  }
  const std::string id =
      request.size() > kId ? request[kId].to_string() : std::string();
  const std::vector<std::string> reply = {
      "1.0",
      id,
      role.has_value() ? "200" : "400",
      role.has_value() ? "OK" : "no key of the job",
      role.has_value()
          ? UserIdOf({.role = *role, .generation = held->generation})
          : "",
      ""};
  for (size_t i = 0; i < reply.size(); ++i) {
    (void)socket_->send(zmq::buffer(reply[i]), i + 1 < reply.size()
                                                   ? zmq::send_flags::sndmore
                                                   : zmq::send_flags::none);
  }
}

}  // namespace slackline
