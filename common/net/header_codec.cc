#include "common/net/header_codec.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

absl::Status ParseHeader(absl::Span<const std::byte> bytes,
                         wire::Header* header) {
  if (bytes.size() > kHeaderBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("header frame of ", bytes.size(), " bytes, at most ",
                     kHeaderBytesMax, " are allowed"));
  }
  if (!header->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "header frame of ", bytes.size(),
        " bytes is no slackline.wire.Header; is the sender a Slackline "
        "process of this version"));
  }
  if (header->body_case() == wire::Header::BODY_NOT_SET) {
    return absl::InvalidArgumentError(
        absl::StrCat("header frame of ", bytes.size(),
                     " bytes has no body that this version knows; run the same "
                     "version everywhere"));
  }
  return absl::OkStatus();
}

size_t HeaderBytes(const wire::Header& header) {
  const size_t bytes = header.ByteSizeLong();
  SL_CHECK(bytes <= kHeaderBytesMax,
           absl::StrCat("header of ", bytes, " bytes"));
  return bytes;
}

void SerializeHeader(const wire::Header& header, void* out) {
  header.SerializeWithCachedSizesToArray(static_cast<uint8_t*>(out));
}

}  // namespace slackline
