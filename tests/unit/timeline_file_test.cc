// Goal: the file is one that Perfetto reads: slices nest and end, names and
// flows are those of the events, and PyTorch's profile lies where it was.
// Method: files by hand, decoded by the fields that Perfetto's own descriptors
// have (the numbers are written out here).
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/perfetto.pb.h"
#include "tests/support/temp_folder.h"
#include "tools/cli/job/perfetto_packets.h"
#include "tools/cli/job/timeline_collection.h"
#include "tools/cli/job/torch_profile.h"

namespace slackline::timeline_file_test {

using perfetto::TrackEvent;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

MemberTimeline OneThread(std::vector<ProcessTimeline::Event> events) {
  return {.number = 2,
          .name = "worker 1",
          .offset_nanos = 1000,
          .timeline = {.names = {"step", "push", "sentence"},
                       .threads = {{.name = "trainer", .events = events},
                                   {.name = "idle"}},
                       .from_nanos = 0,
                       .until_nanos = 5000,
                       .from_wall_nanos = 0}};
}

perfetto::Trace Decode(const absl::StatusOr<std::string>& packets) {
  perfetto::Trace trace;
  EXPECT_TRUE(packets.ok()) << packets.status();
  EXPECT_TRUE(packets.ok() && trace.ParseFromString(*packets));
  return trace;
}

// "1100 begin step", in the order of the file.
std::vector<std::string> Texts(const perfetto::Trace& trace) {
  std::map<uint64_t, std::string> names;
  std::vector<std::string> texts;
  for (const perfetto::TracePacket& packet : trace.packet()) {
    for (const auto& name : packet.interned_data().event_names())
      names[name.iid()] = name.name();
    if (!packet.has_track_event()) continue;
    const TrackEvent& event = packet.track_event();
    texts.push_back(
        absl::StrCat(packet.timestamp(),
                     event.type() == TrackEvent::TYPE_SLICE_BEGIN ? " begin "
                     : event.type() == TrackEvent::TYPE_SLICE_END ? " end"
                                                                  : " at ",
                     names[event.name_iid()]));
  }
  return texts;
}

TEST(PerfettoPackets, SlicesNestAndTimesAreOfTheFile) {
  const perfetto::Trace trace = Decode(PerfettoPackets(
      OneThread({{.name = 1, .begun_nanos = 100, .took_nanos = 50},
                 {.name = 0, .begun_nanos = 100, .took_nanos = 400},
                 {.name = 1, .begun_nanos = 300, .took_nanos = 900},
                 {.name = 2, .begun_nanos = 310},
                 {.name = 0, .begun_nanos = 500, .took_nanos = 10}})));
  EXPECT_THAT(Texts(trace),
              ElementsAre("1100 begin step", "1100 begin push", "1150 end",
                          "1300 begin push", "1310 at sentence", "1500 end",
                          "1500 end", "1500 begin step", "1510 end"));
}

TEST(PerfettoPackets, TracksNamesFlowsAndNumbers) {
  const perfetto::Trace trace = Decode(PerfettoPackets(OneThread(
      {{.name = 1, .begun_nanos = 1, .took_nanos = 1, .flow = 77, .number = 8},
       {.name = 0, .begun_nanos = 5, .took_nanos = 1, .number = 41}})));
  ASSERT_EQ(trace.packet_size(), 7) << "no track for a thread without events";
  EXPECT_EQ(trace.packet(0).track_descriptor().process().process_name(),
            "worker 1");
  const perfetto::TrackDescriptor& track = trace.packet(1).track_descriptor();
  EXPECT_EQ(track.thread().thread_name(), "trainer");
  EXPECT_EQ(track.parent_uuid(), trace.packet(0).track_descriptor().uuid());
  EXPECT_EQ(track.thread().pid(),
            trace.packet(0).track_descriptor().process().pid());
  const auto& annotations =
      trace.packet(2).interned_data().debug_annotation_names();
  const TrackEvent& push = trace.packet(3).track_event();
  EXPECT_EQ(push.track_uuid(), track.uuid());
  EXPECT_THAT(push.flow_ids(), ElementsAre(77));
  EXPECT_EQ(
      annotations[static_cast<int>(push.debug_annotations(0).name_iid() - 1)]
          .name(),
      "bytes");
  EXPECT_EQ(push.debug_annotations(0).int_value(), 8);
  const TrackEvent& step = trace.packet(5).track_event();
  EXPECT_TRUE(step.flow_ids().empty());
  EXPECT_EQ(
      annotations[static_cast<int>(step.debug_annotations(0).name_iid() - 1)]
          .name(),
      "step");
}

// As https://perfetto.dev has them: what reads the file knows only numbers.
TEST(PerfettoPackets, FieldsHaveTheNumbersOfTheFormat) {
  const auto number = [](const google::protobuf::Message& of,
                         const char* field) {
    return of.GetDescriptor()->FindFieldByName(field)->number();
  };
  const perfetto::TracePacket packet;
  EXPECT_EQ(number(perfetto::Trace(), "packet"), 1);
  EXPECT_EQ(number(packet, "timestamp"), 8);
  EXPECT_EQ(number(packet, "trusted_packet_sequence_id"), 10);
  EXPECT_EQ(number(packet, "track_event"), 11);
  EXPECT_EQ(number(packet, "interned_data"), 12);
  EXPECT_EQ(number(packet, "sequence_flags"), 13);
  EXPECT_EQ(number(packet, "track_descriptor"), 60);
  const perfetto::TrackDescriptor track;
  EXPECT_EQ(number(track, "uuid"), 1);
  EXPECT_EQ(number(track, "process"), 3);
  EXPECT_EQ(number(track, "thread"), 4);
  EXPECT_EQ(number(track, "parent_uuid"), 5);
  EXPECT_EQ(number(perfetto::ProcessDescriptor(), "pid"), 1);
  EXPECT_EQ(number(perfetto::ProcessDescriptor(), "process_name"), 6);
  EXPECT_EQ(number(perfetto::ThreadDescriptor(), "pid"), 1);
  EXPECT_EQ(number(perfetto::ThreadDescriptor(), "tid"), 2);
  EXPECT_EQ(number(perfetto::ThreadDescriptor(), "thread_name"), 5);
  const TrackEvent event;
  EXPECT_EQ(number(event, "debug_annotations"), 4);
  EXPECT_EQ(number(event, "type"), 9);
  EXPECT_EQ(number(event, "name_iid"), 10);
  EXPECT_EQ(number(event, "track_uuid"), 11);
  EXPECT_EQ(number(event, "flow_ids"), 47);
  EXPECT_EQ(number(perfetto::DebugAnnotation(), "name_iid"), 1);
  EXPECT_EQ(number(perfetto::DebugAnnotation(), "int_value"), 4);
  EXPECT_EQ(number(perfetto::InternedData(), "event_names"), 2);
  EXPECT_EQ(number(perfetto::InternedData(), "debug_annotation_names"), 3);
}

TEST(PerfettoPackets, AClockThatCannotBeIsRefused) {
  for (const int64_t offset : {int64_t{-1}, kTimelineNanosMax}) {
    MemberTimeline member = OneThread({});
    member.offset_nanos = offset;
    EXPECT_EQ(PerfettoPackets(member).status().code(),
              absl::StatusCode::kInvalidArgument)
        << offset;
  }
}

// ---- Profiles ---------------------------------------------------------------

class TorchProfileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    return folder_.Write("profile.json", text);
  }
  TempFolder folder_;
};

