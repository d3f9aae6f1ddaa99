#include "common/net/transport.h"

#include <malloc.h>

#include <cerrno>
#include <utility>
#include <zmq.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/net/header_codec.h"
#include "common/status.h"

namespace slackline {
namespace {

// A message in a row of this many malformed ones is left for the next call.
constexpr int kMalformedPerCall = 64;

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
    case EINVAL:
    case EPROTONOSUPPORT:
      return "an endpoint is tcp://host:port, ipc://@name or inproc://name";
    default:
      return "";
  }
}

void DropReference(void* /*data*/, void* payload) {
  delete static_cast<Payload*>(payload);
}

zmq::message_t PayloadFrame(const Payload& payload) {
  if (payload.size() < kZeroCopyBytes) {
    return zmq::message_t(static_cast<const void*>(payload.data()),
                          payload.size());
  }
  // ZeroMQ takes a non-const pointer, but never writes to what it sends.
  return zmq::message_t(const_cast<std::byte*>(payload.data()), payload.size(),
                        &DropReference, new Payload(payload));
}

Payload TakePayload(zmq::message_t&& frame) {
  if (frame.size() < kZeroCopyBytes) {
    return Payload::Copy(frame.data(), frame.size());
  }
  // The pointer is taken where the frame stays, since moving a frame may move
  // its bytes.
  auto owner = std::make_unique<zmq::message_t>(std::move(frame));
  const void* const data = owner->data();
  const size_t bytes = owner->size();
  return Payload::Wrap(data, bytes, std::move(owner));
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

}  // namespace

void KeepFreedMemory() {
  // The largest threshold that glibc allows, and a heap of many messages.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

NetContext::NetContext(const Options& options)
    : context_(std::make_unique<zmq::context_t>(options.io_threads)) {}
NetContext::~NetContext() = default;

Socket::Socket(NetContext& context, int type, const SocketOptions& options)
    : options_(options),
      socket_(std::make_unique<zmq::socket_t>(*context.context_, type)) {
  socket_->set(zmq::sockopt::linger, Milliseconds(options.linger));
  socket_->set(zmq::sockopt::sndhwm, options.send_queue_max);
  socket_->set(zmq::sockopt::rcvhwm, options.receive_queue_max);
  socket_->set(zmq::sockopt::maxmsgsize, options.message_bytes_max);
  const int silence = Milliseconds(options.silence_max);
  socket_->set(zmq::sockopt::heartbeat_ivl, silence / 4);
  socket_->set(zmq::sockopt::heartbeat_timeout, silence);
}

Socket::~Socket() = default;

absl::Status Socket::CheckOptions(const SocketOptions& options) {
  const auto at_least_1 = [](const char* name, int64_t value) {
    if (value >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "socket option ", name, " is ", value, ", at least 1 is required"));
  };
  SL_RETURN_IF_ERROR(at_least_1("send_queue_max", options.send_queue_max));
  SL_RETURN_IF_ERROR(
      at_least_1("receive_queue_max", options.receive_queue_max));
  SL_RETURN_IF_ERROR(at_least_1("payloads_max", options.payloads_max));
  return at_least_1("message_bytes_max", options.message_bytes_max);
}

int Socket::file_descriptor() const { return socket_->get(zmq::sockopt::fd); }

absl::StatusOr<bool> Socket::HasInput() {
  if (drained_) return false;
  for (;;) {
    try {
      return (socket_->get(zmq::sockopt::events) & ZMQ_POLLIN) != 0;
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) return CallFailed("poll", "", error);
    }
  }
}

absl::StatusOr<bool> Socket::ReceiveFrame(zmq::message_t* frame) {
  for (;;) {
    try {
      drained_ = !socket_->recv(*frame, zmq::recv_flags::dontwait).has_value();
      return !drained_;
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) return CallFailed("receive", "", error);
    }
  }
}

