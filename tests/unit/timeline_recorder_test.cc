// Goal: what threads did between the beginning and the end of a recording is
// there, bounded, and a reader takes nothing that makes no sense.
// Method: times by hand; threads that record while recordings begin and end.
#include <atomic>
#include <functional>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/timeline/message_event.h"
#include "common/timeline/part_reader.h"
#include "common/timeline/recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::timeline_recorder_test {

using ::testing::HasSubstr;

constexpr size_t kPlenty = kTimelinePartBytesMax;

absl::Time At(int ms) {
  return absl::UnixEpoch() + absl::Seconds(100) + absl::Milliseconds(ms);
}
TimelineEvent Event(const char* name, int begun, int until,
                    int64_t number = 0) {
  return {
      .name = name, .begun = At(begun), .until = At(until), .number = number};
}

ProcessTimeline Read(const timeline::Part& part) {
  const absl::StatusOr<ProcessTimeline> read =
      ReadTimelinePart(part.SerializeAsString());
  EXPECT_TRUE(read.ok()) << read.status();
  return read.value_or(ProcessTimeline());
}

// "name[begun, end) number" of each event, in milliseconds after At(0).
std::vector<std::string> Texts(const ProcessTimeline& timeline,
                               size_t thread = 0) {
  std::vector<std::string> texts;
  const int64_t zero = absl::ToUnixNanos(At(0));
  for (const ProcessTimeline::Event& event : timeline.threads[thread].events) {
    const int64_t begun = (event.begun_nanos - zero) / 1'000'000;
    texts.push_back(absl::StrCat(
        timeline.names[static_cast<size_t>(event.name)], "[", begun, ", ",
        begun + event.took_nanos / 1'000'000, ") ", event.number));
  }
  return texts;
}

