// ShmChannel: the channel of ShmTransport. Of this folder alone.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/link_state.h"
#include "common/message.h"
#include "common/net/shm/shm_arena.h"
#include "common/net/shm/shm_connection.h"
#include "common/net/shm/shm_transport.h"
#include "common/net/transport.h"
#include "common/time/time_source.h"

namespace slackline {

class ShmChannel : public Channel {
 public:
  ShmChannel(ShmTransport& transport, std::shared_ptr<ShmArena> arena,
             const PeerId& self, const std::string& endpoint,
             const ChannelOptions& options)
      : transport_(transport),
        arena_(std::move(arena)),
        self_(self.ToString()),
        endpoint_(endpoint),
        options_(options) {
    Connect(TimeSource().Now());
  }
  ~ShmChannel() override;

  absl::StatusOr<std::optional<Message>> Receive() override;
  absl::Status Send(const Message& message) override;
  absl::StatusOr<std::optional<LinkState>> ReceiveLinkState() override {
    return std::exchange(link_state_, std::nullopt);
  }
  ChannelCounts counts() const override { return counts_; }
  std::vector<int> Descriptors() const override {
    return {events_.descriptor()};
  }
  absl::StatusOr<absl::Duration> WaitMax() override;

 private:
  // Between two tries to connect, at first.
  static constexpr absl::Duration kRetryMin = absl::Milliseconds(20);

  void Connect(absl::Time now);
  absl::Status TryToConnect();
  // Takes in what the socket has to say.
  void ReadEvents();
  bool ReadWelcome();
  void Refuse(absl::string_view why);
  std::optional<Message> ReceiveMessage();
  void Disconnect();

  ShmTransport& transport_;
  const std::shared_ptr<ShmArena> arena_;
  const std::string self_;
  const std::string endpoint_;
  const ChannelOptions options_;
  ShmEventQueue events_;
  std::unique_ptr<ShmConnection> connection_;
  bool welcome_ = false;  // The other end has answered.
  int unwelcome_ = 0;     // Connections in a row that ended without an answer.
  absl::Status refused_;  // For good.
  std::deque<Message> waiting_;  // While there is no connection.
  absl::Time next_try_ = absl::InfinitePast();
  absl::Duration retry_ = kRetryMin;
  std::optional<LinkState> link_state_;
  ChannelCounts counts_;
};

}  // namespace slackline
