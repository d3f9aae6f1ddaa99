// What do copies of shards cost, and how long is the gap when a server dies?
//
// Real server processes; workers that only push and pull, as threads of this
// program. Every push adds a known number to every parameter, so that a lost or
// a doubled one shows in the final model.
//
// cost: three servers with replicas 0 and 1 by turns, as often as --repeats
// says, in each of the modes. Steps of all workers per second, the time of a
// step, and what servers send to copies for each push. Expected: as many bytes
// to copies as workers push in ASP, a W-th of that with W workers in BSP, and a
// step that is longer by a round trip between servers, or by the work of the
// copies where the machine's cores are the bound.
//
// gap: three servers with replicas 1 and a lease of a second, of which one is
// killed, for each size of a model. From the last step that a worker completed
// before to its first after that; in it, until the coordinator has given the
// server up, and from there on. Expected: the lease, less the age of the last
// heartbeat, and some milliseconds.
//
// stdout: a JSON line for each size and mode, and one for each size's gap.
// stderr: for people.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "benchmarks/load_worker.h"
#include "benchmarks/report.h"
#include "common/process/logging.h"
#include "common/status.h"
#include "job/job_config.h"

namespace slackline::bench {
namespace {

constexpr absl::Duration kWaitMax = absl::Seconds(30);
constexpr int kServers = 3;

// Of a model: all of it, and of a shard.
struct Size {
  int64_t model_kib = 0;
  int64_t shard_kib = 0;
};

struct Options {
  std::string question = "both";
  std::vector<std::string> sizes = {"1024:256", "16384:256", "65536:256",
                                    "16384:16"};
  std::vector<std::string> modes = {"bsp", "asp"};  // Of the cost.
  int workers = 2;
  int repeats = 5;
  double seconds = 5;  // Of each measurement of the cost.
  // Between the steps of a worker; not given: 0 for the cost, 10 for the gap.
  std::optional<double> pace_ms;
  int lease_ms = 1000;  // Where a server is killed.
  bool smoke = false;
};

absl::StatusOr<Size> ParseSize(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  Size size;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &size.model_kib) ||
      !absl::SimpleAtoi(parts[1], &size.shard_kib) || size.shard_kib < 1 ||
      size.model_kib < size.shard_kib) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sizes: '", text,
                     "' is not of the form MODEL_KIB:SHARD_KIB, such as "
                     "16384:256"));
  }
  return size;
}

