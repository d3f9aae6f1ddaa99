#include "tests/net/zmtp_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr size_t kGreetingBytes = 64;
enum Flags : uint8_t { kMore = 1, kLong = 2, kCommand = 4 };

std::string BigEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i)
    text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::string Frame(uint8_t flags, const std::string& body) {
  const bool is_long = body.size() > 255;
  return absl::StrCat(
      std::string(1, static_cast<char>(flags | (is_long ? kLong : 0))),
      BigEndian(body.size(), is_long ? 8 : 1), body);
}

std::string Property(const std::string& name, const std::string& value) {
  return absl::StrCat(BigEndian(name.size(), 1), name,
                      BigEndian(value.size(), 4), value);
}

}  // namespace

ZmtpPeer::ZmtpPeer(const std::string& endpoint, const std::string& routing_id)
    : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
  SL_CHECK(socket_ >= 0, "socket");
  const size_t colon = endpoint.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port =
      htons(static_cast<uint16_t>(std::atoi(endpoint.c_str() + colon + 1)));
  const std::string host = endpoint.substr(6, colon - 6);  // Past "tcp://".
  SL_CHECK(inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1, endpoint);
  SL_CHECK(connect(socket_, reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)) == 0,
           absl::StrCat("connect to ", endpoint));
  std::string greeting = absl::StrCat("\xff", std::string(8, '\0'), "\x7f",
                                      std::string("\x03\x00", 2), "NULL");
  greeting.resize(kGreetingBytes, '\0');
  SendRaw(absl::StrCat(
      greeting,
      Frame(kCommand,
            absl::StrCat("\x05READY", Property("Socket-Type", "DEALER"),
                         Property("Identity", routing_id)))));
  // Only when both have introduced themselves may messages follow.
  std::string introduction;
  uint8_t flags = 0;
  SL_CHECK(ReadExactly(kGreetingBytes, &introduction) &&
               ReadFrame(&flags, &introduction),
           absl::StrCat("no ZMTP at ", endpoint));
}

ZmtpPeer::~ZmtpPeer() { Close(); }

bool ZmtpPeer::SendRaw(const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count =
        send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

bool ZmtpPeer::SendFrame(const std::string& bytes, bool more) {
  return SendRaw(Frame(more ? kMore : 0, bytes));
}

bool ZmtpPeer::SendPing() {
  return SendRaw(
      Frame(kCommand, absl::StrCat("\x04PING", std::string(2, '\0'))));
}

bool ZmtpPeer::ReadExactly(size_t bytes, std::string* out) {
  out->resize(bytes);
  for (size_t read = 0; read < bytes;) {
    const ssize_t count = recv(socket_, out->data() + read, bytes - read, 0);
    if (count <= 0) return false;
    read += static_cast<size_t>(count);
  }
  return true;
}

std::string ZmtpPeer::ReceiveMessage() {
  std::string bytes;
  std::string message;
  uint8_t flags = kMore;
  while ((flags & kMore) != 0) {
    do {
      if (!ReadFrame(&flags, &bytes)) return "";
    } while ((flags & kCommand) != 0);
    message += bytes;
  }
  return message;
}

bool ZmtpPeer::ReadFrame(uint8_t* flags, std::string* body) {
  std::string bytes;
  if (!ReadExactly(1, &bytes)) return false;
  *flags = static_cast<uint8_t>(bytes[0]);
  if (!ReadExactly((*flags & kLong) != 0 ? 8 : 1, &bytes)) return false;
  size_t size = 0;
  for (const char byte : bytes) size = size << 8 | static_cast<uint8_t>(byte);
  return ReadExactly(size, body);
}

void ZmtpPeer::Close() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

void ZmtpPeer::Reset() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  Close();
}

}  // namespace slackline
