// MessageSize: how much a message of shards that can be sent at once takes. A
// message costs both ends some system calls, however large it is, and the other
// end begins with it when all of it is there. So on a fast link fewer and
// larger ones are better, on a slow one smaller ones: a message takes what the
// link carries in a short time, as measured.
//
// No I/O, threads or clocks. Thread-compatible.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace slackline {

class MessageSize {
 public:
  struct Options {
    size_t bytes_min = 0;
    size_t bytes_max = 0;  // At least bytes_min.
    absl::Duration time;   // The link carries a message in it. Positive.
  };
  explicit MessageSize(const Options& options)
      : options_(options), carried_(static_cast<double>(options.bytes_min)) {}

  // An answer came `took` after a message; with it, `bytes` were under way.
  // Less than bytes_min says how long a message takes and not what the link
  // carries, and counts for nothing.
  void Add(size_t bytes, absl::Duration took);

  // bytes_min before the first measurement.
  size_t bytes() const;

 private:
  const Options options_;
  double carried_;  // Bytes in Options::time, smoothed.
};

}  // namespace slackline
