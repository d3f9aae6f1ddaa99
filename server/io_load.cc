#include "server/io_load.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace slackline {
namespace {
// As of the load meter of a shard thread.
constexpr absl::Duration kDecay = absl::Seconds(1);
// ZeroMQ's name for them.
constexpr char kIoThreadPrefix[] = "ZMQbg/IO";
}  // namespace

double IoLoad::Update(absl::Time now) {
  const absl::Duration passed = now - updated_;
  const bool first = updated_ == absl::InfinitePast();
  if (passed <= absl::ZeroDuration()) return 0;
  updated_ = now;
  const double keep = first ? 0 : std::exp(-absl::FDivDuration(passed, kDecay));
  double busiest = 0;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task", error)) {
    int id = 0;
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (!absl::StartsWith(name, kIoThreadPrefix) ||
        !absl::SimpleAtoi(task.path().filename().string(), &id)) {
      continue;
    }
    int64_t ran_ns = 0;
    int64_t waited_ns = 0;
    std::ifstream schedstat(task.path() / "schedstat");
    if (!(schedstat >> ran_ns >> waited_ns)) continue;
    Thread& thread = threads_[id];
    const absl::Duration busy = absl::Nanoseconds(ran_ns + waited_ns);
    if (!first) {
      const double share = absl::FDivDuration(busy - thread.busy, passed);
      thread.utilisation =
          keep * thread.utilisation + (1 - keep) * std::clamp(share, 0.0, 1.0);
    }
    thread.busy = busy;
    busiest = std::max(busiest, thread.utilisation);
  }
  return busiest;
}

}  // namespace slackline
