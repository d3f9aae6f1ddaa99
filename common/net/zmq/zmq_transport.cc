#include "common/net/zmq/zmq_transport.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/keys/authority.h"
#include "common/metrics/refusals.h"
#include "common/net/header_codec.h"
#include "common/net/payload_frames.h"
#include "common/net/zmq/key_check.h"
#include "common/net/zmq/tcp_peers.h"
#include "common/status.h"

namespace slackline {
namespace {

// A message in a row of this many malformed ones is left for the next call.
constexpr int kMalformedPerCall = 64;
// Of a routing id, beyond the text of the PeerId. ZeroMQ allows 255 bytes.
constexpr char kSuffixMark = '#';
constexpr size_t kSuffixMax = 64;
// A payload keeps no more alive of the frame that it shares than so many times
// its own bytes, else it is copied: whoever holds it counts its own.
constexpr size_t kKeptTimesMax = 16;
// In which a connection has to have shown its key, so that those that say
// nothing do not hold descriptors.
constexpr absl::Duration kHandshakeMax = absl::Seconds(10);
// Who ends a connection sooner does not do so because he heard nothing.
constexpr absl::Duration kDroppedAtOnce = absl::Seconds(5);
// How long a listener tries to get its place back, when it binds anew.
constexpr absl::Duration kBindAgainMax = absl::Seconds(2);
// A thread that waits sees within this time that its keys were exchanged.
constexpr absl::Duration kLookAtKeysEvery = absl::Seconds(1);
// So long after an exchange of keys, who still says something on a connection
// of before is on his way to the new ones.
constexpr absl::Duration kLateMax = absl::Seconds(10);
constexpr char kWithin[] = "inproc://";
// As many as ZeroMQ allows.
constexpr int kSocketsMax = 65535;

// How long a thread may wait that has to see when its keys are exchanged.
absl::Duration NextLookAt(const LiveKeys& keys) {
  const absl::Time next = keys.NextFrom();
  if (next == absl::InfiniteFuture()) return kLookAtKeysEvery;
  return std::clamp(next - absl::Now(), absl::Milliseconds(1),
                    kLookAtKeysEvery);
}

absl::Time MonotonicNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

uint64_t RandomNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// False if it is none of ours: also for other spellings of a PeerId, such as
// leading zeros.
bool ParseRoutingId(const std::string& routing_id, PeerId* peer) {
  const size_t mark = routing_id.find(kSuffixMark);
  const std::string text = routing_id.substr(0, mark);
  if (mark != std::string::npos) {
    const size_t suffix = routing_id.size() - mark - 1;
    if (suffix < 1 || suffix > kSuffixMax) return false;
  }
  return PeerId::FromString(text, peer) && peer->ToString() == text;
}

absl::Status CallFailed(const std::string& call, const std::string& hint,
                        const zmq::error_t& error) {
  return absl::UnavailableError(
      absl::StrCat(call, ": ", error.what(), hint.empty() ? "" : "; ", hint));
}

constexpr char kFilesHint[] =
    "the process has as many files and sockets open as it may; raise the hard "
    "limit (ulimit -Hn, or LimitNOFILE= of its service), or start fewer shard "
    "threads per process";

std::string BindHint(int error) {
  switch (error) {
    case EADDRINUSE:
      return "another job or program holds the port; set coordinator { port: "
             "... } (or server { port: ... }) to a free one, or end it";
    case EADDRNOTAVAIL:
    case ENODEV:
      return "the address is not one of this host; give a numeric address or "
             "an "
             "interface of it as host";
    case EMFILE:
      return kFilesHint;
    case EACCES:
      return "ports below 1024 need privileges; choose a larger one";
    case ENAMETOOLONG:
      return "an ipc name may have at most 106 characters";
    case EINVAL:
    case EPROTONOSUPPORT:
      return "an endpoint is tcp://address:port, ipc://@name or inproc://name";
    default:
      return "";
  }
}

std::string ConnectHint(int error) {
  switch (error) {
    case EMFILE:
      return kFilesHint;
    case EINVAL:
    case EPROTONOSUPPORT:
      return "an endpoint is tcp://host:port, ipc://@name or inproc://name";
    default:
      return "";
  }
}

// ZeroMQ knows IPv6 addresses only where it is told to; and then it prefers
// those of a name, at which nobody may listen.
void TakeIpv6(const std::string& endpoint, zmq::socket_t* socket) {
  if (absl::StartsWith(endpoint, "tcp://["))
    socket->set(zmq::sockopt::ipv6, true);
}

// Of the payloads of a message, in front of its header frame where connections
// are encrypted. CURVE proves each frame and their order, not that none was
// left out; so a header could get the payloads of the next one.
class PayloadTag {
 public:
  static constexpr size_t kBytes = sizeof(uint64_t);

