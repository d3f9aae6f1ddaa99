// Goal: one file has what all processes of a job did, each step of each worker
// whole, and messages that begin where they were sent; and whatever happens
// meanwhile, the user gets what there is, or is told why not.
// Method: `slackline trace` and `run --timeline` on jobs of real processes; the
// files are decoded by the fields of Perfetto's format.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/perfetto.pb.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::timeline_test {

using ::testing::HasSubstr;
using ::testing::Not;

struct Slice {
  std::string process;
  std::string thread;
  std::string name;
  int64_t begun = 0;
  int64_t end = 0;
  uint64_t flow = 0;
  int64_t number = 0;
  int depth = 0;  // What encloses it on its thread.
};

// The slices of a file, those of a thread in the order in which they begin.
// Fails the test if they do not nest.
std::vector<Slice> ReadTimeline(const std::string& path) {
  perfetto::Trace trace;
  EXPECT_TRUE(trace.ParseFromString(ReadText(path))) << path;
  std::map<uint64_t, std::string> processes;
  std::map<uint64_t, std::pair<std::string, std::string>> tracks;
  std::map<uint32_t, std::map<uint64_t, std::string>> names;
  std::map<uint64_t, std::vector<size_t>> open;
  std::vector<Slice> slices;
  for (const perfetto::TracePacket& packet : trace.packet()) {
    if (packet.has_track_descriptor()) {
      const perfetto::TrackDescriptor& track = packet.track_descriptor();
      if (track.has_process()) {
        processes[track.uuid()] = track.process().process_name();
      } else {
        tracks[track.uuid()] = {processes[track.parent_uuid()],
                                track.thread().thread_name()};
      }
    }
    auto& of_sequence = names[packet.trusted_packet_sequence_id()];
    for (const auto& name : packet.interned_data().event_names())
      of_sequence[name.iid()] = name.name();
    if (!packet.has_track_event()) continue;
    const perfetto::TrackEvent& event = packet.track_event();
    const auto at = static_cast<int64_t>(packet.timestamp());
    std::vector<size_t>& enclosing = open[event.track_uuid()];
    if (event.type() == perfetto::TrackEvent::TYPE_SLICE_END) {
      if (enclosing.empty()) {
        ADD_FAILURE() << "a slice ends that has not begun";
        continue;
      }
      slices[enclosing.back()].end = at;
      enclosing.pop_back();
      continue;
    }
    const auto& [process, thread] = tracks[event.track_uuid()];
    slices.push_back({.process = process,
                      .thread = thread,
                      .name = of_sequence[event.name_iid()],
                      .begun = at,
                      .end = at,
                      .flow = event.flow_ids().empty() ? 0 : event.flow_ids(0),
                      .number = event.debug_annotations().empty()
                                    ? 0
                                    : event.debug_annotations(0).int_value(),
                      .depth = static_cast<int>(enclosing.size())});
    if (event.type() == perfetto::TrackEvent::TYPE_SLICE_BEGIN)
      enclosing.push_back(slices.size() - 1);
  }
  for (const auto& [track, enclosing] : open)
    EXPECT_TRUE(enclosing.empty()) << "slices of " << track << " do not end";
  return slices;
}

