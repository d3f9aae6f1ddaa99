#include "common/net/transport.h"

#include "absl/strings/str_cat.h"
#include "common/net/header_codec.h"
#include "common/status.h"

namespace slackline {

absl::Status CheckChannelOptions(const ChannelOptions& options) {
  const auto at_least_1 = [](const char* name, int64_t value) {
    if (value >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "channel option ", name, " is ", value, ", at least 1 is required"));
  };
  SL_RETURN_IF_ERROR(at_least_1("send_queue_max", options.send_queue_max));
  SL_RETURN_IF_ERROR(
      at_least_1("receive_queue_max", options.receive_queue_max));
  SL_RETURN_IF_ERROR(at_least_1("payloads_max", options.payloads_max));
  SL_RETURN_IF_ERROR(at_least_1("peers_max", options.peers_max));
  SL_RETURN_IF_ERROR(at_least_1("unread_bytes_max", options.unread_bytes_max));
  return at_least_1("message_bytes_max", options.message_bytes_max);
}

absl::Status CheckBounds(const Message& message,
                         const ChannelOptions& options) {
  if (message.payloads.size() > static_cast<size_t>(options.payloads_max)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message with ", message.payloads.size(), " payloads, at most ",
        options.payloads_max, " are allowed; send it in parts"));
  }
  const size_t header_bytes = message.header.ByteSizeLong();
  if (header_bytes > kHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message with a header of ", header_bytes, " bytes, at most ",
        kHeaderBytesMax, " are allowed; send it in parts"));
  }
  int64_t bytes = static_cast<int64_t>(header_bytes);
  for (const Payload& payload : message.payloads)
    bytes += static_cast<int64_t>(payload.size());
  if (bytes > options.message_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message of ", bytes, " bytes, at most ", options.message_bytes_max,
        " are allowed; send it in parts"));
  }
  return absl::OkStatus();
}

}  // namespace slackline
