// ShmListener: the listener of ShmTransport. Of this folder alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/message.h"
#include "common/net/shm/shm_connection.h"
#include "common/net/shm/shm_socket.h"
#include "common/net/shm/shm_transport.h"
#include "common/net/transport.h"

namespace slackline {

// What comes through memory, and what comes to a listener of another transport.
class ShmListener : public Listener {
 public:
  ShmListener(ShmTransport& transport, std::unique_ptr<Listener> others,
              const ChannelOptions& options)
      : transport_(transport), others_(std::move(others)), options_(options) {
    reading_ = options_;
    reading_.message_bytes_max =
        std::min(options.message_bytes_max, options.unread_bytes_max);
  }
  ~ShmListener() override {
    for (auto& [key, peer] : peers_) End(peer.get());
  }

  absl::StatusOr<std::string> Bind(const std::string& endpoint) override;
  absl::StatusOr<std::optional<Incoming>> Receive() override;
  absl::Status Send(const PeerId& to, const Message& message) override;
  ChannelCounts counts() const override;
  std::vector<int> Descriptors() const override;
  absl::StatusOr<absl::Duration> WaitMax() override;

 private:
  struct Peer {
    PeerId id;
    uint64_t key = 0;
    std::unique_ptr<ShmConnection> connection;
    // It is in one of the lists below.
    bool listed = false;
  };

  std::optional<Incoming> ReceiveShared();
  std::optional<Incoming> ReceiveFrom(Peer* peer, bool* over);
  void ReadEvents();
  void Accept();
  // False: whoever it is, it has not said who in the right way.
  bool Greet(Descriptor* socket, uint64_t key);
  void End(Peer* peer);

  ShmTransport& transport_;
  const std::unique_ptr<Listener> others_;
  const ChannelOptions options_;
  ChannelOptions reading_;
  ShmEventQueue events_;
  Descriptor listening_;
  // Nobody is accepted before then; InfiniteFuture: whoever comes is.
  absl::Time accept_again_ = absl::InfiniteFuture();
  uint64_t next_key_ = 1;  // 0 is the key of listening_.
  std::map<uint64_t, Descriptor> greeting_;
  std::map<uint64_t, std::unique_ptr<Peer>> peers_;
  std::map<PeerId, Peer*> routes_;
  // Who may have sent something; then who has nothing more at the moment, and
  // has not been told to wake this thread.
  std::vector<Peer*> busy_;
  std::vector<Peer*> quiet_;
  size_t turn_ = 0;  // The index in busy_ of whose turn it is.
  bool others_turn_ = false;
  ChannelCounts counts_;
  TurnedAway turned_away_;
};

}  // namespace slackline
