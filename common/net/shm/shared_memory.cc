#include "common/net/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// Linux 5.1; not in all headers.
constexpr int kSealFutureWrite = 0x0010;

absl::Status CallFailed(const char* call) {
  return absl::UnavailableError(
      absl::StrCat("shared memory: ", call, ": ", std::strerror(errno)));
}

// What bounds the addresses of this process, if that may be why it has none.
std::string AddressHint() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return "";
  return absl::StrCat("; the process may have ", limit.rlim_cur >> 20,
                      " MiB of addresses: raise that (ulimit -v unlimited, or "
                      "the batch system's bound on virtual memory)");
}

absl::StatusOr<std::byte*> MapBytes(int file, size_t bytes, bool writable) {
  void* const data =
      mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
           MAP_SHARED, file, 0);
  if (data == MAP_FAILED) {
    return absl::UnavailableError(
        absl::StrCat("shared memory: mmap of ", bytes >> 20,
                     " MiB: ", std::strerror(errno), AddressHint()));
  }
  return static_cast<std::byte*>(data);
}

}  // namespace

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::StatusOr<SharedMemory> SharedMemory::Create(size_t bytes, Peers peers) {
  Descriptor file(memfd_create("slackline", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return CallFailed("memfd_create");
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    return CallFailed("ftruncate");
  const absl::StatusOr<std::byte*> data = MapBytes(file.get(), bytes, true);
  if (!data.ok()) return data.status();
  SharedMemory memory(std::move(file), *data, bytes);
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  // A kernel without it lets peers write; they only harm what they were sent.
  if (peers == Peers::kRead &&
      fcntl(memory.descriptor(), F_ADD_SEALS, kSealFutureWrite) != 0 &&
      errno != EINVAL) {
    return CallFailed("fcntl(F_ADD_SEALS)");
  }
  if (fcntl(memory.descriptor(), F_ADD_SEALS, seals | F_SEAL_SEAL) != 0)
    return CallFailed("fcntl(F_ADD_SEALS)");
  return memory;
}

absl::StatusOr<SharedMemory> SharedMemory::Map(Descriptor file, size_t bytes,
                                               Peers peers) {
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError(
        "shared memory of a peer: it is no memfd that is sealed against "
        "shrinking");
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return CallFailed("fstat");
  if (bytes == 0 || status.st_size < 0 ||
      static_cast<size_t>(status.st_size) < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory of a peer: it has ", status.st_size,
                     " bytes, and the peer says ", bytes));
  }
  const absl::StatusOr<std::byte*> data =
      MapBytes(file.get(), bytes, peers == Peers::kWrite);
  if (!data.ok()) return data.status();
  return SharedMemory(std::move(file), *data, bytes);
}

}  // namespace slackline
