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
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "benchmarks/load_worker.h"
#include "benchmarks/report.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "common/process/logging.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "job/job_config.h"

namespace slackline::bench {
namespace {

constexpr absl::Duration kWaitMax = absl::Minutes(2);

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
  int64_t elements() const {
    return mib * (1 << 20) / static_cast<int64_t>(sizeof(float));
  }
};

config::ClusterConfig ConfigOf(const Options& options,
                               const std::string& mode) {
  const std::string text = absl::StrCat(
      "job: 'bench-checkpoint' coordinator { host: '127.0.0.1' }\n",
      "server { host: '127.0.0.1' count: ", options.servers, " }\n",
      "worker { host: '127.0.0.1' count: ", options.workers, " }\n",
      "model { softmax {} } data { teacher_student {} }\n", "optimizer { ",
      options.optimizer, " { learning_rate: 0.0001 } }\n",
      "checkpoint { keep: 1 }\n");
  absl::StatusOr<config::ClusterConfig> config =
      ParseJobConfig(text, "bench_checkpoint", {.mode = mode, .sets = {}});
  SL_CHECK(config.ok(), config.status().ToString());
  return *config;
}

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

absl::StatusOr<std::unique_ptr<LoadCluster>> StartCluster(
    const Options& options, const std::string& mode, const Folder& folder) {
  const std::string own = folder.Path(mode);
  std::filesystem::create_directories(own);
  return LoadCluster::Start(
      {.config = ConfigOf(options, mode),
       .load = {.elements = options.elements(),
                .pace = absl::Milliseconds(options.pace_ms)},
       .folder = own,
       .server_flags = {"--out", own + "/run"}});
}

// Returns once it is on the disk.
absl::StatusOr<run::CheckpointRecord> TakeCheckpoint(LoadCluster& cluster) {
  SL_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                      cluster.coordinator().Checkpoint(kWaitMax));
  if (!text.has_value())
    return absl::DeadlineExceededError("no checkpoint within two minutes");
  SL_ASSIGN_OR_RETURN(const wire::StatusReply status,
                      cluster.coordinator().GetStatus(kWaitMax));
  return status.last_checkpoint();
}

// Elements that are not as the first one of its kind (values, slots).
absl::StatusOr<int64_t> CountUneven(const std::string& checkpoint,
                                    const Options& options) {
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<StoredCheckpoint> stored,
                      StoredCheckpoint::Open(checkpoint));
  SL_ASSIGN_OR_RETURN(
      const ShardState state,
      stored->Read(kLoadTable, {0, options.elements()}, FloatsForm()));
  std::vector<Payload> tensors = state.slots;
  tensors.push_back(state.values);
  int64_t uneven = 0;
  for (const Payload& tensor : tensors) {
    std::vector<float> values(static_cast<size_t>(options.elements()));
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

absl::Status BenchMode(const Options& options, const std::string& mode,
                       const Folder& folder) {
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<LoadCluster> cluster,
                      StartCluster(options, mode, folder));
  const absl::Duration quiet = absl::Seconds(options.seconds);
  absl::SleepFor(quiet);
  (void)cluster->TakeSteps();  // Warming up.
  std::vector<Interval> checkpoints;
  std::vector<double> seconds;
  run::CheckpointRecord last;
  for (int round = 0; round < options.rounds; ++round) {
    absl::SleepFor(quiet);
    const absl::Time begin = absl::Now();
    SL_ASSIGN_OR_RETURN(last, TakeCheckpoint(*cluster));
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
  cluster->Stop();  // Of no more use: the checkpoint is there.
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
