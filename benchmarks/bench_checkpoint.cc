// What does a checkpoint cost those who train meanwhile, and how long does it
// take to the disk?
//
// Real server processes; workers that only push and pull, as threads of this
// program, with a pause between their steps in place of a computation. Rounds
// alternate: a while without a checkpoint, then one, ordered as a user does.
// A step counts as beside a checkpoint if any of it lies between the order and
// the answer. Expected cost: each server writes the values and slots of its
// part once, from the memory of the version that the cut has (4 bytes for each
// parameter and slot); the first update after the cut goes to other memory, as
// it does for a pull that is being sent; over ASP a shard applies what comes
// between the cut and its end twice. The cut is up to 4 steps after the order:
// the time that these take is told beside that of the whole. In the end the
// same number of bytes is written by one plain write() and fsync(), to the same
// file system, on a machine that does nothing else.
//
// Every push has the same gradient for every parameter, so all parameters of a
// cut have to be equal: the last checkpoint of a mode is read, and looked
// through.
//
// stdout: one JSON line per mode. stderr: the same for people.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "benchmarks/report.h"
#include "benchmarks/step_worker.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "common/config/cluster_config.h"
#include "common/mutex.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/process/join_request.h"
#include "common/process/logging.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "job/job_config.h"
#include "tools/cli/job/coordinator_client.h"
#include "tools/cli/process.h"
#include "tools/cli/run/local_hosts.h"

namespace slackline::bench {
namespace {

constexpr absl::Duration kWaitMax = absl::Minutes(2);
constexpr char kTable[] = "table";

struct Options {
  int64_t mib = 96;  // Of parameters.
  int servers = 2;
  int workers = 2;
  int rounds = 8;
  double seconds = 3;    // Without a checkpoint, in each round.
  double pace_ms = 100;  // Between the steps of a worker.
  std::string optimizer = "momentum";
  std::vector<std::string> modes = {"bsp", "asp"};
  std::string folder;  // Empty: the system's for temporary files.
  bool smoke = false;
  size_t elements() const {
    return static_cast<size_t>(mib) * (1 << 20) / sizeof(float);
  }
};

struct Interval {
  absl::Time begin;
  absl::Time end;
  double ms() const { return absl::ToDoubleMilliseconds(end - begin); }
};

config::ClusterConfig ConfigOf(const Options& options, const std::string& mode,
                               int port) {
  const std::string text = absl::StrCat(
      "job: 'bench-checkpoint' coordinator { host: '127.0.0.1' port: ", port,
      " }\n", "server { host: '127.0.0.1' count: ", options.servers, " }\n",
      "worker { host: '127.0.0.1' count: ", options.workers, " }\n",
      "model { softmax {} } data { teacher_student {} }\n", "optimizer { ",
      options.optimizer, " { learning_rate: 0.0001 } }\n",
      "checkpoint { keep: 1 }\n");
  absl::StatusOr<config::ClusterConfig> config =
      ParseJobConfig(text, "bench_checkpoint", {.mode = mode, .sets = {}});
  SL_CHECK(config.ok(), config.status().ToString());
  return *config;
}

// One worker: push everything, pull everything, again and again.
class LoadWorker {
 public:
  static absl::StatusOr<std::unique_ptr<LoadWorker>> Start(
      Transport& transport, const config::ClusterConfig& config,
      const Options& bench, int rank) {
    WorkerLoop::Options options;
    wire::JoinRequest& join = options.core.member.join;
    join = JoinRequestOf(wire::JoinRequest::WORKER, rank, "127.0.0.1", config);
    wire::Table& table = *join.add_table();
    *table.mutable_optimizer() = config.optimizer();
    table.set_name(kTable);
    table.add_shape(static_cast<int64_t>(bench.elements()));
    table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
    join.set_steps_total(kManySteps);
    join.set_steps_per_epoch(kManySteps);
    options.coordinator_endpoint = CoordinatorEndpoint(config);
    SL_ASSIGN_OR_RETURN(std::unique_ptr<StepWorker> worker,
                        StepWorker::Start(transport, transport, options));
    return std::unique_ptr<LoadWorker>(
        new LoadWorker(std::move(worker), bench));
  }
  ~LoadWorker() { (void)Stop(); }

