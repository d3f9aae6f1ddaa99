#include "tools/cli/job/at_once.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace slackline {

void ForEachAtOnce(size_t count, const std::function<void(size_t)>& work) {
  constexpr size_t kThreadsMax = 64;
  std::atomic<size_t> next = 0;
  const auto work_on = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(count, kThreadsMax); ++i)
    threads.emplace_back(work_on);
  work_on();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace slackline