TEST(TimelineRecorder, RecordsWhatIsDoneMeanwhileAndNothingElse) {
  TimelineRecorder recorder;
  TimelineTrack* const track = recorder.TrackOf("trainer");
  EXPECT_EQ(recorder.TrackOf("trainer"), track);
  EXPECT_FALSE(track->on());
  track->Add(Event("before", -20, -10));
  recorder.Begin(At(0), absl::FromUnixSeconds(1'700'000'000));
  EXPECT_TRUE(track->on());
  track->Add(Event("long before", -9, -1));  // Told late.
  track->Add(Event("across", -5, 3, 7));
  track->Add(Event("inner", 11, 12));
  track->Add(Event("outer", 10, 20));
  recorder.TrackOf("late")->Add(Event("a", 15, 16));
  track->Add(Event("goes on", 25, 40));
  const timeline::Part part = recorder.End(At(30), kPlenty);
  EXPECT_FALSE(track->on());
  track->Add(Event("after", 31, 32));

  const ProcessTimeline read = Read(part);
  EXPECT_THAT(Texts(read),
              ::testing::ElementsAre("across[0, 3) 7", "outer[10, 20) 0",
                                     "inner[11, 12) 0", "goes on[25, 30) 0"));
  ASSERT_EQ(read.threads.size(), 2);
  EXPECT_EQ(read.threads[1].name, "late");
  EXPECT_EQ(read.from_wall_nanos, 1'700'000'000'000'000'000);
  // Nothing of it is left for the next one.
  recorder.Begin(At(50), absl::UnixEpoch());
  EXPECT_TRUE(Texts(Read(recorder.End(At(60), kPlenty))).empty());
  const ProcessTimeline never = Read(recorder.End(At(70), kPlenty));
  EXPECT_TRUE(never.threads.empty());
}

TEST(TimelineRecorder, TheOldestEventsGoAndAreCounted) {
  TimelineRecorder recorder({.events_per_track = 4});
  TimelineTrack* const track = recorder.TrackOf("shard 0");
  recorder.Begin(At(0), absl::UnixEpoch());
  for (int i = 0; i < 10; ++i) track->Add(Event("a", i, i + 1, i));
  const ProcessTimeline read = Read(recorder.End(At(30), kPlenty));
  EXPECT_THAT(Texts(read), ::testing::ElementsAre("a[6, 7) 6", "a[7, 8) 7",
                                                  "a[8, 9) 8", "a[9, 10) 9"));
  EXPECT_EQ(read.threads[0].lost, 6);
}

TEST(TimelineRecorder, APartHasNoMoreBytesThanItMayAndKeepsTheNewest) {
  TimelineRecorder recorder;
  for (const size_t bytes_max : {size_t{0}, size_t{300}, size_t{5000}}) {
    recorder.Begin(At(0), absl::UnixEpoch());
    for (int i = 0; i < 1000; ++i) {
      recorder.TrackOf(i % 3 == 0 ? "x" : "y")
          ->Add(Event(i % 2 == 0 ? "even" : "odd", i, i + 1, i));
    }
    const timeline::Part part = recorder.End(At(2000), bytes_max);
    const ProcessTimeline read = Read(part);
    int64_t kept = 0;
    int64_t lost = 0;
    for (const ProcessTimeline::Thread& thread : read.threads) {
      kept += static_cast<int64_t>(thread.events.size());
      lost += thread.lost;
    }
    EXPECT_EQ(kept + lost, 1000);
    if (bytes_max < 5000) {
      EXPECT_EQ(kept, 0) << "headers alone are more";
    } else {
      EXPECT_LE(part.ByteSizeLong(), bytes_max);
      EXPECT_GE(kept, 200) << "about 17 bytes each";
      int64_t smallest = 1000;
      for (const ProcessTimeline::Thread& thread : read.threads) {
        for (const ProcessTimeline::Event& event : thread.events)
          smallest = std::min(smallest, event.number);
      }
      EXPECT_EQ(smallest, 1000 - kept) << "the newest of all tracks";
    }
  }
}

TEST(TimelineRecorder, SentencesAreBoundedAndText) {
  TimelineRecorder recorder;
  TimelineTrack* const track = recorder.TrackOf("coordinator");
  recorder.Begin(At(0), absl::UnixEpoch());
  track->AddSentence("worker 1 has joined", At(1));
  track->AddSentence("worker 1 has joined", At(2));
  track->AddSentence("\xff", At(3));
  track->AddSentence(std::string(239, 'a') + "\xc3\xa4", At(4));
  for (size_t i = 0; i < TimelineTrack::kSentencesMax; ++i)
    track->AddSentence(absl::StrCat("sentence ", i), At(5));
  const ProcessTimeline read = Read(recorder.End(At(30), kPlenty));
  const std::vector<std::string> expected = {
      "worker 1 has joined[1, 1) 0", "worker 1 has joined[2, 2) 0",
      "\\xff[3, 3) 0", std::string(239, 'a') + "[4, 4) 0"};
  EXPECT_THAT(Texts(read), ::testing::IsSupersetOf(expected));
  EXPECT_EQ(read.names.size(), TimelineTrack::kSentencesMax);
  EXPECT_EQ(read.threads[0].lost, 3);
}

// With TSAN: threads record while recordings begin and end.
TEST(TimelineRecorder, ThreadsRecordWhileRecordingsBeginAndEnd) {
  TimelineRecorder recorder({.events_per_track = 100});
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; !stop.load(); ++i) {
        TimelineTrack* const track =
            recorder.TrackOf(absl::StrCat("thread ", i % 3 == 0 ? 9 : t));
        track->Add(Event("a", 1, 2, i));
        track->AddSentence("b", At(1));
      }
    });
  }
  int64_t events = 0;
  for (int i = 0; i < 50 || events == 0; ++i) {
    recorder.Begin(At(0), absl::UnixEpoch());
    for (const auto& thread : Read(recorder.End(At(3), kPlenty)).threads)
      events += static_cast<int64_t>(thread.events.size());
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
}

// ---- Messages ---------------------------------------------------------------