// The load, and a folder that goes with it.
class Cluster {
 public:
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const Options& options,
                                                        const Size& size,
                                                        const std::string& mode,
                                                        int replicas,
                                                        int lease_ms) {
    const std::string text = absl::StrCat(
        "job: 'bench-failover' coordinator { host: '127.0.0.1' }\n",
        "server { host: '127.0.0.1' count: ", kServers, " }\n",
        "worker { host: '127.0.0.1' count: ", options.workers, " }\n",
        "model { softmax {} } data { teacher_student {} }\n",
        "optimizer { sgd { learning_rate: 1 } } sync { ", mode, " {} }\n",
        "limits { shard_kib: ", size.shard_kib, " lease_ms: ", lease_ms,
        " window_kib: ", std::max<int64_t>(4096, size.shard_kib),
        " }\n"
        "replicas: ",
        replicas, "\n");
    SL_ASSIGN_OR_RETURN(const config::ClusterConfig config,
                        ParseJobConfig(text, "bench_failover", {}));
    auto cluster = std::unique_ptr<Cluster>(new Cluster);
    SL_ASSIGN_OR_RETURN(
        cluster->load_,
        LoadCluster::Start(
            {.config = config,
             .load = {.elements = size.model_kib * 1024 /
                                  static_cast<int64_t>(sizeof(float)),
                      .pace = absl::Milliseconds(*options.pace_ms)},
             .folder = cluster->folder_.string(),
             .server_flags = {}}));
    return cluster;
  }
  ~Cluster() {
    load_ = nullptr;
    if (!ended_well_) {
      std::fprintf(stderr, "bench_failover: logs of the servers: %s\n",
                   folder_.c_str());
      return;
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  LoadCluster& load() { return *load_; }
  absl::StatusOr<wire::StatusReply> Status() {
    return load_->coordinator().GetStatus(kWaitMax);
  }
  // What the servers have sent to copies, as they said last.
  absl::StatusOr<int64_t> BytesToCopies() {
    SL_ASSIGN_OR_RETURN(const wire::StatusReply status, Status());
    int64_t bytes = 0;
    for (const run::ServerStats& server : status.server())
      bytes += static_cast<int64_t>(server.bytes_to_followers());
    return bytes;
  }
  // The model has all pushes, once each.
  absl::Status Verify() {
    SL_ASSIGN_OR_RETURN(const int64_t wrong, load_->CountWrong());
    if (wrong != 0) {
      return absl::InternalError(
          absl::StrCat(wrong, " elements lost or doubled a push"));
    }
    ended_well_ = true;
    return absl::OkStatus();
  }

 private:
  Cluster()
      : folder_(std::filesystem::temp_directory_path() /
                absl::StrCat("slackline-bench-failover-", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  const std::filesystem::path folder_;
  std::unique_ptr<LoadCluster> load_;
  bool ended_well_ = false;
};

// ---- The cost ---------------------------------------------------------------

struct Cost {
  std::vector<double> steps_per_second;  // Of all workers; one per repeat.
  std::vector<double> step_ms;           // Of each step.
  std::vector<double> bytes_per_push;    // To copies; one per repeat.
};

absl::Status MeasureCost(const Options& options, const Size& size,
                         const std::string& mode, int replicas, Cost* cost) {
  constexpr int kLeaseMs = 5000;  // As it is unless configured.
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Cluster> cluster,
                      Cluster::Start(options, size, mode, replicas, kLeaseMs));
  absl::SleepFor(absl::Seconds(options.smoke ? 0.1 : 1));
  (void)cluster->load().TakeSteps();
  const absl::Time begin = absl::Now();
  absl::SleepFor(absl::Seconds(options.seconds));
  const std::vector<double> steps = MillisecondsOf(cluster->load().TakeSteps());
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  cost->steps_per_second.push_back(static_cast<double>(steps.size()) / seconds);
  cost->step_ms.insert(cost->step_ms.end(), steps.begin(), steps.end());
  SL_RETURN_IF_ERROR(cluster->Verify());
  // All workers have stopped: once the next heartbeats have come, what the
  // servers say is of all pushes.
  absl::SleepFor(absl::Milliseconds(kLeaseMs / 2));
  SL_ASSIGN_OR_RETURN(const int64_t bytes, cluster->BytesToCopies());
  int64_t pushes = 0;
  for (const auto& worker : cluster->load().workers())
    pushes += worker->pushes();
  // And each worker's last one, of zeros.
  pushes += options.workers;
  cost->bytes_per_push.push_back(static_cast<double>(bytes) /
                                 static_cast<double>(pushes));
  return absl::OkStatus();
}

absl::Status BenchCost(const Options& options, const Size& size,
                       const std::string& mode) {
  Cost costs[2];  // By replicas.
  for (int i = 0; i < options.repeats; ++i) {
    // Each of both comes first half of the time.
    for (const int replicas : {i % 2, 1 - i % 2}) {
      SL_RETURN_IF_ERROR(
          MeasureCost(options, size, mode, replicas, &costs[replicas]));
    }
  }
  std::vector<double> ratios;
  for (int i = 0; i < options.repeats; ++i) {
    ratios.push_back(costs[1].steps_per_second[i] /
                     costs[0].steps_per_second[i]);
  }
  nlohmann::ordered_json result = {
      {"question", "cost"},          {"mode", mode},
      {"servers", kServers},         {"workers", options.workers},
      {"model_kib", size.model_kib}, {"shard_kib", size.shard_kib},
      {"pace_ms", *options.pace_ms}, {"repeats", options.repeats},
      {"seconds", options.seconds}};
  for (const int replicas : {0, 1}) {
    const Cost& cost = costs[replicas];
    result[absl::StrCat("replicas_", replicas)] = {
        {"steps_per_second", ToJson(SpreadOf(cost.steps_per_second))},
        {"step_ms", PercentilesOf(cost.step_ms)},
        {"bytes_to_copies_per_push", SpreadOf(cost.bytes_per_push).median}};
  }
  result["steps_with_to_without"] = ToJson(SpreadOf(ratios));
  PrintJsonLine("bench_failover", result);
  std::fprintf(
      stderr,
      "%s %7d:%-5d KiB  steps/s %7.1f without, %7.1f with copies (x%.2f)"
      "  step p50 %.2f, %.2f ms  to copies %.2f MB per push\n",
      mode.c_str(), static_cast<int>(size.model_kib),
      static_cast<int>(size.shard_kib),
      SpreadOf(costs[0].steps_per_second).median,
      SpreadOf(costs[1].steps_per_second).median, SpreadOf(ratios).median,
      Percentile(costs[0].step_ms, 50), Percentile(costs[1].step_ms, 50),
      SpreadOf(costs[1].bytes_per_push).median / 1e6);
  return absl::OkStatus();
}

// ---- The gap ----------------------------------------------------------------

// Of one server that was killed.
struct Gap {
  double all_ms = 0;     // Of the worker that stood still longest.
  double notice_ms = 0;  // From the kill to the view without the server.
  double serve_ms = 0;   // From there until all workers have done a step.
};

// The longest time between the ends of two steps that follow each other, and
// when it was over.
Interval LongestPause(const std::vector<Interval>& steps) {
  Interval longest;
  for (size_t i = 1; i < steps.size(); ++i) {
    const Interval pause = {.begin = steps[i - 1].end, .end = steps[i].end};
    if (pause.ms() > longest.ms()) longest = pause;
  }
  return longest;
}

absl::StatusOr<Gap> MeasureGap(const Options& options, const Size& size,
                               int victim) {
  SL_ASSIGN_OR_RETURN(
      const std::unique_ptr<Cluster> cluster,
      Cluster::Start(options, size, "asp", 1, options.lease_ms));
  absl::SleepFor(absl::Seconds(options.smoke ? 0.3 : 1));
  // So that there are steps before the kill.
  (void)cluster->load().TakeSteps();
  absl::SleepFor(absl::Milliseconds(options.lease_ms / 5));
  const absl::Time killed = absl::Now();
  cluster->load().KillServer(victim);
  absl::Time noticed;
  while (true) {
    SL_ASSIGN_OR_RETURN(const wire::StatusReply status, cluster->Status());
    if (status.view().state() != wire::RUNNING) {
      return absl::InternalError(absl::StrCat("the job did not go on: ",
                                              status.view().end().reason()));
    }
    if (status.view().server_size() < kServers) break;
    if (absl::Now() - killed > kWaitMax)
      return absl::DeadlineExceededError("the server is not given up");
    absl::SleepFor(absl::Milliseconds(2));
  }
  noticed = absl::Now();
  absl::SleepFor(absl::Seconds(options.smoke ? 0.5 : 2));
  Gap gap;
  gap.notice_ms = absl::ToDoubleMilliseconds(noticed - killed);
  for (const auto& worker : cluster->load().workers()) {
    const Interval pause = LongestPause(worker->TakeSteps());
    gap.all_ms = std::max(gap.all_ms, pause.ms());
    gap.serve_ms =
        std::max(gap.serve_ms, absl::ToDoubleMilliseconds(pause.end - noticed));
  }
  SL_RETURN_IF_ERROR(cluster->Verify());
  return gap;
}

absl::Status BenchGap(const Options& options, const Size& size) {
  std::vector<double> all, notice, serve;
  for (int i = 0; i < options.repeats; ++i) {
    SL_ASSIGN_OR_RETURN(const Gap gap,
                        MeasureGap(options, size, 1 + i % (kServers - 1)));
    all.push_back(gap.all_ms);
    notice.push_back(gap.notice_ms);
    serve.push_back(gap.serve_ms);
  }
  PrintJsonLine("bench_failover",
                {{"question", "gap"},
                 {"servers", kServers},
                 {"workers", options.workers},
                 {"model_kib", size.model_kib},
                 {"shard_kib", size.shard_kib},
                 {"lease_ms", options.lease_ms},
                 {"pace_ms", *options.pace_ms},
                 {"kills", options.repeats},
                 {"gap_ms", ToJson(SpreadOf(all))},
                 {"kill_to_view_ms", ToJson(SpreadOf(notice))},
                 {"view_to_step_ms", ToJson(SpreadOf(serve))}});
  std::fprintf(
      stderr,
      "%7d:%-5d KiB  gap median %6.0f ms, max %6.0f; until the view %6.0f, "
      "from there %6.1f, max %6.1f  model exact\n",
      static_cast<int>(size.model_kib), static_cast<int>(size.shard_kib),
      SpreadOf(all).median, SpreadOf(all).max, SpreadOf(notice).median,
      SpreadOf(serve).median, SpreadOf(serve).max);
  return absl::OkStatus();
}

absl::Status Bench(const Options& options) {
  Options cost = options;
  cost.pace_ms = options.pace_ms.value_or(0);
  Options gap = options;
  gap.pace_ms = options.pace_ms.value_or(10);
  std::vector<Size> sizes;
  for (const std::string& text : options.sizes) {
    SL_ASSIGN_OR_RETURN(sizes.emplace_back(), ParseSize(text));
  }
  for (const Size& size : sizes) {
    if (options.question != "gap") {
      for (const std::string& mode : options.modes)
        SL_RETURN_IF_ERROR(BenchCost(cost, size, mode));
    }
    if (options.question != "cost") SL_RETURN_IF_ERROR(BenchGap(gap, size));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What copies of shards cost, and the gap when a server dies.");
  app.add_option("--question", options.question, "cost, gap or both")
      ->check(CLI::IsMember({"cost", "gap", "both"}))
      ->capture_default_str();
  app.add_option("--sizes", options.sizes,
                 "KiB of the model and of a shard, as in 16384:256")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--modes", options.modes, "cost: the modes")
      ->check(CLI::IsMember({"bsp", "asp"}))
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--workers", options.workers, "that push and pull")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "of each measurement")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "cost: of each measurement")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--pace-ms", options.pace_ms,
                 "what a worker waits between its steps; default: 0 for the "
                 "cost, 10 for the gap")
      ->check(CLI::Range(0.0, 10000.0));
  app.add_option("--lease-ms", options.lease_ms, "gap: limits.lease_ms")
      ->check(CLI::Range(200, 60000))
      ->capture_default_str();
  app.add_flag("--smoke", options.smoke,
               "small and short, to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  SetUpLogging("bench_failover", TimeSource());  // stdout is for the figures.
  if (options.smoke) {
    options.sizes = {"64:16"};
    options.seconds = 0.5;
    options.repeats = 1;
  }
  const absl::Status status = Bench(options);
  if (!status.ok()) {
    std::fprintf(stderr, "bench_failover: %s\n",
                 std::string(status.message()).c_str());
    return absl::IsInvalidArgument(status) ? 2 : 1;
  }
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
