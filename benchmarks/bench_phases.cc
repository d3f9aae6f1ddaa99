// What do the phases of steps cost, and a timeline of them, beside the step of
// an MLP?
//
// A worker reads the clock around each gradient that it hands over and each
// wait, keeps its last 20 steps, makes their means, and copies all that into
// what heartbeats take along. A shard thread reads the clock twice more for
// each message. Both are done here as they are in a step over servers, in turn
// with the step itself: forward and backward of the MLP 784-512-512-10 with 64
// examples, on one thread. Expected: about 20 readings of a clock, 25 ns each,
// and a few hundred additions, so around a microsecond, of milliseconds.
//
// A timeline has each phase as an event, and four messages for each table at
// the worker; at a shard thread three events for each message. All that is done
// three times, in turn: without a timeline, with one that nobody records, and
// while it is recorded. Expected: an atomic load for each event, 1 ns or less;
// and recorded a lock and one more reading of the clock for most, so 50 ns.
//
// The bounds are 1 % of the step for phases, and 3 % for a recording; the
// program fails beyond them, but not with --smoke. stdout: one JSON line.
// stderr: the same as sentences.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/report.h"
#include "common/rng.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/timeline/event_names.h"
#include "common/timeline/message_event.h"
#include "common/timeline/recorder.h"
#include "common/view/initializer.h"
#include "worker/model/compute.h"
#include "worker/model/model.h"
#include "worker/session/step_clock.h"

namespace slackline::bench {
namespace {

constexpr int kFeatures = 784;
constexpr int kClasses = 10;
constexpr int kExamples = 64;
constexpr double kShareMax = 0.01;
constexpr double kRecordedShareMax = 0.03;

struct Options {
  int steps = 20;
  int repeats = 15;
  uint64_t seed = 1;
  bool smoke = false;
};

double SecondsOf(int times, const auto& what) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
             .count() /
         times;
}

// A push and a pull, and what answers them.
std::vector<Message> Messages() {
  std::vector<Message> messages(4);
  messages[0].header.mutable_push_request()->set_request_id(1);
  messages[1].header.mutable_push_reply()->set_request_id(1);
  messages[2].header.mutable_pull_request()->add_pull()->set_id(2);
  messages[3].header.mutable_pull_reply()->add_answer()->set_pull(2);
  for (Message& message : messages)
    message.payloads.push_back(Payload::Allocate(64));
  return messages;
}

// As Session, RunReport, WorkerCore and WorkerLoop do it in a step over
// servers. The tracks may be null.
class WorkerSide {
 public:
  WorkerSide(int tables, TimelineTrack* trainer, TimelineTrack* messages)
      : tables_(tables),
        clock_(trainer),
        track_(messages),
        messages_(Messages()) {
    clock_.Start(time_.Now());
  }
  void Step() {
    clock_.Computed(time_.Now());
    const absl::Time idle = time_.Now();
    clock_.Idled(idle);
    clock_.Granted({.from = idle, .until = idle}, idle);
    const absl::Time loading = time_.Now();
    clock_.WasLoading(time_.Now() - loading);
    for (int table = 0; table < tables_; ++table) {
      clock_.Computed(time_.Now());
      clock_.Pushed(time_.Now());
      for (const Message& message : messages_) {
        const bool recorded = IsOn(track_);
        if (!recorded) continue;
        const absl::Time begun = time_.Now();
        track_->Add(
            EventOf(message, MessageEnd::kWorker, 1, begun, time_.Now()));
      }
    }
    clock_.Computed(time_.Now());
    clock_.EndStep(&stats_);
    for (run::WorkerStats* const copy : {&told_, &sent_}) *copy = stats_;
  }
  int64_t steps() const { return sent_.recent().steps(); }

 private:
  const int tables_;
  const TimeSource time_;
  StepClock clock_;
  TimelineTrack* const track_;
  const std::vector<Message> messages_;
  run::WorkerStats stats_;
  run::WorkerStats told_;
  run::WorkerStats sent_;
};

// As ShardThread does it for a message.
class ServerSide {
 public:
  explicit ServerSide(TimelineTrack* track)
      : track_(track), messages_(Messages()) {}
  void Take() {
    const absl::Time received = time_.Now();
    phases_[0] += received - absl::Time();
    if (IsOn(track_)) {
      track_->Add({.name = timeline_names::kReceive,
                   .begun = received,
                   .until = received});
      track_->Add(EventOf(messages_[0], MessageEnd::kShardThread, 1, received,
                          time_.Now()));
    }
    phases_[1] += time_.Now() - absl::Time();
    if (IsOn(track_)) {
      const absl::Time begun = time_.Now();
      track_->Add(EventOf(messages_[1], MessageEnd::kShardThread, 1, begun,
                          time_.Now()));
    }
  }

