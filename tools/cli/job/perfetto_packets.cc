#include "tools/cli/job/perfetto_packets.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/timeline/event_names.h"
#include "proto/perfetto.pb.h"

namespace slackline {
namespace {

using perfetto::TrackEvent;

// Of a process, so that the ids of its threads are no other one's.
constexpr int kThreadsMax = 10'000;

// What the number of an event is, as an index into kAnnotations; 0: nothing.
constexpr std::array kAnnotations = {"", "step", "bytes", "view", "checkpoint"};

int AnnotationOf(absl::string_view name) {
  namespace names = timeline_names;
  for (const char* const of_step :
       {names::kStep, names::kLoading, names::kComputing, names::kWaiting,
        names::kPushing, names::kPulling, names::kReducing}) {
    if (name == of_step) return 1;
  }
  for (const char* const of_bytes :
       {names::kPush, names::kApply, names::kAcknowledge, names::kAcknowledged,
        names::kPull, names::kLookUp, names::kAnswer, names::kPulled,
        names::kMessage, names::kHandOver, names::kSum, names::kAllReduce,
        names::kBroadcast}) {
    if (name == of_bytes) return 2;
  }
  if (name == names::kView) return 3;
  if (name == names::kWritePart) return 4;
  return 0;
}

// The packets of one thread.
class ThreadPackets {
 public:
  ThreadPackets(uint32_t sequence, uint64_t track, int64_t offset,
                perfetto::Trace* to)
      : sequence_(sequence), track_(track), offset_(offset), to_(*to) {}

  void Begin(const std::vector<std::string>& names,
             const ProcessTimeline::Thread& thread) {
    perfetto::TracePacket& packet = *NewPacket();
    packet.set_sequence_flags(
        perfetto::TracePacket::SEQ_INCREMENTAL_STATE_CLEARED);
    std::vector<bool> used(names.size());
    for (const ProcessTimeline::Event& event : thread.events)
      used[static_cast<size_t>(event.name)] = true;
    perfetto::InternedData& interned = *packet.mutable_interned_data();
    for (size_t i = 0; i < names.size(); ++i) {
      annotations_.push_back(AnnotationOf(names[i]));
      if (!used[i]) continue;
      auto& name = *interned.add_event_names();
      name.set_iid(i + 1);
      name.set_name(names[i]);
    }
    for (size_t i = 1; i < kAnnotations.size(); ++i) {
      auto& name = *interned.add_debug_annotation_names();
      name.set_iid(i);
      name.set_name(kAnnotations[i]);
    }
  }

  void Add(ProcessTimeline::Event event) {
    EndUntil(event.begun_nanos);
    int64_t end = event.begun_nanos + event.took_nanos;
    if (!open_.empty()) end = std::min(end, open_.back());
    TrackEvent& slice = *NewEvent(event.begun_nanos);
    slice.set_name_iid(static_cast<uint64_t>(event.name) + 1);
    if (event.flow != 0) slice.add_flow_ids(event.flow);
    if (const int of = annotations_[static_cast<size_t>(event.name)]; of != 0) {
      auto& annotation = *slice.add_debug_annotations();
      annotation.set_name_iid(static_cast<uint64_t>(of));
      annotation.set_int_value(event.number);
    }
    if (event.took_nanos == 0) return slice.set_type(TrackEvent::TYPE_INSTANT);
    slice.set_type(TrackEvent::TYPE_SLICE_BEGIN);
    open_.push_back(end);
  }

  // Events that end by then do.
  void EndUntil(int64_t nanos) {
    while (!open_.empty() && open_.back() <= nanos) {
      NewEvent(open_.back())->set_type(TrackEvent::TYPE_SLICE_END);
      open_.pop_back();
    }
  }

 private:
  perfetto::TracePacket* NewPacket() {
    perfetto::TracePacket* const packet = to_.add_packet();
    packet->set_trusted_packet_sequence_id(sequence_);
    return packet;
  }
  TrackEvent* NewEvent(int64_t nanos) {
    perfetto::TracePacket& packet = *NewPacket();
    packet.set_sequence_flags(
        perfetto::TracePacket::SEQ_NEEDS_INCREMENTAL_STATE);
    packet.set_timestamp(static_cast<uint64_t>(nanos + offset_));
    packet.mutable_track_event()->set_track_uuid(track_);
    return packet.mutable_track_event();
  }

  const uint32_t sequence_;
  const uint64_t track_;
  const int64_t offset_;
  perfetto::Trace& to_;
  std::vector<int> annotations_;  // By name.
  std::vector<int64_t> open_;     // The ends of what encloses the next event.
};

}  // namespace

absl::StatusOr<std::string> PerfettoPackets(MemberTimeline member) {
  ProcessTimeline& timeline = member.timeline;
  for (const int64_t nanos : {timeline.from_nanos, timeline.until_nanos}) {
    // Neither sum can overflow: the reader has bounded the times.
    if (member.offset_nanos > kTimelineNanosMax - nanos ||
        member.offset_nanos < -nanos) {
      return absl::InvalidArgumentError(
          absl::StrCat(member.name, ": its clock is said to be ",
                       member.offset_nanos, " ns off at ", nanos,
                       ", which is no time in [0, ", kTimelineNanosMax, "]"));
    }
  }
  const int32_t pid = member.number + 1;
  const auto id_of = [&](size_t thread) {
    return static_cast<uint64_t>(pid) * kThreadsMax + thread;
  };
  perfetto::Trace trace;
  perfetto::TrackDescriptor& process =
      *trace.add_packet()->mutable_track_descriptor();
  process.set_uuid(id_of(0));
  process.mutable_process()->set_pid(pid);
  process.mutable_process()->set_process_name(member.name);
  const size_t count =
      std::min<size_t>(timeline.threads.size(), kThreadsMax - 1);
  for (size_t i = 0; i < count; ++i) {
    ProcessTimeline::Thread& thread = timeline.threads[i];
    if (thread.events.empty()) continue;
    const uint64_t id = id_of(i + 1);
    perfetto::TrackDescriptor& track =
        *trace.add_packet()->mutable_track_descriptor();
    track.set_uuid(id);
    track.set_parent_uuid(id_of(0));
    track.mutable_thread()->set_pid(pid);
    track.mutable_thread()->set_tid(static_cast<int64_t>(id));
    track.mutable_thread()->set_thread_name(thread.name);
    // What encloses others goes first. It was recorded last, since events are
    // recorded when they end.
    std::reverse(thread.events.begin(), thread.events.end());
    std::stable_sort(
        thread.events.begin(), thread.events.end(),
        [](const ProcessTimeline::Event& a, const ProcessTimeline::Event& b) {
          return a.begun_nanos != b.begun_nanos ? a.begun_nanos < b.begun_nanos
                                                : a.took_nanos > b.took_nanos;
        });
    ThreadPackets packets(static_cast<uint32_t>(id), id, member.offset_nanos,
                          &trace);
    packets.Begin(timeline.names, thread);
    for (const ProcessTimeline::Event& event : thread.events)
      packets.Add(event);
    packets.EndUntil(kTimelineNanosMax);
  }
  return trace.SerializeAsString();
}

}  // namespace slackline
