// What do the phases of steps cost, beside the step of an MLP?
//
// A worker reads the clock around each gradient that it hands over and each
// wait, keeps its last 20 steps, makes their means, and copies all that into
// what heartbeats take along. A shard thread reads the clock twice more for
// each message. Both are done here as they are in a step over servers, in turn
// with the step itself: forward and backward of the MLP 784-512-512-10 with 64
// examples, on one thread. Expected: about 20 readings of a clock, 25 ns each,
// and a few hundred additions, so around a microsecond, of milliseconds.
//
// The bound is 1 % of the step; the program fails beyond it, but not with
// --smoke. stdout: one JSON line. stderr: the same as a sentence.
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

// As Session, RunReport and WorkerCore do it in a step over servers.
class WorkerSide {
 public:
  explicit WorkerSide(int tables) : tables_(tables) {
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
  run::WorkerStats stats_;
  run::WorkerStats told_;
  run::WorkerStats sent_;
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
  WorkerSide worker(tables);
  const TimeSource time;
  absl::Duration phases[2];
  const auto message = [&] {
    for (absl::Duration& phase : phases) phase += time.Now() - absl::Time();
  };
  for (int i = 0; i < 3; ++i) step();
  // Many times: one is too short for a clock.
  constexpr int kTimes = 1000;
  std::vector<double> steps, workers, messages;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    steps.push_back(SecondsOf(options.steps, step));
    workers.push_back(SecondsOf(kTimes, [&] { worker.Step(); }));
    messages.push_back(SecondsOf(kTimes, message));
  }
  SL_CHECK(worker.steps() == int64_t{kTimes} * options.repeats,
           "a step that was not counted");
  const Spread of_step = SpreadOf(steps);
  const Spread of_worker = SpreadOf(workers);
  const Spread of_message = SpreadOf(messages);
  const double share = of_worker.median / of_step.median;
  PrintJsonLine("bench_phases", {{"tables", tables},
                                 {"examples", kExamples},
                                 {"steps", options.steps},
                                 {"repeats", options.repeats},
                                 {"seed", options.seed},
                                 {"step_seconds", ToJson(of_step)},
                                 {"worker_seconds", ToJson(of_worker)},
                                 {"message_seconds", ToJson(of_message)},
                                 {"share_of_step", share},
                                 {"checksum", Checksum(&loss, sizeof loss)}});
  std::fprintf(stderr,
               "a step takes %.2f ms; its phases %.2f us, %.3f %% of that; "
               "those of a message at a shard thread %.0f ns\n",
               1e3 * of_step.median, 1e6 * of_worker.median, 100 * share,
               1e9 * of_message.median);
  if (options.smoke || share <= kShareMax) return 0;
  std::fprintf(stderr, "bench_phases: at most %.0f %% is the bound\n",
               100 * kShareMax);
  return 1;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
