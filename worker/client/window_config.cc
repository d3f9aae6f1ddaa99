#include "worker/client/window_config.h"

#include <algorithm>

#include "common/block/bounds.h"

namespace slackline {

void CheckWindow(const config::Limits& limits, const ConfigProblems& problems) {
  const bool shard =
      problems.Range("shard_kib", limits.shard_kib(), 1, kKibMax);
  const bool message =
      problems.Range("message_kib", limits.message_kib(), 1, kKibMax);
  problems.Range("spin_us", limits.spin_us(), 0, kSpinMicrosMax);
  const bool window =
      problems.Range("window_kib", limits.window_kib(), 1, kKibMax);
  // What is larger than the window would wait for room forever.
  if (shard && message && window &&
      limits.window_kib() <
          std::max(limits.shard_kib(), limits.message_kib())) {
    problems.Add("window_kib",
                 absl::StrCat("value is ", limits.window_kib(),
                              "; at least limits.shard_kib (",
                              limits.shard_kib(), ") and limits.message_kib (",
                              limits.message_kib(), ") is required"));
  }
}

}  // namespace slackline
