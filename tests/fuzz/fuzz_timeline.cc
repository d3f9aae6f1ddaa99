// What a process says that it did: what is read lies within the recording.
#include "common/status.h"
#include "common/timeline/part_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read =
      slackline::ReadTimelinePart({reinterpret_cast<const char*>(data), size});
  if (!read.ok()) return 0;
  for (const slackline::ProcessTimeline::Thread& thread : read->threads) {
    int64_t before = read->from_nanos;
    for (const slackline::ProcessTimeline::Event& event : thread.events) {
      SL_CHECK(event.begun_nanos >= before && event.took_nanos >= 0 &&
                   event.begun_nanos + event.took_nanos <= read->until_nanos,
               thread.name);
      SL_CHECK(static_cast<size_t>(event.name) < read->names.size(),
               thread.name);
      before = event.begun_nanos;
    }
  }
  return 0;
}
