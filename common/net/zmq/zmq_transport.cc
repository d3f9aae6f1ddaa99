#include "common/net/zmq/zmq_transport.h"

#include <unistd.h>

#include <cerrno>
#include <random>
#include <tuple>
#include <utility>
#include <zmq.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/host_port.h"
#include "common/net/host_id.h"
#include "common/net/zmq/key_check.h"
#include "common/net/zmq/zmq_channel.h"
#include "common/net/zmq/zmq_listener.h"
#include "common/net/zmq/zmq_socket.h"
#include "common/status.h"

namespace slackline {
namespace {

// As many as ZeroMQ allows.
constexpr int kSocketsMax = 65535;

uint64_t RandomNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

ZmqTransport::ZmqTransport(const Options& options)
    : process_(getpid()),
      keys_(options.keys),
      context_(std::make_unique<zmq::context_t>(options.io_threads)),
      token_(RandomNumber()) {
  // By default a process has 1023, and a shard thread takes a few.
  context_->set(zmq::ctxopt::max_sockets, kSocketsMax);
}

ZmqTransport::~ZmqTransport() {
  // Threads do not go along to a child: nobody would answer.
  if (getpid() != process_) {
    (void)key_check_.release();
    (void)context_.release();
    return;
  }
  // Ends the thread of the key check, which the context would wait for.
  context_->shutdown();
}

absl::Status CheckCurve() {
  int major = 0;
  int minor = 0;
  int patch = 0;
  zmq_version(&major, &minor, &patch);
  // Before 4.3.2 what an unauthenticated peer sends can overrun the stack
  // (CVE-2019-13132).
  if (zmq_has("curve") == 1 &&
      std::make_tuple(major, minor, patch) >= std::make_tuple(4, 3, 2)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "libzmq ", major, ".", minor, ".", patch,
      zmq_has("curve") == 1 ? "" : ", built without libsodium,",
      " cannot encrypt: 4.3.2 or newer with CURVE is needed, as distributions "
      "have it; insecure: true does without"));
}

absl::StatusOr<const KeyCheck*> ZmqTransport::BeginKeyCheck() {
  if (keys_ == nullptr) return nullptr;
  SL_RETURN_IF_ERROR(CheckCurve());
  const MutexLock lock(key_check_mutex_);
  if (key_check_ == nullptr) {
    SL_ASSIGN_OR_RETURN(key_check_, KeyCheck::Start(*context_, keys_));
  }
  return key_check_.get();
}

std::string ZmqTransport::UniqueSuffix() {
  // With the text of a PeerId short enough that ZeroMQ keeps a routing id, up
  // to 33 bytes, in place.
  return absl::StrFormat("%012x.%x", token_ & 0xffffffffffff,
                         next_number_.fetch_add(1));
}

absl::StatusOr<std::unique_ptr<Listener>> ZmqTransport::Listen(
    const ChannelOptions& options) {
  SL_RETURN_IF_ERROR(CheckChannelOptions(options));
  SL_ASSIGN_OR_RETURN(const KeyCheck* const key_check, BeginKeyCheck());
  try {
    return std::make_unique<ZmqListener>(*context_, UniqueSuffix(), keys_,
                                         key_check, options);
  } catch (const zmq::error_t& error) {
    return CallFailed("create a ROUTER socket",
                      error.num() == EMFILE ? kFilesHint : "", error);
  }
}

absl::StatusOr<std::unique_ptr<Channel>> ZmqTransport::Connect(
    const PeerId& self, const std::string& endpoint,
    const ChannelOptions& options) {
  SL_RETURN_IF_ERROR(CheckChannelOptions(options));
  if (keys_ != nullptr) SL_RETURN_IF_ERROR(CheckCurve());
  const std::string suffix = UniqueSuffix();
  try {
    return std::make_unique<ZmqChannel>(
        *context_,
        absl::StrCat(self.ToString(), std::string(1, kSuffixMark), suffix),
        absl::StrCat("inproc://link-", suffix), endpoint, keys_, options);
  } catch (const zmq::error_t& error) {
    return CallFailed(absl::StrCat("connect to ", endpoint),
                      ConnectHint(error.num()), error);
  }
}

std::vector<std::string> ZmqTransport::EndpointsAt(const Place& place) {
  return {TcpEndpoint(place.host, place.port), UniqueIpcEndpoint()};
}

}  // namespace slackline