  absl::Status Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  std::vector<Interval> TakeSteps() {
    const MutexLock lock(mutex_);
    return std::exchange(steps_, {});
  }

 private:
  LoadWorker(std::unique_ptr<StepWorker> worker, const Options& bench)
      : pace_(absl::Milliseconds(bench.pace_ms)),
        worker_(std::move(worker)),
        gradient_(Payload::Allocate(bench.elements() * sizeof(float))) {
    auto* const values = reinterpret_cast<float*>(gradient_.MutableData());
    std::fill(values, values + bench.elements(), 1.0f);
    thread_ = std::thread([this] { status_ = Work(); });
  }

  absl::Status Work() {
    SL_RETURN_IF_ERROR(worker_->Pull().status());
    while (!stopping_) {
      const absl::Time begin = absl::Now();
      SL_RETURN_IF_ERROR(worker_->Push(gradient_));
      SL_RETURN_IF_ERROR(worker_->Pull().status());
      {
        const MutexLock lock(mutex_);
        steps_.push_back({.begin = begin, .end = absl::Now()});
      }
      absl::SleepFor(pace_);
    }
    return absl::OkStatus();
  }

  const absl::Duration pace_;
  const std::unique_ptr<StepWorker> worker_;
  Payload gradient_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<Interval> steps_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_;
  std::thread thread_;
};

// A folder of this program, which goes with it.
class Folder {
 public:
  explicit Folder(const std::string& parent)
      : path_(std::filesystem::path(
                  parent.empty()
                      ? std::filesystem::temp_directory_path().string()
                      : parent) /
              absl::StrCat("bench_checkpoint.", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string Path(const std::string& name) const { return path_ / name; }

 private:
  const std::filesystem::path path_;
};

// Servers, workers and a line to the coordinator.
class Cluster {
 public:
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const Options& options,
                                                        const std::string& mode,
                                                        const Folder& folder) {
    auto cluster = std::make_unique<Cluster>();
    SL_ASSIGN_OR_RETURN(PortReservation port,
                        PortReservation::AnyFree("127.0.0.1"));
    const config::ClusterConfig config = ConfigOf(options, mode, port.port());
    const std::string file = folder.Path(mode + ".textproto");
    std::ofstream(file) << ToText(config);
    const std::string program =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() /
         "slackline_server")
            .string();
    for (int s = 0; s < options.servers; ++s) {
      SL_ASSIGN_OR_RETURN(
          ChildProcess server,
          ChildProcess::Start(
              {.command = {program, "--cluster", file, "--index",
                           absl::StrCat(s), "--out", folder.Path(mode)},
               .log_path = folder.Path(absl::StrCat(mode, "-", s, ".log")),
               .environment = {}}));
      cluster->servers_.push_back(std::move(server));
    }
    for (int w = 0; w < options.workers; ++w) {
      SL_ASSIGN_OR_RETURN(
          cluster->workers_.emplace_back(),
          LoadWorker::Start(cluster->transport_, config, options, w));
    }
    SL_ASSIGN_OR_RETURN(
        cluster->coordinator_,
        CoordinatorClient::Connect(CoordinatorEndpoint(config)));
    while (true) {
      SL_ASSIGN_OR_RETURN(const wire::StatusReply status, cluster->Status());
      if (status.view().state() == wire::RUNNING) break;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return cluster;
  }
  ~Cluster() {
    StopWorkers();
    servers_.clear();
  }

  absl::StatusOr<wire::StatusReply> Status() {
    return coordinator_->GetStatus(kWaitMax);
  }
  // Returns once it is on the disk.
  absl::StatusOr<run::CheckpointRecord> TakeCheckpoint() {
    SL_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                        coordinator_->Checkpoint(kWaitMax));
    if (!text.has_value())
      return absl::DeadlineExceededError("no checkpoint within two minutes");
    SL_ASSIGN_OR_RETURN(const wire::StatusReply status, Status());
    return status.last_checkpoint();
  }
  std::vector<Interval> TakeSteps() {
    std::vector<Interval> all;
    for (const auto& worker : workers_) {
      const std::vector<Interval> some = worker->TakeSteps();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  // They are not of use any more: the checkpoint is there.
  void StopWorkers() {
    const std::unique_ptr<CoordinatorClient> coordinator =
        std::move(coordinator_);
    if (coordinator != nullptr)
      (void)coordinator->Stop("the benchmark is done", absl::Seconds(10));
    workers_.clear();
  }

 private:
  ZmqTransport transport_;
  std::vector<ChildProcess> servers_;
  std::vector<std::unique_ptr<LoadWorker>> workers_;
  std::unique_ptr<CoordinatorClient> coordinator_;
};

// Elements that are not as the first one of its kind (values, slots).
absl::StatusOr<int64_t> CountUneven(const std::string& checkpoint,
                                    const Options& options) {
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<StoredCheckpoint> stored,
                      StoredCheckpoint::Open(checkpoint));
  SL_ASSIGN_OR_RETURN(
      const ShardState state,
      stored->Read(kTable, 0, static_cast<int64_t>(options.elements())));
  std::vector<Payload> tensors = state.slots;
  tensors.push_back(state.values);
  int64_t uneven = 0;
  for (const Payload& tensor : tensors) {
    std::vector<float> values(options.elements());
    std::memcpy(values.data(), tensor.data(), tensor.size());
    uneven += std::count_if(values.begin(), values.end(),
                            [&](float value) { return value != values[0]; });
  }
  return uneven;
}

// Seconds for so many bytes, written and synced by nobody's help.
absl::StatusOr<double> PlainWrite(const std::string& path, int64_t bytes) {
  const std::vector<char> buffer(1 << 20, 'x');
  const absl::Time begin = absl::Now();
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return absl::UnavailableError(absl::StrCat("open ", path));
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t written = write(
        file, buffer.data(),
        std::min<size_t>(buffer.size(), static_cast<size_t>(bytes - done)));
    if (written <= 0) {
      close(file);
      return absl::UnavailableError(absl::StrCat("write ", path));
    }
    done += written;
  }
  const bool synced = fsync(file) == 0;
  close(file);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  (void)unlink(path.c_str());
  if (!synced) return absl::UnavailableError(absl::StrCat("fsync ", path));
  return seconds;
}

nlohmann::ordered_json PercentilesOf(const std::vector<double>& samples) {
  if (samples.empty()) return nullptr;
  return {{"p50", Percentile(samples, 50)},
          {"p99", Percentile(samples, 99)},
          {"max", Percentile(samples, 100)},
          {"count", samples.size()}};
}

absl::Status BenchMode(const Options& options, const std::string& mode,
                       const Folder& folder) {
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Cluster> cluster,
                      Cluster::Start(options, mode, folder));
  const absl::Duration quiet = absl::Seconds(options.seconds);
  absl::SleepFor(quiet);
  (void)cluster->TakeSteps();  // Warming up.
  std::vector<Interval> checkpoints;
  std::vector<double> seconds;
  run::CheckpointRecord last;
  for (int round = 0; round < options.rounds; ++round) {
    absl::SleepFor(quiet);
    const absl::Time begin = absl::Now();
    SL_ASSIGN_OR_RETURN(last, cluster->TakeCheckpoint());
    checkpoints.push_back({.begin = begin, .end = absl::Now()});
    seconds.push_back(absl::ToDoubleSeconds(checkpoints.back().end - begin));
  }
  absl::SleepFor(quiet);
  std::vector<double> without, beside;
  for (const Interval& step : cluster->TakeSteps()) {
    const bool meets = std::any_of(
        checkpoints.begin(), checkpoints.end(), [&](const Interval& taken) {
          return step.begin < taken.end && taken.begin < step.end;
        });
    (meets ? beside : without).push_back(step.ms());
  }
  cluster->StopWorkers();
  SL_ASSIGN_OR_RETURN(const int64_t uneven,
                      CountUneven(last.folder(), options));
  std::vector<double> plain;
  for (int round = 0; round < options.rounds; ++round) {
    SL_ASSIGN_OR_RETURN(plain.emplace_back(),
                        PlainWrite(folder.Path("plain"), last.bytes()));
  }
  if (without.empty() || beside.empty())
    return absl::InternalError("no step was done; take more --seconds");
  const double megabytes = static_cast<double>(last.bytes()) / 1e6;
  const double to_cut =
      kStepLimitAhead * (Percentile(beside, 50) + options.pace_ms) / 1000;
  PrintJsonLine("bench_checkpoint",
                {{"mode", mode},
                 {"mib", options.mib},
                 {"servers", options.servers},
                 {"workers", options.workers},
                 {"optimizer", options.optimizer},
                 {"pace_ms", options.pace_ms},
                 {"checkpoints", checkpoints.size()},
                 {"checkpoint_megabytes", megabytes},
                 {"checkpoint_seconds", ToJson(SpreadOf(seconds))},
                 {"of_these_four_steps_seconds", to_cut},
                 {"plain_write_seconds", ToJson(SpreadOf(plain))},
                 {"step_ms_without", PercentilesOf(without)},
                 {"step_ms_beside", PercentilesOf(beside)},
                 {"uneven_elements", uneven}});
  std::fprintf(
      stderr,
      "%-5s %7.1f MB  checkpoint %6.2f s (four steps: %.2f s)  plain write "
      "%6.2f s (%6.1f MB/s)  step without %7.1f %7.1f %7.1f ms  beside %7.1f "
      "%7.1f "
      "%7.1f ms  %s\n",
      mode.c_str(), megabytes, SpreadOf(seconds).median, to_cut,
      SpreadOf(plain).median, megabytes / SpreadOf(plain).median,
      Percentile(without, 50), Percentile(without, 99),
      Percentile(without, 100), Percentile(beside, 50), Percentile(beside, 99),
      Percentile(beside, 100), uneven == 0 ? "cut even" : "CUT UNEVEN");
  return uneven == 0
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat(
                   uneven, " elements have other gradients than the first"));
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What a checkpoint costs those who train meanwhile.");
  app.add_option("--mib", options.mib, "of parameters")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--servers", options.servers)
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--workers", options.workers)
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "checkpoints of each mode")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "between two checkpoints")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--pace-ms", options.pace_ms,
                 "what a worker waits between its steps")
      ->check(CLI::Range(0.0, 10000.0))
      ->capture_default_str();
  app.add_option("--optimizer", options.optimizer, "sgd, momentum or adam")
      ->check(CLI::IsMember({"sgd", "momentum", "adam"}))
      ->capture_default_str();
  app.add_option("--modes", options.modes)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--folder", options.folder,
                 "where checkpoints are written; default: the system's folder "
                 "for temporary files");
  app.add_flag("--smoke", options.smoke,
               "small and short, to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  SetUpLogging("bench_checkpoint", TimeSource());  // stdout: the figures.
  if (options.smoke) {
    options.mib = 1;
    options.rounds = 2;
    options.seconds = 0.3;
    options.pace_ms = 5;
  }
  const Folder folder(options.folder);
  std::fprintf(stderr, "steps: p50, p99, max\n");
  for (const std::string& mode : options.modes) {
    const absl::Status status = BenchMode(options, mode, folder);
    if (status.ok()) continue;
    std::fprintf(stderr, "bench_checkpoint: %s: %s\n", mode.c_str(),
                 std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