  PayloadTag() : state_(XXH3_createState(), &XXH3_freeState) {}
  void Begin() { XXH3_64bits_reset(state_.get()); }
  void Add(const void* data, size_t bytes) {
    if (bytes > 0) XXH3_64bits_update(state_.get(), data, bytes);
  }
  uint64_t Digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

using References = absl::InlinedVector<Payload, 1>;

void DropReferences(void* /*data*/, void* references) {
  delete static_cast<References*>(references);
}

// Of payloads that lie side by side, `bytes` in all.
zmq::message_t PayloadFrame(absl::Span<const Payload> payloads, size_t bytes) {
  const std::byte* const data = payloads.front().data();
  if (bytes < kZeroCopyBytes)
    return zmq::message_t(static_cast<const void*>(data), bytes);
  // ZeroMQ takes a non-const pointer, but never writes to what it sends.
  return zmq::message_t(const_cast<std::byte*>(data), bytes, &DropReferences,
                        new References(payloads.begin(), payloads.end()));
}

// Of payloads that do not, `bytes` in all.
zmq::message_t CopiedFrame(absl::Span<const Payload> payloads, size_t bytes) {
  zmq::message_t frame(bytes);
  auto* out = static_cast<std::byte*>(frame.data());
  for (const Payload& payload : payloads) {
    if (payload.empty()) continue;
    std::memcpy(out, payload.data(), payload.size());
    out += payload.size();
  }
  return frame;
}

// Appends the payloads of these sizes that the frame consists of.
void TakePayloads(zmq::message_t&& frame, absl::Span<const size_t> sizes,
                  std::vector<Payload>* payloads) {
  const size_t bytes = frame.size();
  Payload whole;
  if (bytes >= kZeroCopyBytes) {
    // The pointer is taken where the frame stays, since moving a frame may move
    // its bytes.
    auto owner = std::make_unique<zmq::message_t>(std::move(frame));
    const void* const data = owner->data();
    whole = Payload::Wrap(data, bytes, std::move(owner));
  }
  const std::byte* const begin =
      whole.empty() ? static_cast<const std::byte*>(frame.data())
                    : whole.data();
  size_t offset = 0;
  for (const size_t size : sizes) {
    const bool small = size < kZeroCopyBytes || size < bytes / kKeptTimesMax;
    payloads->push_back(small ? Payload::Copy(begin + offset, size)
                              : whole.Slice(offset, size));
    offset += size;
  }
}

// Of one frame of this size (ZMTP 3.0: flags, and a length of 1 or 8 bytes). An
// encrypted one is a frame of a name, a nonce, a code and the flags beside it
// (CURVE: 8, 8, 16 and 1 bytes).
int64_t BytesOnWire(size_t frame, bool encrypted) {
  const size_t bytes = frame + (encrypted ? 33 : 0);
  return static_cast<int64_t>(bytes) + (bytes > 255 ? 9 : 2);
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// What all sockets have in common.
class ZmqSocket {
 public:
  ZmqSocket(zmq::context_t& context, int type, const ChannelOptions& options);

  zmq::socket_t& raw() { return socket_; }
  const ChannelOptions& options() const { return options_; }

  // Before it connects, or binds.
  void ConnectWith(const Credentials& credentials);
  void ListenWith(const Credentials& credentials);

  int Descriptor() const { return socket_.get(zmq::sockopt::fd); }
  // Also makes the socket take in what has happened meanwhile.
  absl::StatusOr<bool> HasInput();
  absl::StatusOr<absl::Duration> WaitMax();

  // Of the last message that ReceiveBody() took, with its frames' headers.
  int64_t bytes_on_wire() const { return bytes_on_wire_; }

  size_t payloads_max() const {
    return static_cast<size_t>(options_.payloads_max);
  }
  // False if no frame is there.
  absl::StatusOr<bool> ReceiveFrame(zmq::message_t* frame);
  // Takes all frames of a message from its header frame on. `*fault` says what
  // is wrong with it, empty if nothing.
  absl::Status ReceiveBody(const zmq::message_t& header, Message* message,
                           std::string* fault);
  // False if the queue is full. `frame` is consumed on true.
  absl::StatusOr<bool> SendFrame(zmq::message_t& frame, bool more);
  absl::StatusOr<bool> SendFirstFrame(zmq::message_t& frame, bool more);
  // `first`: no routing id has been sent before.
  absl::StatusOr<bool> SendBody(const Message& message, bool first);

 private:
  const ChannelOptions options_;
  zmq::socket_t socket_;
  bool encrypted_ = false;
  std::unique_ptr<PayloadTag> tag_;  // If it is.
  // The last call was a receive that found nothing: every message since then
  // shows in the file descriptor.
  bool drained_ = false;
  int64_t bytes_on_wire_ = 0;
};

ZmqSocket::ZmqSocket(zmq::context_t& context, int type,
                     const ChannelOptions& options)
    : options_(options), socket_(context, type) {
  socket_.set(zmq::sockopt::linger, Milliseconds(options.linger));
  socket_.set(zmq::sockopt::sndhwm, options.send_queue_max);
  socket_.set(zmq::sockopt::rcvhwm, options.receive_queue_max);
  socket_.set(zmq::sockopt::maxmsgsize, options.message_bytes_max);
  // A host that does not answer any more is found out by TCP, not by heartbeats
  // of ZeroMQ: their timer ends the process (libzmq 4.3.4, assertion
  // !_io_error) when a connection that libzmq has stopped to read is reset.
  // That takes no more than a peer that dies while its queue is full.
  const int seconds =
      std::max(1, static_cast<int>(absl::ToInt64Seconds(options.silence_max)));
  socket_.set(zmq::sockopt::tcp_keepalive, 1);
  socket_.set(zmq::sockopt::tcp_keepalive_idle, (seconds + 3) / 4);
  socket_.set(zmq::sockopt::tcp_keepalive_intvl, (seconds + 3) / 4);
  socket_.set(zmq::sockopt::tcp_keepalive_cnt, 3);
  socket_.set(zmq::sockopt::tcp_maxrt, Milliseconds(options.silence_max));
}

// A key of 32 bytes. ZeroMQ also takes text, of other sizes.
zmq::const_buffer KeyBuffer(const Secret::Bytes& bytes) {
  return {bytes.data(), bytes.size()};
}

void ZmqSocket::ConnectWith(const Credentials& credentials) {
  const PublicKey& other = options_.listener == Role::kServer
                               ? credentials.server
                               : credentials.worker;
  socket_.set(zmq::sockopt::curve_serverkey, KeyBuffer(other));
  socket_.set(zmq::sockopt::curve_publickey,
              KeyBuffer(PublicKeyOf(credentials.own)));
  socket_.set(zmq::sockopt::curve_secretkey,
              KeyBuffer(credentials.own.bytes()));
  encrypted_ = true;
  if (tag_ == nullptr) tag_ = std::make_unique<PayloadTag>();
}

void ZmqSocket::ListenWith(const Credentials& credentials) {
  socket_.set(zmq::sockopt::curve_server, true);
  socket_.set(zmq::sockopt::curve_secretkey,
              KeyBuffer(credentials.own.bytes()));
  encrypted_ = true;
  if (tag_ == nullptr) tag_ = std::make_unique<PayloadTag>();
}

absl::StatusOr<absl::Duration> ZmqSocket::WaitMax() {
  // A socket's descriptor tells that ZeroMQ has news for it, not that it has
  // messages, and is silent about messages whose news a send has already taken
  // in. So the socket is asked first. Afterwards every new message makes its
  // descriptor readable.
  SL_ASSIGN_OR_RETURN(const bool has_input, HasInput());
  return has_input ? absl::ZeroDuration() : absl::InfiniteDuration();
}

absl::StatusOr<bool> ZmqSocket::HasInput() {
  if (drained_) return false;
  for (;;) {
    try {
      return (socket_.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0;
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) return CallFailed("poll", "", error);
    }
  }
}

absl::StatusOr<bool> ZmqSocket::ReceiveFrame(zmq::message_t* frame) {
  for (;;) {
    try {
      drained_ = !socket_.recv(*frame, zmq::recv_flags::dontwait).has_value();
      return !drained_;
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) return CallFailed("receive", "", error);
    }
  }
}

absl::Status ZmqSocket::ReceiveBody(const zmq::message_t& header,
                                    Message* message, std::string* fault) {
  absl::Span<const std::byte> rest(static_cast<const std::byte*>(header.data()),
                                   header.size());
  bool more = header.more();
  const bool tagged = encrypted_ && more;
  uint64_t tag = 0;
  absl::Status status;
  if (tagged && rest.size() < PayloadTag::kBytes) {
    status = absl::InvalidArgumentError("a header frame without its tag");
  } else if (tagged) {
    std::memcpy(&tag, rest.data(), PayloadTag::kBytes);
    rest.remove_prefix(PayloadTag::kBytes);
    tag_->Begin();
  }
  FrameCutter cutter;
  if (status.ok()) status = cutter.TakeSizes(payloads_max(), &rest);
  if (status.ok()) status = ParseHeader(rest, &message->header);
  int64_t bytes = static_cast<int64_t>(rest.size());
  bytes_on_wire_ = BytesOnWire(header.size(), encrypted_);
  while (more) {
    zmq::message_t frame;
    SL_ASSIGN_OR_RETURN(const bool received, ReceiveFrame(&frame));
    SL_CHECK(received, "ZeroMQ delivered part of a message");
    more = frame.more();
    bytes += static_cast<int64_t>(frame.size());
    bytes_on_wire_ += BytesOnWire(frame.size(), encrypted_);
    if (!status.ok()) continue;  // The rest is only to be taken away.
    if (tagged) tag_->Add(frame.data(), frame.size());
    const absl::StatusOr<absl::Span<const size_t>> sizes =
        cutter.Cut(frame.size());
    if (message->payloads.size() >= payloads_max()) {
      status = absl::InvalidArgumentError(
          absl::StrCat("more than ", payloads_max(), " payload frames"));
    } else if (bytes > options_.message_bytes_max) {
      status = absl::InvalidArgumentError(
          absl::StrCat("more than ", options_.message_bytes_max, " bytes"));
    } else if (!sizes.ok()) {
      status = sizes.status();
    } else {
      TakePayloads(std::move(frame), *sizes, &message->payloads);
    }
  }
  if (status.ok()) status = cutter.End();
  if (status.ok() && tagged && tag_->Digest() != tag) {
    status = absl::InvalidArgumentError(
        "its payloads are not those of its header: frames were left out under "
        "way");
  }
  if (!status.ok()) *fault = std::string(status.message());
  return absl::OkStatus();
}

absl::StatusOr<bool> ZmqSocket::SendFrame(zmq::message_t& frame, bool more) {
  drained_ = false;
  const zmq::send_flags flags =
      more ? zmq::send_flags::dontwait | zmq::send_flags::sndmore
           : zmq::send_flags::dontwait;
  for (;;) {
    try {
      return socket_.send(frame, flags).has_value();
    } catch (const zmq::error_t& error) {
      if (error.num() == EHOSTUNREACH) {
        return absl::NotFoundError("not connected");
      }
      if (error.num() != EINTR) return CallFailed("send", "", error);
    }
  }
}

absl::StatusOr<bool> ZmqSocket::SendFirstFrame(zmq::message_t& frame,
                                               bool more) {
  SL_ASSIGN_OR_RETURN(const bool sent, SendFrame(frame, more));
  if (sent) return true;
  // A send does not always look for news of room in the queue. This does.
  SL_RETURN_IF_ERROR(HasInput().status());
  return SendFrame(frame, more);
}

absl::StatusOr<bool> ZmqSocket::SendBody(const Message& message, bool first) {
  const absl::Span<const Payload> payloads = message.payloads;
  absl::InlinedVector<PayloadRun, 8> runs;
  for (size_t i = 0; i < payloads.size(); i += runs.back().payloads)
    runs.push_back(FirstRun(payloads.subspan(i)));
  const size_t sizes =
      runs.size() < payloads.size() ? PayloadSizesBytes(payloads.size()) : 0;
  const size_t tag_bytes =
      encrypted_ && !payloads.empty() ? PayloadTag::kBytes : 0;
  zmq::message_t header(tag_bytes + sizes + HeaderBytes(message.header));
  auto* out = static_cast<std::byte*>(header.data());
  if (tag_bytes > 0) {
    tag_->Begin();
    for (const Payload& payload : payloads)
      tag_->Add(payload.data(), payload.size());
    const uint64_t digest = tag_->Digest();
    std::memcpy(out, &digest, tag_bytes);
    out += tag_bytes;
  }
  if (sizes > 0) WritePayloadSizes(payloads, out);
  SerializeHeader(message.header, out + sizes);
  SL_ASSIGN_OR_RETURN(bool sent, first ? SendFirstFrame(header, !runs.empty())
                                       : SendFrame(header, !runs.empty()));
  // A queue is never full in the middle of a message. Where the connection went
  // away in the middle, ZeroMQ still wants (and drops) the remaining frames.
  if (!sent) return false;
  size_t begin = 0;
  for (const PayloadRun& run : runs) {
    zmq::message_t frame =
        run.adjacent
            ? PayloadFrame(payloads.subspan(begin, run.payloads), run.bytes)
            : CopiedFrame(payloads.subspan(begin, run.payloads), run.bytes);
    begin += run.payloads;
    SL_ASSIGN_OR_RETURN(const bool frame_sent,
                        SendFrame(frame, begin < payloads.size()));
    sent = sent && frame_sent;
  }
  return sent;
}

// ---- What ZeroMQ tells of connections
// ----------------------------------------

// zmq_socket_monitor(3).
struct MonitorEvent {
  uint16_t kind = 0;
  uint32_t value = 0;
  std::string endpoint = {};
};

// The events of `socket` go to `monitor`, a PAIR socket.
void Monitor(zmq::socket_t& socket, const std::string& endpoint, int events,
             zmq::socket_t& monitor) {
  if (zmq_socket_monitor(socket.handle(), endpoint.c_str(), events) != 0)
    throw zmq::error_t();
  monitor.connect(endpoint);
}

// Before the monitor of `socket` ends. A socket that is closed goes on for a
// while, and the thread that moves all bytes would wait for ever for somebody
// to take its events.
void EndMonitor(zmq::socket_t& socket) {
  (void)zmq_socket_monitor(socket.handle(), nullptr, 0);
}

// Why a connection was refused, in words and to be counted.
struct Refusal {
  std::string why;
  run::Refusals counted;
};

// Of an event ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL.
Refusal RefusalOf(uint32_t value, bool has_keys) {
  Refusal refusal;
  const bool other_mechanism =
      value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH;
  if (other_mechanism && !has_keys) {
    refusal.counted.set_other_key(1);
    refusal.why = "it has a key, and this process has insecure: true";
  } else if (other_mechanism) {
    refusal.counted.set_no_key(1);
    refusal.why = "it has no key";
  } else if (has_keys && value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC) {
    refusal.counted.set_other_key(1);
    refusal.why =
        "it has the key of another job, or what it sent was changed under way";
  } else {
    refusal.counted.set_foreign(1);
    refusal.why = has_keys ? "it does not speak ZeroMQ with a key"
                           : "it does not speak ZeroMQ";
  }
  return refusal;
}

// Of an event ZMQ_EVENT_ACCEPT_FAILED of a Unix socket. ZeroMQ gives no error
// of its own where it turns away a process of another user.
bool IsWithoutRoom(uint32_t error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM;
}

// nullopt if there is none.
absl::StatusOr<std::optional<MonitorEvent>> ReceiveEvent(ZmqSocket& monitor) {
  zmq::message_t frame;
  SL_ASSIGN_OR_RETURN(const bool received, monitor.ReceiveFrame(&frame));
  if (!received) return std::nullopt;
  // 16 bits of event, 32 bits of value; the endpoint in a second frame.
  MonitorEvent event;
  SL_CHECK(
      frame.size() >= sizeof(event.kind) + sizeof(event.value) && frame.more(),
      "an event of a ZeroMQ monitor is too short");
  std::memcpy(&event.kind, frame.data(), sizeof(event.kind));
  std::memcpy(&event.value,
              static_cast<const std::byte*>(frame.data()) + sizeof(event.kind),
              sizeof(event.value));
  SL_RETURN_IF_ERROR(monitor.ReceiveFrame(&frame).status());
  event.endpoint = frame.to_string();
  return event;
}

// ---- Listener ---------------------------------------------------------------

class ZmqListener : public Listener {
 public:
  // Without keys everybody is heard. `suffix` is its own in this process. With
  // keys `key_check` is there.
  ZmqListener(zmq::context_t& context, const std::string& suffix,
              std::shared_ptr<const LiveKeys> keys, const KeyCheck* key_check,
              const ChannelOptions& options);
  ~ZmqListener() override {
    if (monitor_.has_value()) EndMonitor(socket_.raw());
  }

