// What a peer may write to the ring of its stream in shared memory, and change
// while it is read.
#include <cstring>
#include <memory>
#include <vector>

#include "common/net/shm/shm_stream.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr int64_t kMessageBytesMax = 1 << 16;

class Peer : public ShmPeer {
 public:
  absl::Span<const std::byte> arena() const override { return bytes_; }

 private:
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(5000);
};

}  // namespace
}  // namespace slackline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slackline;
  static ShmStream* const stream = new ShmStream{};
  if (size < 2) return 0;
  // How much is said to be there, in pieces of 32 bytes or not.
  const uint64_t written = data[0] * uint64_t{32} + (data[1] & 31);
  data += 2;
  size -= 2;
  std::memset(stream->ring, 0, 16384);
  std::memcpy(stream->ring, data, size);
  stream->read = 0;
  stream->written = 0;
  ShmReader reader(stream, std::make_shared<Peer>(),
                   {.payloads_max = 8, .message_bytes_max = kMessageBytesMax});
  // A part of it first.
  for (const uint64_t there : {written / 64 * 32, written}) {
    stream->written = there;
    for (int messages = 0;; ++messages) {
      SL_CHECK(messages < 1000, "as many messages as that are not there");
      const auto incoming = reader.Receive();
      if (!incoming.ok()) return 0;
      if (!incoming->has_value()) break;
      int64_t bytes = 0;
      std::byte sum{};
      SL_CHECK((*incoming)->message.payloads.size() <= 8, "too many payloads");
      for (const Payload& payload : (*incoming)->message.payloads) {
        bytes += static_cast<int64_t>(payload.size());
        for (const std::byte byte : payload.bytes()) sum ^= byte;
      }
      SL_CHECK(bytes <= kMessageBytesMax, "a message is too large");
      stream->ring[0] = sum;
    }
  }
  return 0;
}