class Timeline : public JobTest {
 protected:
  // A job of two servers and two workers that goes on until it is stopped.
  std::unique_ptr<Process> StartLongJob(
      const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {
        "--mode=bsp", "--set=train.epochs=1000",
        "--set=worker[0].conditions.step_ms=5", "--set=limits.lease_ms=2000"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return StartRun("run", Write("job.textproto", SmallJob({.workers = 2})),
                    arguments);
  }
  void Stop(Process* run) {
    EXPECT_EQ(StartTool("stop", {"stop", Path("run")})->WaitText(kJobMax),
              kEndedWell);
    EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  }
  std::string Config() const { return Path("run/cluster.textproto"); }
};

// Of those on `thread` of processes whose names begin so.
std::vector<Slice> Of(const std::vector<Slice>& slices,
                      const std::string& process, const std::string& thread) {
  std::vector<Slice> of;
  for (const Slice& slice : slices) {
    if (absl::StartsWith(slice.process, process) && slice.thread == thread)
      of.push_back(slice);
  }
  return of;
}

// In nanoseconds: how far apart two members' clocks may be, as the file has
// them.
int64_t ErrorBound(const std::string& output) {
  double ms = 0;
  const size_t at = output.find("to within ");
  EXPECT_NE(at, std::string::npos) << output;
  if (at == std::string::npos) return 0;
  const std::string rest = output.substr(at + 10);
  EXPECT_TRUE(absl::SimpleAtod(rest.substr(0, rest.find(' ')), &ms)) << rest;
  return static_cast<int64_t>(2e6 * ms);
}

void ExpectPhasesCoverSteps(const std::vector<Slice>& trainer) {
  int steps = 0;
  int64_t last = -1;
  for (size_t i = 0; i < trainer.size(); ++i) {
    if (trainer[i].name != "step") continue;
    const Slice& step = trainer[i];
    EXPECT_EQ(step.depth, 0);
    if (last >= 0) {
      EXPECT_EQ(step.number, last + 1);
    }
    last = step.number;
    if (++steps == 1) continue;  // Its phases had begun before the recording.
    int64_t covered = 0;
    for (size_t k = i + 1; k < trainer.size() && trainer[k].depth == 1; ++k) {
      EXPECT_EQ(trainer[k].number, step.number) << trainer[k].name;
      covered += trainer[k].end - trainer[k].begun;
    }
    EXPECT_EQ(covered, step.end - step.begun) << "step " << step.number;
  }
  EXPECT_GE(steps, 20);
}

TEST_F(Timeline, HasAllProcessesTheirStepsMessagesAndAMove) {
  const std::unique_ptr<Process> run = StartLongJob();
  ASSERT_TRUE(AwaitProgress(Config()).has_value()) << run->Output();
  const std::string out = Path("timeline");
  const std::unique_ptr<Process> trace = StartTool(
      "trace", {"trace", Path("run"), "--seconds", "3", "--out", out});
  ASSERT_TRUE(WaitUntil(kJobMax, [&] {
    return absl::StrContains(trace->Output(), "records for");
  })) << trace->Output();
  EXPECT_EQ(StartTool("move", {"move", Path("run"), "0-1", "--to", "1"})
                ->WaitText(kJobMax),
            kEndedWell);
  ASSERT_EQ(trace->WaitText(kJobMax), kEndedWell) << trace->Output();
  const std::string said = trace->Output();
  EXPECT_THAT(said, HasSubstr("of 4 processes; clocks agree"));
  EXPECT_THAT(said, HasSubstr("https://ui.perfetto.dev"));
  EXPECT_THAT(said, Not(HasSubstr("had no room")));
  // What is there already is not written over.
  EXPECT_EQ(StartTool("again", {"trace", Path("run"), "--out", out})
                ->WaitText(kJobMax),
            kFailed);
  Stop(run.get());

  const std::vector<Slice> slices = ReadTimeline(out);
  std::map<uint64_t, Slice> applied;
  for (const std::string server : {"server 0 ", "server 1 "}) {
    const std::vector<Slice> shard = Of(slices, server, "shard 0");
    EXPECT_FALSE(shard.empty()) << server;
    for (const Slice& slice : shard)
      if (slice.name == "apply") applied.emplace(slice.flow, slice);
  }
  for (const std::string worker : {"worker 0 ", "worker 1 "}) {
    SCOPED_TRACE(worker);
    ExpectPhasesCoverSteps(Of(slices, worker, "trainer"));
    int pushes = 0;
    int pulls = 0;
    int arrived = 0;
    for (const Slice& slice : Of(slices, worker, "messages")) {
      EXPECT_EQ(slice.flow != 0, slice.name != "message") << slice.name;
      pulls += slice.name == "pull";
      if (slice.name != "push") continue;
      ++pushes;
      const auto there = applied.find(slice.flow);
      if (there == applied.end()) continue;
      ++arrived;
      EXPECT_GE(there->second.begun, slice.begun - ErrorBound(said));
      EXPECT_EQ(there->second.number, slice.number) << "bytes";
    }
    EXPECT_GE(pulls, 20);
    EXPECT_GE(pushes, 20);
    // At the ends of the recording one of the two may be missing.
    EXPECT_GE(arrived, pushes - pushes / 10);
  }
  const std::vector<Slice> coordinator = Of(slices, "server 0 ", "coordinator");
  EXPECT_TRUE(std::any_of(
      coordinator.begin(), coordinator.end(), [](const Slice& slice) {
        return absl::StrContains(slice.name,
                                 "has moved from server 0 to server 1");
      }));
  EXPECT_TRUE(
      std::any_of(coordinator.begin(), coordinator.end(),
                  [](const Slice& slice) { return slice.name == "view"; }));
  EXPECT_TRUE(Of(slices, "server 1 ", "coordinator").empty());
}

TEST_F(Timeline, WhoDiesMeanwhileIsNamedAndTheOthersAreThere) {
  const std::unique_ptr<Process> run = StartLongJob();
  const auto status = AwaitProgress(Config());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const std::string out = Path("timeline");
  const std::unique_ptr<Process> trace = StartTool(
      "trace", {"trace", Path("run"), "--seconds", "2", "--out", out});
  ASSERT_TRUE(WaitUntil(kJobMax, [&] {
    return absl::StrContains(trace->Output(), "records for");
  })) << trace->Output();
  SignalProcess(WorkerPid(*status, 1), SIGKILL);
  ASSERT_EQ(trace->WaitText(kJobMax), kEndedWell) << trace->Output();
  EXPECT_THAT(trace->Output(), HasSubstr("of 3 processes"));
  EXPECT_THAT(trace->Output(), HasSubstr("worker 1"));
  EXPECT_FALSE(Of(ReadTimeline(out), "worker 0 ", "trainer").empty());
  Stop(run.get());
}

TEST_F(Timeline, WithoutAWorkerInItTheCommandFails) {
  const std::unique_ptr<Process> run = StartLongJob();
  const auto status = AwaitProgress(Config());
  ASSERT_TRUE(status.has_value()) << run->Output();
  for (const int rank : {0, 1})
    SignalProcess(WorkerPid(*status, rank), SIGKILL);
  const std::unique_ptr<Process> trace = StartTool(
      "trace",
      {"trace", Path("run"), "--seconds", "1", "--out", Path("timeline")});
  EXPECT_EQ(trace->WaitText(kJobMax), kFailed) << trace->Output();
  EXPECT_THAT(trace->Output(), HasSubstr("worker 0"));
  EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
}

TEST_F(Timeline, ARunSaysWhenItsRecordingHasComeIn) {
  const std::unique_ptr<Process> run = StartLongJob({"--timeline=0.5"});
  EXPECT_TRUE(WaitUntil(kJobMax, [&] {
    return absl::StrContains(run->Output(), "Open it at https://ui.perfetto");
  })) << run->Output();
  EXPECT_TRUE(run->running());
  Stop(run.get());
}

TEST_F(Timeline, OneAtATimeAndAJobThatEndsGivesWhatThereIs) {
  const std::unique_ptr<Process> run = StartLongJob({"--timeline=100"});
  ASSERT_TRUE(AwaitProgress(Config()).has_value()) << run->Output();
  const std::unique_ptr<Process> second =
      StartTool("second", {"trace", Path("run"), "--seconds", "1"});
  EXPECT_EQ(second->WaitText(kJobMax), kFailed);
  EXPECT_THAT(second->Output(),
              HasSubstr("somebody else has asked for a timeline"));
  for (const auto& [seconds, bound] :
       {std::pair("0", "0.1"), {"121", "120"}, {"x", "number"}}) {
    const std::unique_ptr<Process> wrong =
        StartTool(absl::StrCat("wrong-", seconds),
                  {"trace", Path("run"), absl::StrCat("--seconds=", seconds)});
    EXPECT_EQ(wrong->WaitText(kJobMax), "exited with code 2");
    EXPECT_THAT(wrong->Output(), HasSubstr("--seconds")) << bound;
  }
  Stop(run.get());
  EXPECT_THAT(run->Output(), HasSubstr("of 4 processes"));
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(Path("run"))) {
    if (entry.path().extension() == ".pftrace") files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 1) << "and nothing of the second one";
  // From the first step on.
  const std::vector<Slice> trainer =
      Of(ReadTimeline(files[0]), "worker 0 ", "trainer");
  const auto first =
      std::find_if(trainer.begin(), trainer.end(),
                   [](const Slice& slice) { return slice.name == "step"; });
  ASSERT_NE(first, trainer.end());
  EXPECT_LE(first->number, 50) << "it was asked for while the job formed";
}

}  // namespace slackline::timeline_test
