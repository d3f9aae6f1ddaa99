// Memory that two processes map: a memfd, which is no file and not bound by the
// size of /dev/shm. It is gone when nobody maps it any more, whoever has died.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/io/descriptor.h"

namespace slackline {

// Mapped as long as it lives. Movable; the address stays.
class SharedMemory {
 public:
  enum class Peers {
    kWrite,  // Whoever gets it may write to it.
    kRead,   // The one who has made it alone writes.
  };
  // `bytes` zeros, which take no memory before they are written to.
  // Unavailable: the system has none to give, or forbids it.
  static absl::StatusOr<SharedMemory> Create(size_t bytes, Peers peers);
  // The first `bytes` of what a peer has sent. InvalidArgument if these are not
  // there for good: memory that the peer can make shorter would end this
  // process when it is read.
  static absl::StatusOr<SharedMemory> Map(Descriptor file, size_t bytes,
                                          Peers peers);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Not to be written to if it is a peer's, of Peers::kRead.
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int descriptor() const { return file_.get(); }

 private:
  SharedMemory(Descriptor file, std::byte* data, size_t size)
      : file_(std::move(file)), data_(data), size_(size) {}

  Descriptor file_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace slackline
