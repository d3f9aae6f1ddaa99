// TcpPeers: bounds what each TCP connection of a listener may have sent that
// has not been received yet.
//
// ZeroMQ hands on whole messages and takes in the frames of one without a
// bound, so a message that never ends would take memory without the listener
// ever seeing it. The kernel counts the bytes of a connection: those less the
// bytes of the messages that have been received are the ones that lie
// somewhere in between. A connection with too many of them is ended.
//
// Thread-compatible. Where the kernel does not count (before Linux 4.6) there
// is no bound.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/time/time.h"

namespace slackline {

class TcpPeers {
 public:
  // Looks this often.
  static constexpr absl::Duration kLookEvery = absl::Milliseconds(100);

  struct Options {
    int64_t unread_bytes_max = 0;
    // Peers show a key first. One that has not may have no more than a greeting
    // unread.
    bool shows_key = false;
  };
  explicit TcpPeers(const Options& options) : options_(options) {}

  // The connection with this file descriptor begins and ends. One that is no
  // TCP connection is ignored.
  void OnAccepted(int descriptor);
  // Returns who it was, address and port.
  std::string OnEnded(int descriptor);
  // A message of so many bytes, as sent, came from it.
  void OnReceived(int descriptor, int64_t bytes);

  // Connections end from now on without OnEnded(), for a while: the listener
  // has bound anew.
  void ExpectSilentEnds(absl::Time now) {
    silent_ends_until_ = now + absl::Seconds(30);
  }

  bool empty() const { return peers_.empty(); }
  // Ends connections that have too much unread; if it is time to look.
  void Look(absl::Time now);
  // InfiniteFuture if there is nothing to look at.
  absl::Time NextLook() const {
    return peers_.empty() ? absl::InfiniteFuture() : next_look_;
  }

  // Connections that were ended, and what there was to say of the last one.
  int64_t ended_count() const { return ended_count_; }
  const std::string& last_ended() const { return last_ended_; }

 private:
  struct Peer {
    uint64_t cookie = 0;  // The socket's: descriptors are used again.
    int64_t received = 0;
    std::string name = {};
  };
  const Options options_;
  std::unordered_map<int, Peer> peers_;  // By descriptor.
  absl::Time next_look_ = absl::InfinitePast();
  absl::Time silent_ends_until_ = absl::InfinitePast();
  int64_t ended_count_ = 0;
  std::string last_ended_;
};

}  // namespace slackline
