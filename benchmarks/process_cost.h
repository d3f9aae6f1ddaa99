// What running costs a process, so that benchmarks can say it for each request.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace slackline::bench {

struct Cost {
  double cpu_us = 0;        // Of all threads, in user and kernel mode.
  int64_t wakeups = 0;      // How often a thread that had slept went on.
  int64_t page_faults = 0;  // Without reading from a disk.
  int64_t allocations = 0;  // Of heap memory, also within libraries.

  Cost operator+(const Cost& other) const {
    return {cpu_us + other.cpu_us, wakeups + other.wakeups,
            page_faults + other.page_faults, allocations + other.allocations};
  }
  Cost operator-(const Cost& before) const {
    return {cpu_us - before.cpu_us, wakeups - before.wakeups,
            page_faults - before.page_faults, allocations - before.allocations};
  }
};

// Counts the allocations of several processes. To be made before they are
// forked; then each says who it is. Without effect under sanitizers, which have
// allocators of their own.
class AllocationCounters {
 public:
  explicit AllocationCounters(int processes);
  ~AllocationCounters();
  AllocationCounters(const AllocationCounters&) = delete;
  AllocationCounters& operator=(const AllocationCounters&) = delete;

  // This process is number `process` from now on.
  void CountHere(int process);
  int64_t of(int process) const { return counts_[process]; }

 private:
  using Count = std::atomic<int64_t>;
  const int processes_;
  Count* const counts_;  // In memory that forks share.
};

// So far, of the threads that are there now; without allocations. The process
// is this one or a child.
Cost CostOf(pid_t process);

}  // namespace slackline::bench