TEST_F(TorchProfileTest, LiesWhereItWasByTheTimeOfDay) {
  // The process' clock showed 5 s when it was 1,700,000,000 s of the day.
  ProcessTimeline timeline = {.names = {"step"},
                              .threads = {{.name = "trainer"}},
                              .from_nanos = 5'000'000'000,
                              .until_nanos = 6'000'000'000,
                              .from_wall_nanos = 1'700'000'000'000'000'000};
  ASSERT_TRUE(AddTorchProfile(Write(R"json({
    "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "x"}],
    "baseTimeNanoseconds": 1699999999000000000,
    "traceEvents": [
      {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9,
       "ts": 1000250.500, "dur": 10.25, "args": {"name": "no"}},
      {"ph": "M", "name": "thread_name", "pid": 9, "tid": 9, "ts": 0,
       "args": {"name": "thread 9 (python)"
}
},
      {"ph": "X", "name": "Trace", "pid": "Spans", "tid": "PyTorch",
       "ts": 1000000, "dur": 5},
      {"ph": "s", "id": 1, "pid": 9, "tid": 9, "ts": 1, "name": "ac2g"},
      {"ph": "X", "name": "before the clock", "pid": 9, "tid": 9,
       "ts": -9000000, "dur": 5},
      7, {"ph": 3}, {"ph": "X", "pid": 1, "tid": 1, "name": 5}
    ], "traceName": "x"
})json"),
                              &timeline)
                  .ok());
  ASSERT_EQ(timeline.threads.size(), 3);
  const ProcessTimeline::Thread& spans = timeline.threads[1];
  EXPECT_EQ(spans.name, "torch \"Spans\"/\"PyTorch\"");
  EXPECT_EQ(spans.events[0].begun_nanos, 5'000'000'000);
  const ProcessTimeline::Thread& ops = timeline.threads[2];
  EXPECT_EQ(ops.name, "torch thread 9 (python)");
  ASSERT_EQ(ops.events.size(), 1);
  EXPECT_EQ(timeline.names[static_cast<size_t>(ops.events[0].name)],
            "aten::mm");
  EXPECT_NEAR(static_cast<double>(ops.events[0].begun_nanos), 5'000'250'500.0,
              300);
  EXPECT_EQ(ops.events[0].took_nanos, 10'250);
}

TEST_F(TorchProfileTest, WhatIsNoneIsNamed) {
  ProcessTimeline timeline;
  for (const char* const text :
       {"", "{", "[]", "{}", R"({"traceEvents": []})",
        R"({"other": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1,
            "dur": 1}]})"}) {
    const std::string path = Write(text);
    const absl::Status added = AddTorchProfile(path, &timeline);
    EXPECT_EQ(added.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(added.message()), HasSubstr(path));
    EXPECT_TRUE(timeline.threads.empty());
  }
  EXPECT_THAT(std::string(AddTorchProfile("/nowhere", &timeline).message()),
              HasSubstr("/nowhere: the profile cannot be read"));
}