TEST(MessageEvent, BothEndsGiveAMessageAndItsAnswerTheSameFlow) {
  Message push;
  push.header.mutable_push_request()->set_request_id(7);
  push.payloads = {Payload::Copy("12345678", 8)};
  Message reply;
  reply.header.mutable_push_reply()->set_request_id(7);
  Message pull;
  pull.header.mutable_pull_request()->add_pull()->set_id(7);
  Message answer;
  answer.header.mutable_pull_reply()->add_answer()->set_pull(7);
  const auto at = [&](const Message& message, MessageEnd end,
                      Incarnation worker = 3) {
    return EventOf(message, end, worker, At(0), At(1));
  };
  const uint64_t flow = at(push, MessageEnd::kWorker).flow;
  EXPECT_NE(flow, 0);
  EXPECT_EQ(at(push, MessageEnd::kShardThread).flow, flow);
  EXPECT_EQ(at(reply, MessageEnd::kShardThread).flow, flow);
  EXPECT_EQ(at(reply, MessageEnd::kWorker).flow, flow);
  EXPECT_NE(at(push, MessageEnd::kWorker, 4).flow, flow);
  const uint64_t pulled = at(pull, MessageEnd::kWorker).flow;
  EXPECT_NE(pulled, flow);
  EXPECT_EQ(at(answer, MessageEnd::kShardThread).flow, pulled);
  EXPECT_EQ(at(answer, MessageEnd::kWorker).flow, pulled);
  EXPECT_EQ(at(push, MessageEnd::kShardThread, 0).flow, 0);
  EXPECT_EQ(at(push, MessageEnd::kShardThread).number, 8);
  EXPECT_STREQ(at(push, MessageEnd::kShardThread).name, "apply");
  EXPECT_STREQ(at(answer, MessageEnd::kWorker).name, "pulled");
  EXPECT_EQ(at(Message(), MessageEnd::kWorker).flow, 0);
}

// ---- The reader -------------------------------------------------------------

timeline::Part SmallPart() {
  timeline::Part part;
  part.add_name("a");
  part.set_from_nanos(1000);
  part.set_until_nanos(2000);
  timeline::Thread& thread = *part.add_thread();
  thread.set_name("t");
  thread.add_name_index(0);
  thread.add_begun_nanos(1000);
  thread.add_took_nanos(0);
  thread.add_flow(0);
  thread.add_number(-1);
  return part;
}

TEST(PartReader, RefusesWhatMakesNoSenseAndSaysWhat) {
  EXPECT_TRUE(ReadTimelinePart(SmallPart().SerializeAsString()).ok());
  EXPECT_TRUE(ReadTimelinePart("").ok()) << "of a process without events";
  const auto refused = [](const std::function<void(timeline::Part*)>& change) {
    timeline::Part part = SmallPart();
    change(&part);
    const absl::Status read =
        ReadTimelinePart(part.SerializeAsString()).status();
    EXPECT_EQ(read.code(), absl::StatusCode::kInvalidArgument);
    return std::string(read.message());
  };
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  using timeline::Part;
  EXPECT_THAT(refused([](Part* p) { p->mutable_thread(0)->add_flow(1); }),
              HasSubstr("equally many"));
  EXPECT_THAT(refused([](Part* p) { p->mutable_thread(0)->clear_number(); }),
              HasSubstr("equally many"));
  for (const int32_t name : {-1, 1}) {
    EXPECT_THAT(refused([&](Part* p) {
                  p->mutable_thread(0)->set_name_index(0, name);
                }),
                HasSubstr("there are 1"));
  }
  for (const int64_t begun : {int64_t{-1}, int64_t{1001}, kLargest}) {
    EXPECT_THAT(refused([&](Part* p) {
                  p->mutable_thread(0)->set_begun_nanos(0, begun);
                }),
                HasSubstr("outside the recording"));
  }
  for (const int64_t took : {int64_t{-1}, int64_t{1}, kLargest}) {
    EXPECT_THAT(refused([&](Part* p) {
                  p->mutable_thread(0)->set_took_nanos(0, took);
                }),
                HasSubstr("beyond the end"));
  }
  EXPECT_THAT(refused([&](Part* p) { p->set_until_nanos(kLargest); }),
              HasSubstr("in this order"));
  EXPECT_THAT(refused([](Part* p) { p->set_until_nanos(999); }),
              HasSubstr("in this order"));
  EXPECT_THAT(refused([](Part* p) { p->set_from_nanos(-1); }),
              HasSubstr("in this order"));
  EXPECT_THAT(refused([](Part* p) { p->set_from_wall_nanos(-1); }),
              HasSubstr("time of day"));
  EXPECT_THAT(refused([](Part* p) { p->mutable_thread(0)->set_lost(-1); }),
              HasSubstr("at least 0"));
  EXPECT_THAT(refused([](Part* p) { p->add_name(std::string(1025, 'a')); }),
              HasSubstr("at most 1024"));
  EXPECT_THAT(std::string(ReadTimelinePart("\x08").status().message()),
              HasSubstr("no timeline.Part"));
  EXPECT_THAT(
      std::string(ReadTimelinePart(std::string(kTimelinePartBytesMax + 1, 'a'))
                      .status()
                      .message()),
      HasSubstr("at most 8388608"));
}

}  // namespace slackline::timeline_recorder_test