 private:
  const TimeSource time_;
  TimelineTrack* const track_;
  const std::vector<Message> messages_;
  absl::Duration phases_[2];
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What the phases of steps cost, beside the step of an MLP.");
  app.add_option("--steps", options.steps, "of each round")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "rounds of each")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_flag("--smoke", options.smoke, "few steps, to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.smoke) {
    options.steps = 2;
    options.repeats = 2;
  }
  (void)SetComputeThreads(1);
  config::Model config;
  for (int layer = 0; layer < 2; ++layer) config.mutable_mlp()->add_hidden(512);
  const auto model = *CreateModel(config, kFeatures, kClasses);
  const int tables = static_cast<int>(model->tables().size());
  for (int table = 0; table < tables; ++table) {
    InitializeElements(model->tables()[table], options.seed, 0,
                       model->parameter(table));
  }
  Rng rng(options.seed);
  std::vector<float> inputs(kExamples * kFeatures);
  for (float& input : inputs) input = static_cast<float>(rng.Uniform());
  std::vector<int64_t> labels(kExamples);
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<int64_t>(i % kClasses);
  double loss = 0;
  const auto step = [&] {
    const auto done = model->ForwardBackward({.examples = kExamples,
                                              .inputs = inputs.data(),
                                              .labels = labels.data()},
                                             [](int, Payload) {});
    SL_CHECK(done.ok(), done.status().ToString());
    loss = *done;
  };
  const TimeSource time;
  TimelineRecorder recorder;
  const auto track = [&](const char* name) { return recorder.TrackOf(name); };
  WorkerSide worker(tables, nullptr, nullptr);
  WorkerSide with(tables, track("trainer"), track("messages"));
  ServerSide server(nullptr);
  ServerSide server_with(track("shard 0"));
  for (int i = 0; i < 3; ++i) step();
  // Many times: one is too short for a clock.
  constexpr int kTimes = 1000;
  std::vector<double> steps, workers, off, on, messages, messages_off,
      messages_on;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    steps.push_back(SecondsOf(options.steps, step));
    workers.push_back(SecondsOf(kTimes, [&] { worker.Step(); }));
    off.push_back(SecondsOf(kTimes, [&] { with.Step(); }));
    messages.push_back(SecondsOf(kTimes, [&] { server.Take(); }));
    messages_off.push_back(SecondsOf(kTimes, [&] { server_with.Take(); }));
    recorder.Begin(time.Now(), time.WallNow());
    on.push_back(SecondsOf(kTimes, [&] { with.Step(); }));
    messages_on.push_back(SecondsOf(kTimes, [&] { server_with.Take(); }));
    (void)recorder.End(time.Now(), 8 << 20);
  }
  SL_CHECK(worker.steps() == int64_t{kTimes} * options.repeats &&
               with.steps() == 2 * worker.steps(),
           "a step that was not counted");
  const Spread of_off = SpreadOf(off);
  const Spread of_on = SpreadOf(on);
  const Spread of_step = SpreadOf(steps);
  const Spread of_worker = SpreadOf(workers);
  const Spread of_message = SpreadOf(messages);
  const double share = of_worker.median / of_step.median;
  const double off_share = (of_off.median - of_worker.median) / of_step.median;
  const double on_share = (of_on.median - of_worker.median) / of_step.median;
  PrintJsonLine(
      "bench_phases",
      {{"tables", tables},
       {"examples", kExamples},
       {"steps", options.steps},
       {"repeats", options.repeats},
       {"seed", options.seed},
       {"step_seconds", ToJson(of_step)},
       {"worker_seconds", ToJson(of_worker)},
       {"message_seconds", ToJson(of_message)},
       {"share_of_step", share},
       {"timeline_off_seconds", ToJson(of_off)},
       {"timeline_on_seconds", ToJson(of_on)},
       {"message_timeline_off_seconds", ToJson(SpreadOf(messages_off))},
       {"message_timeline_on_seconds", ToJson(SpreadOf(messages_on))},
       {"timeline_off_share_of_step", off_share},
       {"timeline_on_share_of_step", on_share},
       {"checksum", Checksum(&loss, sizeof loss)}});
  std::fprintf(stderr,
               "a step takes %.2f ms; its phases %.2f us, %.3f %% of that; "
               "those of a message at a shard thread %.0f ns\n",
               1e3 * of_step.median, 1e6 * of_worker.median, 100 * share,
               1e9 * of_message.median);
  std::fprintf(stderr,
               "a timeline that nobody records adds %.3f %% of a step, a "
               "recording %.3f %%; to a message %.0f ns and %.0f ns\n",
               100 * off_share, 100 * on_share,
               1e9 * (SpreadOf(messages_off).median - of_message.median),
               1e9 * (SpreadOf(messages_on).median - of_message.median));
  if (options.smoke || (share <= kShareMax && on_share <= kRecordedShareMax))
    return 0;
  std::fprintf(stderr,
               "bench_phases: at most %.0f %% is the bound of phases, and %.0f "
               "%% of a recording\n",
               100 * kShareMax, 100 * kRecordedShareMax);
  return 1;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