// ---- What is said -----------------------------------------------------------

TEST(ClockAlignment, NamesThoseThatAreWorseThanMost) {
  ClockAlignment clocks;
  EXPECT_EQ(clocks.Text(), "");
  clocks.Add("server 0", 30);
  clocks.Add("worker 0", 200);
  clocks.Add("worker 1", 180);
  clocks.Add("worker 3", 1400);
  EXPECT_EQ(clocks.Text(),
            "clocks agree with the coordinator's to within 0.2 ms; worker 3: "
            "1.4 ms");
  clocks.Add("worker 4", -1);
  EXPECT_THAT(clocks.Text(),
              HasSubstr("; not measured of worker 4, whose times are of"));
}

TEST(Timeline, NamesOfMembersAndFiles) {
  EXPECT_EQ(TimelineName(absl::FromCivil(absl::CivilSecond(2026, 1, 2, 3, 4, 5),
                                         absl::UTCTimeZone())),
            "timeline-20260102T030405Z.pftrace");
  EXPECT_EQ(NamesOf({"a", "b"}), "a, b");
  EXPECT_EQ(NamesOf({"a", "b", "c", "d", "e", "f", "g"}),
            "a, b, c, d, e and 2 more");
  TempFolder folder;
  EXPECT_TRUE(CheckTimelinePath(folder.path() + "/new").ok());
  EXPECT_EQ(CheckTimelinePath(folder.path()).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace slackline::timeline_file_test