absl::Status Socket::ReceiveBody(const zmq::message_t& header, Message* message,
                                 std::string* fault) {
  const absl::Status parsed =
      ParseHeader({static_cast<const std::byte*>(header.data()), header.size()},
                  &message->header);
  if (!parsed.ok()) *fault = std::string(parsed.message());
  int64_t bytes = static_cast<int64_t>(header.size());
  bool more = header.more();
  while (more) {
    zmq::message_t frame;
    SL_ASSIGN_OR_RETURN(const bool received, ReceiveFrame(&frame));
    SL_CHECK(received, "ZeroMQ delivered part of a message");
    more = frame.more();
    bytes += static_cast<int64_t>(frame.size());
    if (!fault->empty()) continue;  // The rest is only to be taken away.
    if (message->payloads.size() >= options_.payloads_max) {
      *fault =
          absl::StrCat("more than ", options_.payloads_max, " payload frames");
    } else if (bytes > options_.message_bytes_max) {
      *fault = absl::StrCat("more than ", options_.message_bytes_max, " bytes");
    } else {
      message->payloads.push_back(TakePayload(std::move(frame)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Socket::SendFrame(zmq::message_t& frame, bool more) {
  drained_ = false;
  const zmq::send_flags flags =
      more ? zmq::send_flags::dontwait | zmq::send_flags::sndmore
           : zmq::send_flags::dontwait;
  for (;;) {
    try {
      return socket_->send(frame, flags).has_value();
    } catch (const zmq::error_t& error) {
      if (error.num() == EHOSTUNREACH) {
        return absl::NotFoundError("not connected");
      }
      if (error.num() != EINTR) return CallFailed("send", "", error);
    }
  }
}

absl::StatusOr<bool> Socket::SendFirstFrame(zmq::message_t& frame, bool more) {
  SL_ASSIGN_OR_RETURN(const bool sent, SendFrame(frame, more));
  if (sent) return true;
  // A send does not always look for news of room in the queue. This does.
  SL_RETURN_IF_ERROR(HasInput().status());
  return SendFrame(frame, more);
}

absl::StatusOr<bool> Socket::SendBody(const Message& message, bool first) {
  zmq::message_t header(HeaderBytes(message.header));
  SerializeHeader(message.header, header.data());
  size_t left = message.payloads.size();
  SL_ASSIGN_OR_RETURN(bool sent, first ? SendFirstFrame(header, left > 0)
                                       : SendFrame(header, left > 0));
  // A queue is never full in the middle of a message. Where the connection went
  // away in the middle, ZeroMQ still wants (and drops) the remaining frames.
  if (!sent) return false;
  for (const Payload& payload : message.payloads) {
    zmq::message_t frame = PayloadFrame(payload);
    SL_ASSIGN_OR_RETURN(const bool frame_sent, SendFrame(frame, --left > 0));
    sent = sent && frame_sent;
  }
  return sent;
}

absl::Status Socket::CheckBounds(const Message& message) const {
  if (message.payloads.size() > options_.payloads_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message with ", message.payloads.size(), " payloads, at most ",
        options_.payloads_max, " are allowed; send it in parts"));
  }
  int64_t bytes = static_cast<int64_t>(message.header.ByteSizeLong());
  for (const Payload& payload : message.payloads) bytes += payload.size();
  if (bytes > options_.message_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message of ", bytes, " bytes, at most ", options_.message_bytes_max,
        " are allowed; send it in ", "parts"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RouterSocket>> RouterSocket::Create(
    NetContext& context, const SocketOptions& options) {
  SL_RETURN_IF_ERROR(CheckOptions(options));
  try {
    std::unique_ptr<RouterSocket> router(
        new RouterSocket(context, ZMQ_ROUTER, options));
    // A send to nobody is an error, not silence; and a peer that has come back
    // takes over from its old connection, which may not have ended here yet.
    router->socket_->set(zmq::sockopt::router_mandatory, true);
    router->socket_->set(zmq::sockopt::router_handover, true);
    router->socket_->set(zmq::sockopt::backlog, 1024);
    return router;
  } catch (const zmq::error_t& error) {
    return CallFailed("create a ROUTER socket", "", error);
  }
}

absl::StatusOr<std::string> RouterSocket::Bind(const std::string& endpoint) {
  try {
    socket_->bind(endpoint);
    return socket_->get(zmq::sockopt::last_endpoint);
  } catch (const zmq::error_t& error) {
    return CallFailed(absl::StrCat("bind to ", endpoint), BindHint(error.num()),
                      error);
  }
}

absl::StatusOr<std::optional<RouterSocket::Incoming>> RouterSocket::Receive() {
  for (int i = 0; i < kMalformedPerCall; ++i) {
    zmq::message_t id;
    SL_ASSIGN_OR_RETURN(const bool received, ReceiveFrame(&id));
    if (!received) return std::nullopt;
    Incoming incoming;
    std::string fault;
    if (!id.more()) {
      fault = "no header frame";
    } else {
      zmq::message_t header;
      SL_ASSIGN_OR_RETURN(const bool complete, ReceiveFrame(&header));
      SL_CHECK(complete, "ZeroMQ delivered part of a message");
      SL_RETURN_IF_ERROR(ReceiveBody(header, &incoming.message, &fault));
    }
    const std::string text = id.to_string();
    if (fault.empty() && (!PeerId::FromString(text, &incoming.from) ||
                          incoming.from.ToString() != text)) {
      // Also refuses other spellings, such as leading zeros: a reply would go
      // to the usual one.
      fault = absl::StrCat("routing id \"", absl::CHexEscape(text),
                           "\" is not a peer id such as worker.2.17");
    }
    if (fault.empty()) return incoming;
    ++malformed_count_;
    SendError(id, fault);
  }
  return std::nullopt;
}

void RouterSocket::SendError(const zmq::message_t& to,
                             const std::string& error) {
  Message reply;
  reply.header.mutable_error_reply()->set_error(
      absl::StrCat("malformed message: ", error));
  zmq::message_t id(to.data(), to.size());
  // Whoever sends garbage and does not wait for the answer misses it.
  const absl::StatusOr<bool> reached = SendFrame(id, true);
  if (reached.ok() && *reached) SendBody(reply, false).IgnoreError();
}

absl::Status RouterSocket::Send(const PeerId& to, const Message& message) {
  SL_RETURN_IF_ERROR(CheckBounds(message));
  const std::string text = to.ToString();
  zmq::message_t id(text.data(), text.size());
  const absl::StatusOr<bool> reached = SendFirstFrame(id, true);
  if (absl::IsNotFound(reached.status())) {
    ++dropped_count_;
    return absl::NotFoundError(absl::StrCat(
        "send to ", text,
        ": it is not connected (not yet, or it has ended); message dropped"));
  }
  if (!reached.ok()) return Annotate(reached.status(), text);
  if (!*reached) {
    ++dropped_count_;
    return absl::ResourceExhaustedError(absl::StrCat(
        "send to ", text, ": its queue is full (", options_.send_queue_max,
        " messages), it reads too slowly or not at all; message dropped"));
  }
  const absl::StatusOr<bool> sent = SendBody(message, false);
  if (!sent.ok()) return Annotate(sent.status(), text);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DealerSocket>> DealerSocket::Create(
    NetContext& context, const PeerId& self, const SocketOptions& options) {
  SL_RETURN_IF_ERROR(CheckOptions(options));
  try {
    std::unique_ptr<DealerSocket> dealer(
        new DealerSocket(context, ZMQ_DEALER, options));
    dealer->socket_->set(zmq::sockopt::routing_id, self.ToString());
    // Try again soon at first, since processes start together, then less often.
    dealer->socket_->set(zmq::sockopt::reconnect_ivl, 20);
    dealer->socket_->set(zmq::sockopt::reconnect_ivl_max, 1000);
    dealer->socket_->set(zmq::sockopt::connect_timeout,
                         Milliseconds(options.silence_max));
    return dealer;
  } catch (const zmq::error_t& error) {
    return CallFailed("create a DEALER socket", "", error);
  }
}

absl::Status DealerSocket::Connect(const std::string& endpoint) {
  endpoint_ = endpoint;
  try {
    socket_->connect(endpoint);
    return absl::OkStatus();
  } catch (const zmq::error_t& error) {
    return CallFailed(absl::StrCat("connect to ", endpoint),
                      ConnectHint(error.num()), error);
  }
}

absl::StatusOr<std::optional<Message>> DealerSocket::Receive() {
  for (int i = 0; i < kMalformedPerCall; ++i) {
    zmq::message_t header;
    SL_ASSIGN_OR_RETURN(const bool received, ReceiveFrame(&header));
    if (!received) return std::nullopt;
    Message message;
    std::string fault;
    SL_RETURN_IF_ERROR(ReceiveBody(header, &message, &fault));
    if (fault.empty()) return message;
    ++malformed_count_;
  }
  return std::nullopt;
}

absl::Status DealerSocket::Send(const Message& message) {
  SL_RETURN_IF_ERROR(CheckBounds(message));
  const absl::StatusOr<bool> sent = SendBody(message, true);
  if (!sent.ok()) return Annotate(sent.status(), endpoint_);
  if (!*sent) {
    ++dropped_count_;
    return absl::ResourceExhaustedError(absl::StrCat(
        "send to ", endpoint_, ": the queue is full (", options_.send_queue_max,
        " messages), nobody reads at the other end; message dropped"));
  }
  return absl::OkStatus();
}

}  // namespace slackline
