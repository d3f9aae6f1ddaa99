#include "common/process/address_limit.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace slackline {

absl::Status CheckAddressesLeft(size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return absl::OkStatus();
  void* const reserved =
      mmap(nullptr, bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved != MAP_FAILED) {
    munmap(reserved, bytes);
    return absl::OkStatus();
  }
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const size_t used = pages * static_cast<size_t>(getpagesize());
  return absl::ResourceExhaustedError(absl::StrCat(
      "this process may have ", limit.rlim_cur >> 10,
      " KiB of addresses (ulimit -v), and has ", used >> 10,
      " already; it needs ", bytes >> 10,
      " more: set no bound, or at least ulimit -v ", (used + bytes) >> 10));
}

}  // namespace slackline
