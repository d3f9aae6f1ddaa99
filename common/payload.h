// Payload: the one type for tensor bytes, whatever carries them (own memory, a
// received frame, a tensor's storage, a mapped arena). Reference-counted; a
// copy or a slice shares the bytes. Bytes behind a Payload that others may hold
// are immutable; only the sole holder of memory that was allocated to be
// written to may write to it.
//
// Copies may live on different threads. One Payload object is
// thread-compatible. Data from the network has no alignment guarantee: read
// floats with LoadU or memcpy. Allocate() aligns to 64 bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/types/span.h"

namespace slackline {

class Payload {
 public:
  Payload() = default;  // No bytes.
  Payload(const Payload& other)
      : block_(other.block_), data_(other.data_), size_(other.size_) {
    if (block_ != nullptr)
      block_->references.fetch_add(1, std::memory_order_relaxed);
  }
  Payload(Payload&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Payload& operator=(Payload other) noexcept {
    std::swap(block_, other.block_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Payload() { Release(); }

  // Uninitialised memory of the heap, 64-byte aligned.
  static Payload Allocate(size_t bytes);
  static Payload Copy(const void* data, size_t bytes);
  // Shares bytes that `owner` keeps alive until the last reference is gone;
  // `owner` is destroyed on whatever thread drops that reference.
  template <typename T>
  static Payload Wrap(const void* data, size_t bytes, T owner) {
    return Payload(new Holder<T>(std::move(owner)),
                   static_cast<const std::byte*>(data), bytes);
  }
  // The same, of memory that its sole holder may write to.
  template <typename T>
  static Payload WrapWritable(void* data, size_t bytes, T owner) {
    auto* const holder = new Holder<T>(std::move(owner));
    holder->writable = true;
    return Payload(holder, static_cast<const std::byte*>(data), bytes);
  }

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::Span<const std::byte> bytes() const { return {data_, size_}; }

  // Shares this payload's bytes [offset, offset + bytes). Out of range: fatal.
  Payload Slice(size_t offset, size_t bytes) const;

  // True if no other Payload refers to the same memory. What others did with it
  // before letting go happened before this returns true.
  bool unique() const {
    return block_ != nullptr &&
           block_->references.load(std::memory_order_acquire) == 1;
  }
  // Writable bytes. Fatal unless unique() and allocated to be written to.
  std::byte* MutableData();

 private:
  struct Block {
    std::atomic<int64_t> references{1};
    bool writable = false;
    virtual ~Block() = default;
  };
  template <typename T>
  struct Holder : Block {
    explicit Holder(T&& o) : owner(std::move(o)) {}
    T owner;
  };
  struct OwnMemory;
  Payload(Block* block, const std::byte* data, size_t size)
      : block_(block), data_(data), size_(size) {}
  void Release() {
    if (block_ != nullptr &&
        block_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete block_;
    }
    block_ = nullptr;
  }

  Block* block_ = nullptr;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Where what is to be sent is made: in memory from which it is sent without a
// copy, if there is such memory. Thread-safe; outlived by its payloads.
class PayloadMemory {
 public:
  virtual ~PayloadMemory() = default;
  // As Payload::Allocate().
  virtual Payload Allocate(size_t bytes) { return Payload::Allocate(bytes); }
};

}  // namespace slackline
