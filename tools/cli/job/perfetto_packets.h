// What a process did, in the format of Perfetto (proto/perfetto.proto).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/timeline/part_reader.h"

namespace slackline {

struct MemberTimeline {
  int32_t number = 0;  // Of the process in the file, from 0; each its own.
  std::string name;    // "worker 1 (process 4711 on n1)".
  // To be added to times of the process, so that they are those of the file.
  int64_t offset_nanos = 0;
  ProcessTimeline timeline;
};

// A serialized perfetto::Trace with a track for each thread that did something.
// Traces that follow each other in a file are one trace. Where an event goes on
// beyond the one that it began in, it ends there.
//
// InvalidArgument: by that offset it would be before the beginning of time, or
// beyond kTimelineNanosMax.
absl::StatusOr<std::string> PerfettoPackets(MemberTimeline member);

}  // namespace slackline
