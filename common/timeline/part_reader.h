// Reads what a process has recorded (TimelineRecorder::End()), as it comes from
// another process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace slackline {

struct ProcessTimeline {
  struct Event {
    int32_t name = 0;         // Its place in `names`.
    int64_t begun_nanos = 0;  // Of the process' monotonic clock.
    int64_t took_nanos = 0;
    uint64_t flow = 0;
    int64_t number = 0;
  };
  struct Thread {
    std::string name;
    int64_t lost = 0;
    std::vector<Event> events = {};  // By their beginning.
  };
  std::vector<std::string> names = {};
  std::vector<Thread> threads = {};
  int64_t from_nanos = 0;
  int64_t until_nanos = 0;
  int64_t from_wall_nanos = 0;
};

// A serialized timeline::Part. Every event lies between the beginning and the
// end, and its name in `names`; times are at least 0, and leave room for the
// offset of a clock.
//
// InvalidArgument names what is wrong, and the bound.
absl::StatusOr<ProcessTimeline> ReadTimelinePart(absl::string_view bytes);

inline constexpr size_t kTimelinePartBytesMax = 8 << 20;
// About 146 years: a clock that counts from the start of a host, or from 1970.
inline constexpr int64_t kTimelineNanosMax = int64_t{1} << 62;

}  // namespace slackline
