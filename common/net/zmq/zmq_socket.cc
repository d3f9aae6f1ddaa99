#include "common/net/zmq/zmq_socket.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/net/header_codec.h"
#include "common/net/payload_frames.h"
#include "common/payload.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {

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

namespace {

// A payload keeps no more alive of the frame that it shares than so many times
// its own bytes, else it is copied: whoever holds it counts its own.
constexpr size_t kKeptTimesMax = 16;
// A thread that waits sees within this time that its keys were exchanged.
constexpr absl::Duration kLookAtKeysEvery = absl::Seconds(1);

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
  const auto* begin = static_cast<const std::byte*>(frame.data());
  Payload whole;
  if (bytes >= kZeroCopyBytes) {
    // The pointer is taken where the frame stays, since moving a frame may move
    // its bytes.
    auto owner = std::make_unique<zmq::message_t>(std::move(frame));
    begin = static_cast<const std::byte*>(owner->data());
    whole = Payload::Wrap(begin, bytes, std::move(owner));
  }
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

// A key of 32 bytes. ZeroMQ also takes text, of other sizes.
zmq::const_buffer KeyBuffer(const Secret::Bytes& bytes) {
  return {bytes.data(), bytes.size()};
}

}  // namespace

absl::Duration NextLookAt(const LiveKeys& keys) {
  const absl::Time next = keys.NextFrom();
  if (next == absl::InfiniteFuture()) return kLookAtKeysEvery;
  return std::clamp(next - absl::Now(), absl::Milliseconds(1),
                    kLookAtKeysEvery);
}

int WholeMilliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

absl::Status CallFailed(const std::string& call, const std::string& hint,
                        const zmq::error_t& error) {
  return absl::UnavailableError(
      absl::StrCat(call, ": ", error.what(), hint.empty() ? "" : "; ", hint));
}

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

void AllowIpv6(const std::string& endpoint, zmq::socket_t* socket) {
  if (absl::StartsWith(endpoint, "tcp://["))
    socket->set(zmq::sockopt::ipv6, true);
}

ZmqSocket::ZmqSocket(zmq::context_t& context, int type,
                     const ChannelOptions& options)
    : options_(options), socket_(context, type) {
  socket_.set(zmq::sockopt::linger, WholeMilliseconds(options.linger));
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
  socket_.set(zmq::sockopt::tcp_maxrt, WholeMilliseconds(options.silence_max));
}

ZmqSocket::~ZmqSocket() = default;

void ZmqSocket::ConnectWith(const Credentials& credentials) {
  const Secret& own = credentials.ToConnect(options_.listener);
  socket_.set(zmq::sockopt::curve_serverkey,
              KeyBuffer(credentials.ListenerKey(options_.listener)));
  socket_.set(zmq::sockopt::curve_publickey, KeyBuffer(PublicKeyOf(own)));
  socket_.set(zmq::sockopt::curve_secretkey, KeyBuffer(own.bytes()));
  encrypted_ = true;
  if (tag_ == nullptr) tag_ = std::make_unique<PayloadTag>();
}

void ZmqSocket::ListenWith(const Credentials& credentials) {
  socket_.set(zmq::sockopt::curve_server, true);
  socket_.set(zmq::sockopt::curve_secretkey,
              KeyBuffer(credentials.ToListen().bytes()));
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
  FrameSlicer slicer;
  if (status.ok()) status = slicer.ReadSizes(payloads_max(), &rest);
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
        slicer.Slice(frame.size());
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
  if (status.ok()) status = slicer.End();
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

}  // namespace slackline
