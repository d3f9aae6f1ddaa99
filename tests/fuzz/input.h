// What fuzzers make of the bytes that they are given.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/message.h"

namespace slackline::fuzz {

// Reads from the front; what is missing is zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(data, size) {}

  bool empty() const { return left_.empty(); }
  uint8_t Byte() {
    if (left_.empty()) return 0;
    const uint8_t byte = left_.front();
    left_.remove_prefix(1);
    return byte;
  }
  // A length of two bytes, low one first, and so many bytes as far as there
  // are.
  absl::Span<const uint8_t> Chunk() {
    const size_t low = Byte();
    const size_t high = Byte();
    const size_t size = std::min(low | high << 8, left_.size());
    const absl::Span<const uint8_t> chunk = left_.first(size);
    left_.remove_prefix(size);
    return chunk;
  }
  // A header as a chunk, the number of payloads, and each of them as a chunk,
  // as a listener hands it on. False if a listener would refuse it.
  bool TakeMessage(Message* message);

 private:
  absl::Span<const uint8_t> left_;
};

// The bytes that Input takes the message from.
std::string BytesOf(const Message& message);

// A file in memory with these bytes.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  void Write(const uint8_t* data, size_t size);
  std::string path() const;

 private:
  const int descriptor_;
};

}  // namespace slackline::fuzz
