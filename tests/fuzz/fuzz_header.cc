// The header frame of any message.
#include "common/net/header_codec.h"
#include "common/status.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  slackline::wire::Header header;
  if (!slackline::ParseHeader({reinterpret_cast<const std::byte*>(data), size},
                              &header)
           .ok()) {
    return 0;
  }
  // What was read can be written, and reads the same.
  std::string bytes(slackline::HeaderBytes(header), '\0');
  slackline::SerializeHeader(header, bytes.data());
  slackline::wire::Header again;
  SL_CHECK(slackline::ParseHeader(
               {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()},
               &again)
               .ok(),
           "a header that was written cannot be read");
  return 0;
}
