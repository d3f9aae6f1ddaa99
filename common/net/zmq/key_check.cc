#include "common/net/zmq/key_check.h"

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <zmq.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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
  std::string id =
      absl::StrCat(RoleName(user.holder.role), " ", user.generation);
  if (user.holder.rank.has_value())
    absl::StrAppend(&id, " ", static_cast<int32_t>(*user.holder.rank));
  return id;
}

bool KeyCheck::UserOf(absl::string_view user_id, User* user) {
  const std::vector<absl::string_view> words = absl::StrSplit(user_id, ' ');
  if (words.size() < 2 || words.size() > 3) return false;
  for (const Role role :
       {Role::kServer, Role::kWorker, Role::kOperator, Role::kReader}) {
    if (words[0] != RoleName(role)) continue;
    user->holder = role;
    int32_t rank = 0;
    if (words.size() == 3) {
      if (!absl::SimpleAtoi(words[2], &rank)) return false;
      user->holder.rank = Rank{rank};
    }
    return absl::SimpleAtoi(words[1], &user->generation);
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

std::optional<KeyHolder> KeyCheck::HolderIn(
    const std::vector<zmq::message_t>& request, const LiveKeys::Held& held) {
  if (request.size() != kKey + 1 ||
      request[kMechanism].to_string_view() != "CURVE" ||
      request[kKey].size() != Secret::kBytes) {
    return std::nullopt;
  }
  if (!admission_.has_value() || admission_generation_ != held.generation) {
    admission_.emplace(held.credentials);
    admission_generation_ = held.generation;
  }
  PublicKey key;
  std::memcpy(key.data(), request[kKey].data(), key.size());
  return admission_->HolderOf(key);
}

void KeyCheck::Answer() {
  std::vector<zmq::message_t> request;
  do {
    request.emplace_back();
    if (!socket_->recv(request.back())) return;
  } while (request.back().more());
  const std::shared_ptr<const LiveKeys::Held> held = keys_->Get();
  const std::optional<KeyHolder> holder = HolderIn(request, *held);
  if (!holder.has_value() && request.size() > kAddress) {
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
      holder.has_value() ? "200" : "400",
      holder.has_value() ? "OK" : "no key of the job",
      holder.has_value()
          ? UserIdOf({.holder = *holder, .generation = held->generation})
          : "",
      ""};
  for (size_t i = 0; i < reply.size(); ++i) {
    (void)socket_->send(zmq::buffer(reply[i]), i + 1 < reply.size()
                                                   ? zmq::send_flags::sndmore
                                                   : zmq::send_flags::none);
  }
}

}  // namespace slackline
