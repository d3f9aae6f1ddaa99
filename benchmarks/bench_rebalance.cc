// What does moving a shard cost those who use it?
//
// Real server processes; workers that only push and pull, as threads of this
// program. First a while without moves, then one move after the other, to and
// fro, then a while without again. Per size of shard: how long nobody served
// it (at the source, from the last message that it would have served to the
// target's confirmation), what a pull of the whole model took before, during
// and after, and the bytes sent for a move against the shard's. Every push adds
// a known number to every parameter, so that a lost or a doubled one shows in
// the final model.
//
// With --scenario=skew or slow: what rebalancing gives back. Three servers made
// slow, as if each had a small machine of its own, so that they and not this
// machine's cores bound the throughput; the placement of the start is the ideal
// one. skew: a user moves everything to server 0. slow: somebody else
// uses server 0's core. Then the coordinator (rebalance AUTO) does what it
// does.
//
// stdout: one JSON line per size or scenario. stderr: the same for people.
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "benchmarks/load_worker.h"
#include "benchmarks/report.h"
#include "common/process/logging.h"
#include "common/status.h"
#include "job/job_config.h"

namespace slackline::bench {
namespace {

constexpr absl::Duration kWaitMax = absl::Seconds(30);

struct Options {
  std::string scenario = "moves";
  std::vector<int64_t> shard_kib = {256, 1024, 16384};
  int workers = 0;      // 2 for moves, 4 for the scenarios.
  double seconds = 5;   // Of each phase.
  double pace_ms = 20;  // Between the steps of a worker.
  std::string optimizer = "sgd";
  double slowdown = 40;
  bool smoke = false;
};

// What a round needs to know of itself.
struct Setup {
  int servers = 2;
  int workers = 2;
  int64_t shard_bytes = 0;
  int shards = 0;
  double slowdown = 1;
  std::string optimizer = "sgd";
  std::string rebalance = "mode: MANUAL";
  double pace_ms = 0;
};

config::ClusterConfig ConfigOf(const Setup& setup) {
  const std::string text = absl::StrCat(
      "job: 'bench-rebalance' coordinator { host: '127.0.0.1' }\n",
      "server { host: '127.0.0.1' count: ", setup.servers,
      " slowdown: ", setup.slowdown, " }\n",
      "worker { host: '127.0.0.1' count: ", setup.workers, " }\n",
      "model { softmax {} } data { teacher_student {} }\n", "optimizer { ",
      setup.optimizer, " { learning_rate: 1 } }\n",
      "sync { asp {} } limits { shard_kib: ", setup.shard_bytes / 1024,
      " window_kib: ", std::max<int64_t>(4096, setup.shard_bytes / 1024),
      " } rebalance { ", setup.rebalance, " }\n");
  absl::StatusOr<config::ClusterConfig> config =
      ParseJobConfig(text, "bench_rebalance", {});
  SL_CHECK(config.ok(), config.status().ToString());
  return *config;
}

// The load, what moves meanwhile, and a folder that goes with it.
class Cluster {
 public:
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const Setup& setup) {
    auto cluster = std::unique_ptr<Cluster>(new Cluster);
    SL_ASSIGN_OR_RETURN(
        cluster->load_,
        LoadCluster::Start(
            {.config = ConfigOf(setup),
             .load = {.elements = setup.shard_bytes /
                                  static_cast<int64_t>(sizeof(float)) *
                                  setup.shards,
                      .pace = absl::Milliseconds(setup.pace_ms)},
             .folder = cluster->folder_.string(),
             .server_flags = {}}));
    cluster->failed_ = false;
    return cluster;
  }
  ~Cluster() {
    load_ = nullptr;
    if (failed_) {
      std::fprintf(stderr, "bench_rebalance: logs of the servers: %s\n",
                   folder_.c_str());
      return;
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // With the moves that are new since the last call.
  absl::StatusOr<wire::StatusReply> Status() {
    absl::StatusOr<wire::StatusReply> status =
        load_->coordinator().GetStatus(kWaitMax, moves_);
    failed_ = failed_ || !status.ok();
    if (status.ok()) moves_ = status->moves();
    return status;
  }
  absl::Status Move(const std::vector<int32_t>& shards, int server) {
    wire::MoveShards move;
    for (const int32_t shard : shards) move.add_shard(shard);
    move.set_server(server);
    move.set_thread(-1);
    return load_->coordinator().MoveShards(move, kWaitMax).status();
  }
  absl::StatusOr<run::Plan> Rebalance(bool dry_run = false) {
    return load_->coordinator().Rebalance(dry_run, kWaitMax);
  }
  // The records of all that has moved since the last Status().
  absl::StatusOr<std::vector<run::MoveRecord>> WaitMoved() {
    std::vector<run::MoveRecord> moved;
    while (true) {
      SL_ASSIGN_OR_RETURN(const wire::StatusReply status, Status());
      moved.insert(moved.end(), status.moved().begin(), status.moved().end());
      if (status.plan().move_size() == 0) return moved;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  std::vector<Interval> TakeSteps() { return load_->TakeSteps(); }
  // Ends the workers; how many of them a failed push or pull had ended before.
  int CountFailed() {
    int failed = 0;
    for (const auto& worker : load_->workers()) failed += !worker->Stop().ok();
    return failed;
  }
  // Ends the workers; how many elements of the final model are not the sum of
  // all pushes.
  absl::StatusOr<int64_t> CountWrong() { return load_->CountWrong(); }
  const std::vector<ChildProcess>& servers() const { return load_->servers(); }

 private:
  Cluster()
      : folder_(std::filesystem::temp_directory_path() /
                absl::StrCat("slackline-bench-rebalance-", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  const std::filesystem::path folder_;
  std::unique_ptr<LoadCluster> load_;
  int64_t moves_ = 0;
  bool failed_ = true;  // Until it runs.
};

// ---- Moves ----------------------------------------------------------------

absl::Status BenchMoves(const Options& options, int64_t shard_kib) {
  Setup setup;
  setup.workers = options.workers;
  setup.optimizer = options.optimizer;
  setup.pace_ms = options.pace_ms;
  setup.shard_bytes = shard_kib * 1024;
  setup.shards = static_cast<int>(std::max<int64_t>(4, 4096 / shard_kib));
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Cluster> cluster,
                      Cluster::Start(setup));
  const auto phase = absl::Seconds(options.seconds);
  absl::SleepFor(absl::Seconds(options.smoke ? 0.1 : 1));
  (void)cluster->TakeSteps();
  absl::SleepFor(phase);
  const std::vector<double> before = MillisecondsOf(cluster->TakeSteps());

  std::vector<double> pauses_ms, copies_ms;
  double bytes = 0;
  SL_ASSIGN_OR_RETURN(const wire::StatusReply first, cluster->Status());
  std::vector<int32_t> server_of(first.view().owner_server().begin(),
                                 first.view().owner_server().end());
  const absl::Time end = absl::Now() + phase;
  for (int32_t shard = 0; absl::Now() < end || shard == 0;) {
    server_of[shard] = 1 - server_of[shard];
    SL_RETURN_IF_ERROR(cluster->Move({shard}, server_of[shard]));
    SL_ASSIGN_OR_RETURN(const std::vector<run::MoveRecord> moved,
                        cluster->WaitMoved());
    if (moved.size() != 1) {
      return absl::InternalError("a move ended without a record");
    }
    const run::MoveRecord& record = moved.front();
    pauses_ms.push_back(static_cast<double>(record.pause_micros()) / 1000);
    copies_ms.push_back(static_cast<double>(record.copy_micros()) / 1000);
    bytes += static_cast<double>(record.bytes()) /
             static_cast<double>(record.shard_bytes());
    shard = (shard + 1) % setup.shards;
  }
  const std::vector<double> during = MillisecondsOf(cluster->TakeSteps());
  absl::SleepFor(phase);
  const std::vector<double> after = MillisecondsOf(cluster->TakeSteps());
  const int failed = cluster->CountFailed();
  std::optional<int64_t> wrong;
  if (failed == 0 && options.optimizer == "sgd") {
    SL_ASSIGN_OR_RETURN(wrong, cluster->CountWrong());
  }
  const double moves = static_cast<double>(pauses_ms.size());
  const double ratio = Percentile(during, 99) / Percentile(before, 99);
  PrintJsonLine(
      "bench_rebalance",
      {{"scenario", "moves"},
       {"shard_kib", shard_kib},
       {"shards", setup.shards},
       {"workers", setup.workers},
       {"pace_ms", setup.pace_ms},
       {"optimizer", setup.optimizer},
       {"moves", pauses_ms.size()},
       {"pause_ms", PercentilesOf(pauses_ms)},
       {"copy_ms", PercentilesOf(copies_ms)},
       {"bytes_per_shard_byte", bytes / moves},
       {"pull_ms_before", PercentilesOf(before)},
       {"pull_ms_during", PercentilesOf(during)},
       {"pull_ms_after", PercentilesOf(after)},
       {"pull_p99_during_to_before", ratio},
       {"failed_requests", failed},
       {"wrong_elements", wrong.has_value() ? nlohmann::ordered_json(*wrong)
                                            : nlohmann::ordered_json()}});
  std::fprintf(stderr,
               "%6d KiB  %5zu moves  pause %6.3f %6.3f %6.3f ms  copy %7.2f "
               "ms  x%.2f bytes  pull p99 %7.2f %7.2f %7.2f ms (%.2f)  %s\n",
               static_cast<int>(shard_kib), pauses_ms.size(),
               Percentile(pauses_ms, 50), Percentile(pauses_ms, 99),
               Percentile(pauses_ms, 100), Percentile(copies_ms, 50),
               bytes / moves, Percentile(before, 99), Percentile(during, 99),
               Percentile(after, 99), ratio,
               !wrong.has_value() ? "model not checked"
               : *wrong == 0      ? "model exact"
                                  : "MODEL WRONG");
  if (failed != 0) {
    return absl::InternalError(absl::StrCat(failed, " workers have failed"));
  }
  if (wrong.value_or(0) != 0) {
    return absl::InternalError(
        absl::StrCat(*wrong, " elements lost or doubled a push"));
  }
  return absl::OkStatus();
}

// ---- Scenarios ------------------------------------------------------------

// Half a second of a scenario.
struct Point {
  absl::Time at;                 // Its end.
  double worst_to_mean = 0;      // Of the servers' utilisations.
  double worst_by_capacity = 0;  // As the planner sees it: a server that is
                                 // slow is to have less. 0: not known.
  double worst_utilisation = 0;
  double steps_per_second = 0;  // Of all workers.
};
constexpr absl::Duration kPointEvery = absl::Milliseconds(500);

// Lets time pass, and appends what it brings.
absl::Status Watch(Cluster& cluster, double seconds,
                   std::vector<Point>* course) {
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  while (absl::Now() < end) {
    const absl::Time begin = absl::Now();
    absl::SleepFor(kPointEvery);
    Point& point = course->emplace_back();
    point.at = absl::Now();
    point.steps_per_second = static_cast<double>(cluster.TakeSteps().size()) /
                             absl::ToDoubleSeconds(point.at - begin);
    SL_ASSIGN_OR_RETURN(const wire::StatusReply status, cluster.Status());
    double sum = 0;
    for (const run::ServerStats& server : status.server()) {
      double busiest = server.io_utilisation();
      for (const run::ThreadLoad& thread : server.thread()) {
        busiest = std::max(busiest, thread.utilisation());
      }
      point.worst_utilisation = std::max(point.worst_utilisation, busiest);
      sum += busiest;
    }
    if (const absl::StatusOr<run::Plan> plan = cluster.Rebalance(true);
        plan.ok() && plan->mean() > 0) {
      point.worst_by_capacity = plan->worst_before() / plan->mean();
    }
    if (sum > 0) {
      point.worst_to_mean =
          point.worst_utilisation * status.server_size() / sum;
    }
  }
  return absl::OkStatus();
}

// Over the last so many seconds.
double MeanRate(const std::vector<Point>& course, double seconds) {
  const size_t count = std::max<size_t>(
      1, static_cast<size_t>(absl::Seconds(seconds) / kPointEvery));
  double sum = 0;
  for (size_t i = 0; i < count; ++i)
    sum += course[course.size() - 1 - i].steps_per_second;
  return sum / static_cast<double>(count);
}

// Somebody else's work on the core of a server, until the end of this object.
class Competitor {
 public:
  Competitor(int core, int threads) {
    for (int t = 0; t < threads; ++t) {
      threads_.emplace_back([this, core] {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(core, &cores);
        sched_setaffinity(0, sizeof(cores), &cores);
        while (!stopping_) {
        }
      });
    }
  }
  ~Competitor() {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

absl::Status BenchScenario(const Options& options) {
  const bool skew = options.scenario == "skew";
  const bool smoke = options.smoke;
  Setup setup;
  setup.servers = 3;
  setup.workers = options.workers;
  setup.shard_bytes = 64 * 1024;
  setup.shards = 48;
  setup.slowdown = options.slowdown;
  // What AUTO does by itself is done here by command, so that the disturbance
  // can be measured first and the first decision has a known time.
  setup.rebalance = "mode: MANUAL rest_ms: 2000";
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Cluster> cluster,
                      Cluster::Start(setup));
  const double seconds = smoke ? 1 : options.seconds;
  absl::SleepFor(absl::Seconds(smoke ? 0.3 : 3));
  (void)cluster->TakeSteps();
  std::vector<Point> course;
  SL_RETURN_IF_ERROR(Watch(*cluster, seconds, &course));
  const double ideal = MeanRate(course, seconds);

  SL_ASSIGN_OR_RETURN(const wire::StatusReply placed, cluster->Status());
  std::optional<Competitor> competitor;
  if (skew) {
    std::vector<int32_t> shards;
    for (int32_t i = 0; i < placed.view().owner_server_size(); ++i) {
      if (placed.view().owner_server(i) != 0) shards.push_back(i);
    }
    SL_RETURN_IF_ERROR(cluster->Move(shards, 0));
    SL_RETURN_IF_ERROR(cluster->WaitMoved().status());
  } else {
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(0, &core);
    const std::string tasks =
        absl::StrCat("/proc/", cluster->servers().front().pid(), "/task");
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      const int id = std::stoi(task.path().filename().string());
      sched_setaffinity(id, sizeof(core), &core);
      // So that the competitor gets most of the core; what else runs
      // there shares it with the competitor evenly, and moves away.
      setpriority(PRIO_PROCESS, id, 14);
    }
    competitor.emplace(0, 1);
  }
  // Long enough for the decayed means to show it.
  (void)cluster->TakeSteps();
  SL_RETURN_IF_ERROR(Watch(*cluster, (smoke ? 1 : 4) + seconds, &course));
  const double disturbed = MeanRate(course, seconds);
  const Point before = course.back();
  SL_ASSIGN_OR_RETURN(const wire::StatusReply begun, cluster->Status());

  std::optional<absl::Time> decided;  // The first plan that is not empty.
  for (int i = 0; i < (smoke ? 4 : 20); ++i) {
    const absl::StatusOr<run::Plan> plan = cluster->Rebalance();
    if (plan.ok() && plan->move_size() > 0) {
      if (!decided.has_value()) decided = absl::Now();
      std::fprintf(stderr, "  %s\n", plan->summary().c_str());
    }
    SL_RETURN_IF_ERROR(Watch(*cluster, 1, &course));
  }
  SL_RETURN_IF_ERROR(Watch(*cluster, seconds, &course));
  const double rebalanced = MeanRate(course, seconds);
  const Point after = course.back();
  SL_ASSIGN_OR_RETURN(const wire::StatusReply ended, cluster->Status());
  competitor.reset();
  SL_ASSIGN_OR_RETURN(const int64_t wrong, cluster->CountWrong());
  // From when on the ratios stayed at 1.2 or less, until the end.
  double settled = -1;
  double settled_by_capacity = -1;
  nlohmann::ordered_json curve = nlohmann::ordered_json::array();
  for (const Point& point : course) {
    const double at =
        absl::ToDoubleSeconds(point.at - decided.value_or(point.at));
    if (point.worst_to_mean > 1.2 || at < 0) {
      settled = -1;
    } else if (settled < 0) {
      settled = at;
    }
    if (point.worst_by_capacity > 1.2 || at < 0) {
      settled_by_capacity = -1;
    } else if (settled_by_capacity < 0) {
      settled_by_capacity = at;
    }
    curve.push_back({at, point.worst_to_mean, point.steps_per_second,
                     point.worst_by_capacity});
  }
  PrintJsonLine(
      "bench_rebalance",
      {{"scenario", options.scenario},
       {"servers", setup.servers},
       {"workers", setup.workers},
       {"slowdown", setup.slowdown},
       {"steps_per_second_ideal", ideal},
       {"steps_per_second_disturbed", disturbed},
       {"steps_per_second_rebalanced", rebalanced},
       {"rebalanced_to_disturbed", rebalanced / disturbed},
       {"rebalanced_to_ideal", rebalanced / ideal},
       {"worst_to_mean_disturbed", before.worst_to_mean},
       {"worst_utilisation_disturbed", before.worst_utilisation},
       {"worst_to_mean_final", after.worst_to_mean},
       {"settled_after_seconds", settled < 0 ? nlohmann::ordered_json()
                                             : nlohmann::ordered_json(settled)},
       {"worst_by_capacity_final", after.worst_by_capacity},
       {"settled_by_capacity_after_seconds",
        settled_by_capacity < 0 ? nlohmann::ordered_json()
                                : nlohmann::ordered_json(settled_by_capacity)},
       {"moves", ended.moves() - begun.moves()},
       {"wrong_elements", wrong},
       // Seconds since the first decision, worst/mean, steps per second,
       // worst/mean by capacity.
       {"course", curve}});
  const auto settled_text = [](double seconds) {
    return seconds < 0 ? std::string("not at 1.2 or less")
                       : absl::StrFormat(
                             "at 1.2 or less from %.1f s after the "
                             "first decision on",
                             seconds);
  };
  std::fprintf(stderr,
               "%s: steps/s %.1f ideal, %.1f disturbed, %.1f rebalanced (%.2f "
               "of disturbed, %.2f of ideal)\n  worst/mean %.2f, in the end "
               "%.2f; %s\n"
               "  by capacity: in the end %.2f; %s; %d moves, model %s\n",
               options.scenario.c_str(), ideal, disturbed, rebalanced,
               rebalanced / disturbed, rebalanced / ideal, before.worst_to_mean,
               after.worst_to_mean, settled_text(settled).c_str(),
               after.worst_by_capacity,
               settled_text(settled_by_capacity).c_str(),
               static_cast<int>(ended.moves() - begun.moves()),
               wrong == 0 ? "exact" : "WRONG");
  if (wrong != 0) {
    return absl::InternalError(
        absl::StrCat(wrong, " elements lost or doubled a push"));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What moving shards costs, and what rebalancing gives.");
  app.add_option("--scenario", options.scenario, "moves, skew or slow")
      ->check(CLI::IsMember({"moves", "skew", "slow"}))
      ->capture_default_str();
  app.add_option("--shard-kib", options.shard_kib, "moves: sizes of a shard")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--workers", options.workers,
                 "default: 2 for moves, 4 for the scenarios")
      ->check(CLI::Range(1, 64));
  app.add_option("--seconds", options.seconds, "of each phase")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--pace-ms", options.pace_ms,
                 "moves: what a worker waits between its steps")
      ->check(CLI::Range(0.0, 10000.0))
      ->capture_default_str();
  app.add_option("--optimizer", options.optimizer,
                 "moves: sgd (the model is checked), momentum or adam")
      ->check(CLI::IsMember({"sgd", "momentum", "adam"}))
      ->capture_default_str();
  app.add_option("--slowdown", options.slowdown,
                 "skew, slow: how many times slower the servers are made")
      ->check(CLI::Range(1.0, 1000.0))
      ->capture_default_str();
  app.add_flag("--smoke", options.smoke,
               "small and short, to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  SetUpLogging("bench_rebalance", TimeSource());  // stdout is for the figures.
  if (options.smoke) {
    options.shard_kib = {16};
    options.seconds = 0.5;
  }
  if (options.workers == 0)
    options.workers = options.scenario == "moves" ? 2 : 4;
  absl::Status status;
  if (options.scenario != "moves") {
    status = BenchScenario(options);
  } else {
    std::fprintf(stderr,
                 "pause: p50, p99, max; copy: p50; pull p99: before, during, "
                 "after\n");
    for (const int64_t kib : options.shard_kib) {
      status = BenchMoves(options, kib);
      if (!status.ok()) break;
    }
  }
  if (!status.ok()) {
    std::fprintf(stderr, "bench_rebalance: %s\n",
                 std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
