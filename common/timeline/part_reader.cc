#include "common/timeline/part_reader.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "proto/timeline.pb.h"

namespace slackline {
namespace {

constexpr int kNamesMax = 64 << 10;
constexpr size_t kNameBytesMax = 1024;
constexpr int kThreadsMax = 4096;

absl::Status Wrong(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("a timeline: ", what));
}

absl::Status CheckName(const char* of, const std::string& name) {
  if (name.size() <= kNameBytesMax) return absl::OkStatus();
  return Wrong(absl::StrCat("a name of ", of, " has ", name.size(),
                            " bytes; at most ", kNameBytesMax, " are allowed"));
}

absl::StatusOr<ProcessTimeline::Thread> ReadThread(
    const timeline::Thread& thread, const ProcessTimeline& of) {
  SL_RETURN_IF_ERROR(CheckName("a thread", thread.name()));
  const int count = thread.name_index_size();
  if (thread.begun_nanos_size() != count || thread.took_nanos_size() != count ||
      thread.flow_size() != count || thread.number_size() != count) {
    return Wrong(absl::StrCat("the columns of thread '", thread.name(),
                              "' have ", count, ", ", thread.begun_nanos_size(),
                              ", ", thread.took_nanos_size(), ", ",
                              thread.flow_size(), " and ", thread.number_size(),
                              " entries; they have to have equally many"));
  }
  if (thread.lost() < 0) {
    return Wrong(absl::StrCat("thread '", thread.name(), "' lost ",
                              thread.lost(),
                              " events; at least 0 is required"));
  }
  ProcessTimeline::Thread read = {.name = thread.name(), .lost = thread.lost()};
  read.events.reserve(static_cast<size_t>(count));
  int64_t begun = of.from_nanos;
  for (int i = 0; i < count; ++i) {
    const int32_t name = thread.name_index(i);
    if (name < 0 || static_cast<size_t>(name) >= of.names.size()) {
      return Wrong(absl::StrCat("event ", i, " of thread '", thread.name(),
                                "' has name ", name, "; there are ",
                                of.names.size()));
    }
    // Neither sum can overflow: what is compared lies within the bounds.
    const int64_t after = thread.begun_nanos(i);
    if (after < 0 || after > of.until_nanos - begun) {
      return Wrong(absl::StrCat("event ", i, " of thread '", thread.name(),
                                "' begins ", after, " ns after ", begun,
                                ", outside the recording, which ends at ",
                                of.until_nanos));
    }
    begun += after;
    const int64_t took = thread.took_nanos(i);
    if (took < 0 || took > of.until_nanos - begun) {
      return Wrong(absl::StrCat("event ", i, " of thread '", thread.name(),
                                "' takes ", took, " ns from ", begun,
                                ", beyond the end of the recording at ",
                                of.until_nanos));
    }
    read.events.push_back({.name = name,
                           .begun_nanos = begun,
                           .took_nanos = took,
                           .flow = thread.flow(i),
                           .number = thread.number(i)});
  }
  return read;
}

}  // namespace

absl::StatusOr<ProcessTimeline> ReadTimelinePart(absl::string_view bytes) {
  if (bytes.size() > kTimelinePartBytesMax) {
    return Wrong(absl::StrCat("it has ", bytes.size(), " bytes; at most ",
                              kTimelinePartBytesMax, " are allowed"));
  }
  timeline::Part part;
  if (!part.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return Wrong("it is no timeline.Part");
  if (part.from_nanos() < 0 || part.until_nanos() < part.from_nanos() ||
      part.until_nanos() > kTimelineNanosMax) {
    return Wrong(absl::StrCat("it is from ", part.from_nanos(), " to ",
                              part.until_nanos(), "; both lie in [0, ",
                              kTimelineNanosMax, "], in this order"));
  }
  if (part.from_wall_nanos() < 0 ||
      part.from_wall_nanos() > kTimelineNanosMax) {
    return Wrong(absl::StrCat("it began at the time of day ",
                              part.from_wall_nanos(), "; it lies in [0, ",
                              kTimelineNanosMax, "]"));
  }
  if (part.name_size() > kNamesMax || part.thread_size() > kThreadsMax) {
    return Wrong(absl::StrCat("it has ", part.name_size(), " names and ",
                              part.thread_size(), " threads; at most ",
                              kNamesMax, " and ", kThreadsMax, " are allowed"));
  }
  ProcessTimeline read = {.from_nanos = part.from_nanos(),
                          .until_nanos = part.until_nanos(),
                          .from_wall_nanos = part.from_wall_nanos()};
  for (std::string& name : *part.mutable_name()) {
    SL_RETURN_IF_ERROR(CheckName("events", name));
    read.names.push_back(std::move(name));
  }
  for (const timeline::Thread& thread : part.thread()) {
    SL_ASSIGN_OR_RETURN(ProcessTimeline::Thread of, ReadThread(thread, read));
    read.threads.push_back(std::move(of));
  }
  return read;
}

}  // namespace slackline