  absl::StatusOr<std::string> Bind(const std::string& endpoint) override;
  absl::StatusOr<std::optional<Incoming>> Receive() override;
  absl::Status Send(const PeerId& to, const Message& message) override;
  ChannelCounts counts() const override;
  std::vector<int> Descriptors() const override;
  absl::StatusOr<absl::Duration> WaitMax() override;

 private:
  void SendError(const zmq::message_t& to, const std::string& error);
  // Where to reach a peer. Null if it is unknown.
  const std::string* RouteTo(const PeerId& peer) const;
  void Learn(const PeerId& peer, const std::string& routing_id, bool within);
  void Forget(const PeerId& peer);
  // Takes in which connections have begun and ended.
  absl::Status ReceiveConnections();
  // Goes over to new keys, if there are.
  absl::Status FollowKeys();
  absl::Status BindAgain(const std::string& endpoint);
  // Why the sender of this frame may not say that; empty: it may. Who only has
  // not gone over to new keys yet is not to be `told`, and repeats it when he
  // has.
  std::string WhyRefused(zmq::message_t& id, const Incoming& incoming,
                         bool* told);

  ZmqSocket socket_;
  zmq::context_t& context_;
  const std::shared_ptr<const LiveKeys> keys_;
  int64_t generation_ = 0;  // Of the keys that socket_ has.
  absl::Time followed_at_ = absl::InfinitePast();  // They were exchanged then.
  const KeyCheck* const key_check_;
  std::vector<std::string> bound_;  // With keys: where it listens.
  const std::string domain_;  // Of this listener's peers, to the key check.
  // Of the connection that ends next: what was wrong with it, or that it has
  // not shown a key. Counted when it ends, since only then is known whose it
  // was.
  std::optional<Refusal> refusal_;
  bool ends_silent_ = false;
  const std::string monitor_endpoint_;
  std::optional<ZmqSocket> monitor_;  // Of socket_; from Bind() to tcp on.
  TcpPeers tcp_peers_;
  ChannelCounts counts_;
  // In two generations: once the first is full it becomes the second.
  struct Route {
    std::string id;
    bool within = false;  // The process: it needs no key.
  };
  std::map<PeerId, Route> routes_;
  std::map<PeerId, Route> older_routes_;
};

ZmqListener::ZmqListener(zmq::context_t& context, const std::string& suffix,
                         std::shared_ptr<const LiveKeys> keys,
                         const KeyCheck* key_check,
                         const ChannelOptions& options)
    : socket_(context, ZMQ_ROUTER, options),
      context_(context),
      keys_(std::move(keys)),
      key_check_(key_check),
      domain_(suffix),
      monitor_endpoint_(absl::StrCat("inproc://connections-", suffix)),
      tcp_peers_({.unread_bytes_max = options.unread_bytes_max,
                  .shows_key = keys_ != nullptr}) {
  zmq::socket_t& router = socket_.raw();
  // A send to nobody is an error, not silence; and a peer that has come back
  // replaces its old connection, which may not have ended here yet.
  router.set(zmq::sockopt::router_mandatory, true);
  router.set(zmq::sockopt::router_handover, true);
  router.set(zmq::sockopt::backlog, 1024);
  // The bound is in bytes, by tcp_peers_. A bound in messages makes ZeroMQ stop
  // to read, and then libzmq 4.3.4 ends the process if the peer has sent a PING
  // and resets its connection.
  router.set(zmq::sockopt::rcvhwm, 0);
  router.set(zmq::sockopt::maxmsgsize,
             std::min(options.message_bytes_max, options.unread_bytes_max));
  if (keys_ != nullptr) {
    const std::shared_ptr<const LiveKeys::Held> held = keys_->Get();
    generation_ = held->generation;
    socket_.ListenWith(held->credentials);
    router.set(zmq::sockopt::zap_domain, domain_);
  }
  router.set(zmq::sockopt::handshake_ivl, Milliseconds(kHandshakeMax));
  // Who may use ipc could as well kill this process.
  const uid_t self = geteuid();
  if (zmq_setsockopt(router.handle(), ZMQ_IPC_FILTER_UID, &self,
                     sizeof(self)) != 0) {
    throw zmq::error_t();
  }
}

ChannelCounts ZmqListener::counts() const {
  ChannelCounts counts = counts_;
  if (key_check_ != nullptr) {
    const KeyCheck::Refusals refused = key_check_->RefusalsIn(domain_);
    counts.refused.set_other_key(counts.refused.other_key() +
                                 static_cast<uint64_t>(refused.count));
    if (refused.count > 0 && RefusedCount(counts_.refused) == 0) {
      counts.last_refused = absl::StrCat(
          refused.last, ": it has a key of its own that is none of this job");
    }
  }
  counts.malformed += tcp_peers_.ended_count();
  counts.overruns += tcp_peers_.ended_count();
  counts.last_overrun = tcp_peers_.last_ended();
  return counts;
}

std::vector<int> ZmqListener::Descriptors() const {
  if (!monitor_.has_value()) return {socket_.Descriptor()};
  return {socket_.Descriptor(), monitor_->Descriptor()};
}

absl::Status ZmqListener::FollowKeys() {
  if (keys_ == nullptr || keys_->generation() == generation_)
    return absl::OkStatus();
  const std::shared_ptr<const LiveKeys::Held> held = keys_->Get();
  generation_ = held->generation;
  followed_at_ = MonotonicNow();
  tcp_peers_.ExpectSilentEnds(followed_at_);
  // Nothing is sent any more to who has shown an old key only.
  for (auto* const routes : {&routes_, &older_routes_}) {
    std::erase_if(*routes,
                  [](const auto& route) { return !route.second.within; });
  }
  for (const std::string& endpoint : bound_) {
    try {
      socket_.ListenWith(held->credentials);
      socket_.raw().unbind(endpoint);
    } catch (const zmq::error_t& error) {
      return CallFailed(absl::StrCat("give up ", endpoint), "", error);
    }
    SL_RETURN_IF_ERROR(BindAgain(endpoint));
  }
  return absl::OkStatus();
}

absl::Status ZmqListener::BindAgain(const std::string& endpoint) {
  // ZeroMQ gives the place up in another thread.
  const absl::Time end = MonotonicNow() + kBindAgainMax;
  while (true) {
    try {
      socket_.raw().bind(endpoint);
      return absl::OkStatus();
    } catch (const zmq::error_t& error) {
      if (error.num() != EADDRINUSE || MonotonicNow() > end) {
        return CallFailed(absl::StrCat("bind to ", endpoint, " with new keys"),
                          BindHint(error.num()), error);
      }
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

absl::StatusOr<absl::Duration> ZmqListener::WaitMax() {
  SL_RETURN_IF_ERROR(FollowKeys());
  if (monitor_.has_value()) SL_RETURN_IF_ERROR(ReceiveConnections());
  SL_ASSIGN_OR_RETURN(absl::Duration may_wait, socket_.WaitMax());
  if (keys_ != nullptr) may_wait = std::min(may_wait, NextLookAt(*keys_));
  if (tcp_peers_.empty()) return may_wait;
  const absl::Time now = MonotonicNow();
  tcp_peers_.Look(now);
  return std::min(may_wait, tcp_peers_.NextLook() - now);
}

absl::Status ZmqListener::ReceiveConnections() {
  while (true) {
    SL_ASSIGN_OR_RETURN(const std::optional<MonitorEvent> event,
                        ReceiveEvent(*monitor_));
    if (!event.has_value()) return absl::OkStatus();
    switch (event->kind) {
      case ZMQ_EVENT_ACCEPTED:
        tcp_peers_.OnAccepted(static_cast<int>(event->value));
        break;
      // The end of the connection follows at once.
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        refusal_ = RefusalOf(event->value, keys_ != nullptr);
        break;
      // Who has no key ends the connection when he sees that he needs one; who
      // only looks whether somebody listens does, too; who says nothing is
      // ended.
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        ends_silent_ = true;
        break;
      case ZMQ_EVENT_ACCEPT_FAILED:
        if (!absl::StartsWith(event->endpoint, "ipc://") ||
            IsWithoutRoom(event->value)) {
          break;
        }
        counts_.refused.set_other_user(counts_.refused.other_user() + 1);
        counts_.last_refused = absl::StrCat(
            "a process of another user of this host, at a Unix socket of user ",
            geteuid());
        break;
      default: {
        const std::string who =
            tcp_peers_.OnEnded(static_cast<int>(event->value));
        const std::optional<Refusal> refusal =
            std::exchange(refusal_, std::nullopt);
        const bool silent = std::exchange(ends_silent_, false);
        if (refusal.has_value()) {
          FoldRefusals(refusal->counted, &counts_.refused);
          counts_.last_refused = absl::StrCat(who, ": ", refusal->why);
        } else if (silent) {
          counts_.refused.set_silent(counts_.refused.silent() + 1);
          counts_.last_silent = who;
        }
        break;
      }
    }
  }
}

std::string ZmqListener::WhyRefused(zmq::message_t& id,
                                    const Incoming& incoming, bool* told) {
  // Threads of this process have no connection, and no key.
  if (keys_ == nullptr || zmq_msg_get(id.handle(), ZMQ_SRCFD) < 0) return "";
  // ZeroMQ lets everybody in when nobody checks keys, and believes what he says
  // of himself.
  if (!key_check_->alive()) return "has a key that nobody has checked";
  const char* const id_of_user = zmq_msg_gets(id.handle(), "User-Id");
  KeyCheck::User user;
  if (id_of_user == nullptr || !KeyCheck::UserOf(id_of_user, &user))
    return "has no key";
  if (user.generation != generation_) {
    *told = false;
    return "has shown a key that has been exchanged since";
  }
  const std::string why =
      MayBe(user.role, incoming.from.kind)
          ? WhyNotSay(user.role, incoming.message.header)
          : absl::StrCat("may not be ", incoming.from.ToString());
  return why.empty() ? ""
                     : absl::StrCat("who has the key of a ",
                                    RoleName(user.role), " ", why);
}

absl::StatusOr<std::string> ZmqListener::Bind(const std::string& endpoint) {
  try {
    if (absl::StartsWith(endpoint, "tcp://") && !monitor_.has_value()) {
      monitor_.emplace(context_, ZMQ_PAIR, socket_.options());
      // ZeroMQ's threads would wait for room in a queue that is full.
      monitor_->raw().set(zmq::sockopt::rcvhwm, 0);
      Monitor(socket_.raw(), monitor_endpoint_,
              ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED |
                  ZMQ_EVENT_ACCEPT_FAILED |
                  ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                  ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL,
              monitor_->raw());
    }
    TakeIpv6(endpoint, &socket_.raw());
    socket_.raw().bind(endpoint);
    const std::string bound = socket_.raw().get(zmq::sockopt::last_endpoint);
    // Within the process there are no keys.
    if (keys_ != nullptr && !absl::StartsWith(bound, kWithin))
      bound_.push_back(bound);
    return bound;
  } catch (const zmq::error_t& error) {
    return CallFailed(absl::StrCat("bind to ", endpoint), BindHint(error.num()),
                      error);
  }
}

absl::StatusOr<std::optional<Listener::Incoming>> ZmqListener::Receive() {
  SL_RETURN_IF_ERROR(FollowKeys());
  for (int i = 0; i < kMalformedPerCall; ++i) {
    zmq::message_t id;
    SL_ASSIGN_OR_RETURN(const bool received, socket_.ReceiveFrame(&id));
    if (!received) return std::nullopt;
    Incoming incoming;
    std::string fault;
    if (!id.more()) {
      fault = "no header frame";
    } else {
      zmq::message_t header;
      SL_ASSIGN_OR_RETURN(const bool complete, socket_.ReceiveFrame(&header));
      SL_CHECK(complete, "ZeroMQ delivered part of a message");
      SL_RETURN_IF_ERROR(
          socket_.ReceiveBody(header, &incoming.message, &fault));
      if (!tcp_peers_.empty()) {
        tcp_peers_.OnReceived(zmq_msg_get(header.handle(), ZMQ_SRCFD),
                              socket_.bytes_on_wire());
      }
    }
    const std::string text = id.to_string();
    if (fault.empty() && !ParseRoutingId(text, &incoming.from)) {
      // Without the id: one that ZeroMQ has made up must not get known, since
      // libzmq 4.3.4 ends the process if a peer takes the next one.
      fault =
          "the routing id is not a peer id such as worker.2.17, with or "
          "without a suffix such as #1a";
    }
    if (fault.empty()) {
      bool told = true;
      const std::string refused = WhyRefused(id, incoming, &told);
      if (refused.empty()) {
        Learn(incoming.from, text,
              /*within=*/zmq_msg_get(id.handle(), ZMQ_SRCFD) < 0);
        return incoming;
      }
      // Nor is it a refusal for a while that he is late.
      if (!told && MonotonicNow() - followed_at_ < kLateMax) continue;
      counts_.refused.set_not_allowed(counts_.refused.not_allowed() + 1);
      counts_.last_refused =
          absl::StrCat(incoming.from.ToString(), ": ", refused);
      if (told) SendError(id, refused);
      continue;
    }
    ++counts_.malformed;
    SendError(id, absl::StrCat("malformed message: ", fault));
  }
  return std::nullopt;
}

const std::string* ZmqListener::RouteTo(const PeerId& peer) const {
  for (const auto* const routes : {&routes_, &older_routes_}) {
    const auto route = routes->find(peer);
    if (route != routes->end()) return &route->second.id;
  }
  return nullptr;
}

void ZmqListener::Learn(const PeerId& peer, const std::string& routing_id,
                        bool within) {
  const auto known = routes_.find(peer);
  if (known != routes_.end()) {
    known->second.within = within;
    if (known->second.id != routing_id) known->second.id = routing_id;
    return;
  }
  if (routes_.size() >= static_cast<size_t>(socket_.options().peers_max)) {
    older_routes_ = std::move(routes_);
    routes_.clear();
  }
  routes_[peer] = {.id = routing_id, .within = within};
}

void ZmqListener::Forget(const PeerId& peer) {
  routes_.erase(peer);
  older_routes_.erase(peer);
}

void ZmqListener::SendError(const zmq::message_t& to,
                            const std::string& error) {
  Message reply;
  reply.header.mutable_error_reply()->set_error(error);
  zmq::message_t id(to.data(), to.size());
  // Whoever sends garbage and does not wait for the answer misses it.
  const absl::StatusOr<bool> reached = socket_.SendFrame(id, true);
  if (reached.ok() && *reached) socket_.SendBody(reply, false).IgnoreError();
}

absl::Status ZmqListener::Send(const PeerId& to, const Message& message) {
  SL_RETURN_IF_ERROR(CheckBounds(message, socket_.options()));
  const std::string* const route = RouteTo(to);
  absl::StatusOr<bool> reached = absl::NotFoundError("not heard of yet");
  if (route != nullptr) {
    zmq::message_t id(route->data(), route->size());
    reached = socket_.SendFirstFrame(id, true);
  }
  if (absl::IsNotFound(reached.status())) {
    Forget(to);
    ++counts_.dropped;
    return absl::NotFoundError(absl::StrCat(
        "send to ", to.ToString(),
        ": it is not connected (not yet, or it has ended); message dropped"));
  }
  if (!reached.ok()) return Annotate(reached.status(), to.ToString());
  if (!*reached) {
    ++counts_.dropped;
    return absl::ResourceExhaustedError(absl::StrCat(
        "send to ", to.ToString(), ": its queue is full (",
        socket_.options().send_queue_max,
        " messages), it reads too slowly or not at all; message dropped"));
  }
  const absl::StatusOr<bool> sent = socket_.SendBody(message, false);
  if (!sent.ok()) return Annotate(sent.status(), to.ToString());
  return absl::OkStatus();
}

// ---- Channel ----------------------------------------------------------------

// Tells whether a process listens at the other end of a DEALER socket.
class LinkMonitor {
 public:
  // Before `dealer` connects. An attempt to connect takes at most attempt_max.
  LinkMonitor(zmq::context_t& context, ZmqSocket& dealer,
              const std::string& endpoint, absl::Duration attempt_max);

  ZmqSocket& socket() { return socket_; }
  const ZmqSocket& socket() const { return socket_; }
  absl::StatusOr<std::optional<LinkState>> Receive();

 private:
  ZmqSocket socket_;
  const absl::Duration attempt_max_;
  absl::Time attempt_at_ = absl::InfinitePast();  // The last one began.
  absl::Time connected_at_ = absl::InfinitePast();
};

class ZmqChannel : public Channel {
 public:
  // Connects.
  ZmqChannel(zmq::context_t& context, const std::string& routing_id,
             const std::string& monitor_endpoint, const std::string& endpoint,
             std::shared_ptr<const LiveKeys> keys,
             const ChannelOptions& options);
  ~ZmqChannel() override {
    if (monitor_.has_value()) EndMonitor(socket_.raw());
  }

  absl::StatusOr<std::optional<Message>> Receive() override;
  absl::Status Send(const Message& message) override;
  absl::StatusOr<std::optional<LinkState>> ReceiveLinkState() override {
    if (!monitor_.has_value()) return std::nullopt;
    return monitor_->Receive();
  }
  ChannelCounts counts() const override { return counts_; }
  std::vector<int> Descriptors() const override;
  absl::StatusOr<absl::Duration> WaitMax() override;

 private:
  // Goes over to new keys, if there are.
  absl::Status FollowKeys();

  const std::string endpoint_;
  const std::shared_ptr<const LiveKeys> keys_;
  int64_t generation_ = 0;  // Of the keys that socket_ has.
  ZmqSocket socket_;
  std::optional<LinkMonitor> monitor_;
  ChannelCounts counts_;
};

ZmqChannel::ZmqChannel(zmq::context_t& context, const std::string& routing_id,
                       const std::string& monitor_endpoint,
                       const std::string& endpoint,
                       std::shared_ptr<const LiveKeys> keys,
                       const ChannelOptions& options)
    : endpoint_(endpoint),
      keys_(std::move(keys)),
      socket_(context, ZMQ_DEALER, options) {
  zmq::socket_t& dealer = socket_.raw();
  if (keys_ != nullptr) {
    const std::shared_ptr<const LiveKeys::Held> held = keys_->Get();
    generation_ = held->generation;
    socket_.ConnectWith(held->credentials);
  }
  dealer.set(zmq::sockopt::routing_id, routing_id);
  // Try again soon at first, since processes start together, then less often.
  dealer.set(zmq::sockopt::reconnect_ivl, 20);
  dealer.set(zmq::sockopt::reconnect_ivl_max, 1000);
  dealer.set(zmq::sockopt::connect_timeout, Milliseconds(options.silence_max));
  if (options.watch_link)
    monitor_.emplace(context, socket_, monitor_endpoint, options.silence_max);
  TakeIpv6(endpoint, &dealer);
  dealer.connect(endpoint);
}

std::vector<int> ZmqChannel::Descriptors() const {
  if (!monitor_.has_value()) return {socket_.Descriptor()};
  return {socket_.Descriptor(), monitor_->socket().Descriptor()};
}

absl::Status ZmqChannel::FollowKeys() {
  if (keys_ == nullptr || keys_->generation() == generation_)
    return absl::OkStatus();
  const std::shared_ptr<const LiveKeys::Held> held = keys_->Get();
  generation_ = held->generation;
  if (absl::StartsWith(endpoint_, kWithin)) return absl::OkStatus();
  try {
    socket_.raw().disconnect(endpoint_);
    socket_.ConnectWith(held->credentials);
    socket_.raw().connect(endpoint_);
  } catch (const zmq::error_t& error) {
    return CallFailed(absl::StrCat("connect to ", endpoint_, " with new keys"),
                      ConnectHint(error.num()), error);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> ZmqChannel::WaitMax() {
  SL_RETURN_IF_ERROR(FollowKeys());
  SL_ASSIGN_OR_RETURN(absl::Duration may_wait, socket_.WaitMax());
  if (keys_ != nullptr) may_wait = std::min(may_wait, NextLookAt(*keys_));
  if (!monitor_.has_value()) return may_wait;
  SL_ASSIGN_OR_RETURN(const absl::Duration of_monitor,
                      monitor_->socket().WaitMax());
  return std::min(may_wait, of_monitor);
}

absl::StatusOr<std::optional<Message>> ZmqChannel::Receive() {
  SL_RETURN_IF_ERROR(FollowKeys());
  for (int i = 0; i < kMalformedPerCall; ++i) {
    zmq::message_t header;
    SL_ASSIGN_OR_RETURN(const bool received, socket_.ReceiveFrame(&header));
    if (!received) return std::nullopt;
    Message message;
    std::string fault;
    SL_RETURN_IF_ERROR(socket_.ReceiveBody(header, &message, &fault));
    if (fault.empty()) return message;
    ++counts_.malformed;
  }
  return std::nullopt;
}

absl::Status ZmqChannel::Send(const Message& message) {
  SL_RETURN_IF_ERROR(CheckBounds(message, socket_.options()));
  const absl::StatusOr<bool> sent = socket_.SendBody(message, true);
  if (!sent.ok()) return Annotate(sent.status(), endpoint_);
  if (!*sent) {
    ++counts_.dropped;
    return absl::ResourceExhaustedError(absl::StrCat(
        "send to ", endpoint_, ": the queue is full (",
        socket_.options().send_queue_max,
        " messages), nobody reads at the other end; message dropped"));
  }
  return absl::OkStatus();
}

LinkMonitor::LinkMonitor(zmq::context_t& context, ZmqSocket& dealer,
                         const std::string& endpoint,
                         absl::Duration attempt_max)
    : socket_(context, ZMQ_PAIR, dealer.options()), attempt_max_(attempt_max) {
  Monitor(dealer.raw(), endpoint,
          ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
              ZMQ_EVENT_CONNECT_DELAYED | ZMQ_EVENT_CLOSED |
              ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
              ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
              ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL,
          socket_.raw());
}

absl::StatusOr<std::optional<LinkState>> LinkMonitor::Receive() {
  std::optional<LinkState> state;
  while (true) {
    SL_ASSIGN_OR_RETURN(const std::optional<MonitorEvent> event,
                        ReceiveEvent(socket_));
    if (!event.has_value()) return state;
    const absl::Time now = MonotonicNow();
    switch (event->kind) {
      case ZMQ_EVENT_CONNECTED:
        state = LinkState::kConnected;
        connected_at_ = now;
        break;
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        state = LinkState::kUp;
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        state = LinkState::kRefused;
        break;
      // After a while: nobody has spoken, as of a process that is stopped.
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        if (now - connected_at_ < kDroppedAtOnce) state = LinkState::kDropped;
        break;
      case ZMQ_EVENT_CONNECT_DELAYED:
        attempt_at_ = now;
        break;
      case ZMQ_EVENT_CLOSED:
        // The attempt has failed. A refusal takes a round trip; what takes as
        // long as it may is a partition, or a host that is down.
        if (now - attempt_at_ < attempt_max_ * 0.9 ||
            attempt_at_ == absl::InfinitePast()) {
          state = LinkState::kGone;
        }
        attempt_at_ = absl::InfinitePast();
        break;
      default:
        break;
    }
  }
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

}  // namespace slackline
