#include "tests/fuzz/input.h"

#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/net/header_codec.h"
#include "common/status.h"

namespace slackline::fuzz {
namespace {

std::string ChunkOf(absl::string_view bytes) {
  SL_CHECK(bytes.size() < 65536, "a chunk has at most 65535 bytes");
  const char size[] = {static_cast<char>(bytes.size() & 255),
                       static_cast<char>(bytes.size() >> 8)};
  return absl::StrCat(absl::string_view(size, sizeof(size)), bytes);
}

}  // namespace

bool Input::TakeMessage(Message* message) {
  const absl::Span<const uint8_t> header = Chunk();
  const int payloads = Byte() % 8;
  for (int i = 0; i < payloads; ++i) {
    const absl::Span<const uint8_t> payload = Chunk();
    message->payloads.push_back(Payload::Copy(payload.data(), payload.size()));
  }
  return ParseHeader(
             {reinterpret_cast<const std::byte*>(header.data()), header.size()},
             &message->header)
      .ok();
}

std::string BytesOf(const Message& message) {
  std::string bytes = ChunkOf(message.header.SerializeAsString());
  SL_CHECK(message.payloads.size() < 8, "a message has at most 7 payloads");
  bytes.push_back(static_cast<char>(message.payloads.size()));
  for (const Payload& payload : message.payloads) {
    bytes += ChunkOf(
        {reinterpret_cast<const char*>(payload.data()), payload.size()});
  }
  return bytes;
}

MemoryFile::MemoryFile() : descriptor_(memfd_create("fuzz", 0)) {
  SL_CHECK(descriptor_ >= 0, "memfd_create");
}

MemoryFile::~MemoryFile() { close(descriptor_); }

void MemoryFile::Write(const uint8_t* data, size_t size) {
  SL_CHECK(ftruncate(descriptor_, 0) == 0 &&
               pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size),
           "write to memory");
}

std::string MemoryFile::path() const {
  return absl::StrCat("/proc/self/fd/", descriptor_);
}

}  // namespace slackline::fuzz
