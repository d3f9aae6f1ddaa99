// A TimelineRecorder as what an Inspector asks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/inspection/inspector.h"
#include "common/time/time_source.h"
#include "common/timeline/part_reader.h"
#include "common/timeline/recorder.h"

namespace slackline {

// The recorder outlives whoever has the sources.
inline void TellTimelinesOf(TimelineRecorder* recorder, const TimeSource& time,
                            Inspector::Sources* sources) {
  sources->begin_timeline = [recorder, time](absl::Duration) {
    recorder->Begin(time.Now(), time.WallNow());
  };
  sources->end_timeline = [recorder, time](int64_t bytes_max) {
    const auto readable = static_cast<int64_t>(kTimelinePartBytesMax);
    return recorder
        ->End(time.Now(),
              static_cast<size_t>(std::clamp<int64_t>(bytes_max, 0, readable)))
        .SerializeAsString();
  };
}

}  // namespace slackline
