#include "common/payload.h"

#include <cstring>
#include <new>

#include "common/status.h"

namespace slackline {

struct Payload::OwnMemory : Payload::Block {
  explicit OwnMemory(size_t bytes)
      : memory(static_cast<std::byte*>(
            ::operator new (bytes, std::align_val_t{64}))) {
    writable = true;
  }
  ~OwnMemory() override { ::operator delete (memory, std::align_val_t{64}); }
  std::byte* const memory;
};

Payload Payload::Allocate(size_t bytes) {
  if (bytes == 0) return Payload();
  auto* const block = new OwnMemory(bytes);
  return Payload(block, block->memory, bytes);
}

Payload Payload::Copy(const void* data, size_t bytes) {
  Payload payload = Allocate(bytes);
  if (bytes > 0) std::memcpy(payload.MutableData(), data, bytes);
  return payload;
}

Payload Payload::Slice(size_t offset, size_t bytes) const {
  SL_CHECK(
      offset <= size_ && bytes <= size_ - offset,
      absl::StrCat("slice [", offset, ", +", bytes, ") of ", size_, " bytes"));
  Payload slice = *this;
  slice.data_ += offset;
  slice.size_ = bytes;
  return slice;
}

std::byte* Payload::MutableData() {
  SL_CHECK(unique() && block_->writable,
           "payload is shared or not ours to write");
  return const_cast<std::byte*>(data_);
}

}  // namespace slackline
