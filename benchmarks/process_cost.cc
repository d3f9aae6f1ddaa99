#include "benchmarks/process_cost.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACKLINE_COUNTS_ALLOCATIONS 0
#else
#define SLACKLINE_COUNTS_ALLOCATIONS 1
#endif

namespace slackline::bench {
namespace {

// The allocator has no argument in which this could be handed over.
std::atomic<int64_t>* counted_here = nullptr;

}  // namespace

AllocationCounters::AllocationCounters(int processes)
    : processes_(processes),
      counts_(static_cast<Count*>(
          mmap(nullptr, static_cast<size_t>(processes) * sizeof(Count),
               PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  SL_CHECK(counts_ != MAP_FAILED, "no memory that processes share");
}

AllocationCounters::~AllocationCounters() {
  munmap(counts_, static_cast<size_t>(processes_) * sizeof(Count));
}

void AllocationCounters::CountHere(int process) {
  counted_here = &counts_[process];
}

Cost CostOf(pid_t process) {
  const std::string folder = absl::StrCat("/proc/", process);
  Cost cost;
  std::string text;
  // After the name, which may have spaces: state is the first field, minor
  // faults are the eighth (proc(5)).
  std::getline(std::ifstream(folder + "/stat"), text);
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(text.rfind(')') + 2), ' ');
  SL_CHECK(fields.size() > 7 && absl::SimpleAtoi(fields[7], &cost.page_faults),
           absl::StrCat(folder, "/stat is of another form"));
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder + "/task", error), end;
       !error && at != end; at.increment(error)) {
    const std::string thread = at->path().string();
    int64_t nanoseconds = 0;
    if (std::ifstream(thread + "/schedstat") >> nanoseconds)
      cost.cpu_us += static_cast<double>(nanoseconds) / 1e3;
    std::ifstream status(thread + "/status");
    while (std::getline(status, text)) {
      absl::string_view rest = text;
      int64_t count = 0;
      if (absl::ConsumePrefix(&rest, "voluntary_ctxt_switches:") &&
          absl::SimpleAtoi(rest, &count)) {
        cost.wakeups += count;
      }
    }
  }
  return cost;
}

}  // namespace slackline::bench

#if SLACKLINE_COUNTS_ALLOCATIONS

// The C library's allocator under the names that it keeps for those who put
// their own in its place.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

static void CountOne() {
  if (slackline::bench::counted_here != nullptr)
    slackline::bench::counted_here->fetch_add(1, std::memory_order_relaxed);
}

void* malloc(size_t bytes) {
  CountOne();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  CountOne();
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  CountOne();
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  CountOne();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  CountOne();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}

#endif
