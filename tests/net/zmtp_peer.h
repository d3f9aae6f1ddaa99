// A peer that speaks ZMTP 3.0 (rfc.zeromq.org/spec/23) by hand over TCP, so
// that it can do what ZeroMQ's own sockets never do.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace slackline {

class ZmtpPeer {
 public:
  // Connects to "tcp://address:port" and introduces itself as a DEALER socket
  // with this routing id; "": none. Returns when the other end has, too.
  ZmtpPeer(const std::string& endpoint, const std::string& routing_id);
  ~ZmtpPeer();  // As Close().
  ZmtpPeer(const ZmtpPeer&) = delete;
  ZmtpPeer& operator=(const ZmtpPeer&) = delete;

  // Sends one frame of a message. False once the connection has ended.
  bool SendFrame(const std::string& bytes, bool more);
  // A command of ZMTP 3.1: asks for a sign of life.
  bool SendPing();
  // Bytes as they are.
  bool SendRaw(const std::string& bytes);
  // The frames of the next message, joined, commands left out. "" if the
  // connection ends.
  std::string ReceiveMessage();

  void Close();  // As a process that ends: what is unread is lost.
  void Reset();  // As one that is killed with unread input.

 private:
  bool ReadExactly(size_t bytes, std::string* out);
  bool ReadFrame(uint8_t* flags, std::string* body);

  int socket_ = -1;
};

}  // namespace slackline
