#include "common/net/delayed/delayed_transport.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/status.h"

namespace slackline {
namespace {

size_t BytesOf(const Message& message) {
  size_t bytes = message.header.ByteSizeLong();
  for (const Payload& payload : message.payloads) bytes += payload.size();
  return bytes;
}

class DelayedChannel : public Channel {
 public:
  DelayedChannel(std::unique_ptr<Channel> inner, const ChannelOptions& options,
                 const TimeSource& time, std::shared_ptr<LinkDirection> out,
                 std::shared_ptr<LinkDirection> in)
      : options_(options),
        time_(time),
        inner_(std::move(inner)),
        out_(std::move(out)),
        in_(std::move(in)) {}

  absl::Status Send(const Message& message) override {
    SL_RETURN_IF_ERROR(CheckBounds(message, options_));
    out_.Push(time_.Now(), BytesOf(message), message);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<Message>> Receive() override {
    while (const std::optional<Message> message = out_.PopDue(time_.Now())) {
      const absl::Status sent = inner_->Send(*message);
      // Nobody is told any more that the message is dropped; it is counted.
      if (!sent.ok() && !absl::IsResourceExhausted(sent)) return sent;
    }
    while (true) {
      SL_ASSIGN_OR_RETURN(std::optional<Message> message, inner_->Receive());
      if (!message.has_value()) break;
      const size_t bytes = BytesOf(*message);
      in_.Push(time_.Now(), bytes, *std::move(message));
    }
    return in_.PopDue(time_.Now());
  }

  absl::StatusOr<std::optional<LinkState>> ReceiveLinkState() override {
    return inner_->ReceiveLinkState();
  }
  ChannelCounts counts() const override { return inner_->counts(); }
  std::vector<int> Descriptors() const override {
    return inner_->Descriptors();
  }

  absl::StatusOr<absl::Duration> WaitMax() override {
    SL_ASSIGN_OR_RETURN(const absl::Duration may_wait, inner_->WaitMax());
    const absl::Time due = std::min(out_.NextWakeup(), in_.NextWakeup());
    return std::min(may_wait, due - time_.Now());
  }

 private:
  const ChannelOptions options_;
  const TimeSource time_;
  const std::unique_ptr<Channel> inner_;
  DelayLine<Message> out_;
  DelayLine<Message> in_;
};

}  // namespace

DelayedTransport::DelayedTransport(Transport& inner, const LinkModel& link,
                                   const TimeSource& time)
    : inner_(inner),
      time_(time),
      out_(std::make_shared<LinkDirection>(link)),
      in_(std::make_shared<LinkDirection>(link)) {}

absl::StatusOr<std::unique_ptr<Channel>> DelayedTransport::Connect(
    const PeerId& self, const std::string& endpoint,
    const ChannelOptions& options) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Channel> inner,
                      inner_.Connect(self, endpoint, options));
  return std::make_unique<DelayedChannel>(std::move(inner), options, time_,
                                          out_, in_);
}

}  // namespace slackline
