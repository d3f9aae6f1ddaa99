// What does each mode cost a training step, against workers that exchange
// nothing?
//
// The MLP 784-512-512-10 with 64 examples per worker and step, on generated
// data. Baseline: W processes that compute gradients and apply them to their
// own copy, and never talk. Then the real binaries, 2 servers and W workers, in
// each mode. Expected cost per step: over servers every worker pushes and pulls
// the model once (2.7 MB each way); in all-reduce it sends and receives 2 (W -
// 1) / W of it. All processes share the machine's cores, so on few cores the
// servers' work and the copies add to the time of every step. Rounds of all
// modes alternate.
//
// stdout: one JSON line per mode. stderr: the same as a table.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/report.h"
#include "common/blas/open_blas.h"
#include "common/config/cluster_config.h"
#include "common/optim/optimizer.h"
#include "common/status.h"
#include "common/view/initializer.h"
#include "job/job_config.h"
#include "worker/data/load_data.h"
#include "worker/data/sampler.h"
#include "worker/model/compute.h"
#include "worker/model/model.h"

namespace slackline::bench {
namespace {

struct Options {
  int workers = 4;
  int servers = 2;
  int steps = 200;
  int repeats = 3;
  uint64_t seed = 1;
  std::vector<std::string> modes = {"bsp", "ssp:3", "asp", "allreduce"};
  std::string transport = "AUTO";  // As limits { transport }.
  std::vector<std::string> sets;   // Of the config, as for `slackline run`.
  bool smoke = false;
};

struct Round {
  double steps_per_second = 0;
  std::string checksum;
  nlohmann::json where;  // Seconds per step of one worker, on average.
};

config::ClusterConfig ConfigOf(const Options& options, const std::string& mode,
                               int port) {
  const std::string text = absl::StrCat(
      "job: 'bench-step' coordinator { host: '127.0.0.1' port: ", port, " }\n",
      "server { host: '127.0.0.1' count: ", options.servers, " }\n",
      "worker { host: '127.0.0.1' count: ", options.workers, " }\n",
      options.smoke ? "model { mlp { hidden: 32 } }\n"
                    : "model { mlp { hidden: [512, 512] } }\n",
      "data { teacher_student { train_examples: 20000 test_examples: 100 } "
      "batch_size: 64 }\n",
      "optimizer { momentum { learning_rate: 0.01 momentum: 0.9 } }\n",
      "train { epochs: 1000 max_steps: ", options.steps,
      " seed: ", options.seed, " eval_every_epochs: 1000 }\n",
      "limits { transport: ", options.transport, " }\n");
  absl::StatusOr<config::ClusterConfig> config =
      ParseJobConfig(text, "bench_step", {.mode = mode, .sets = options.sets});
  SL_CHECK(config.ok(), config.status().ToString());
  return *config;
}

// W forked processes that train alone, all at once.
absl::StatusOr<Round> RunAlone(const Options& options) {
  const config::ClusterConfig config = ConfigOf(options, "bsp", 7700);
  int results[2], go[2];
  SL_CHECK(pipe(results) == 0 && pipe(go) == 0, "pipe");
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.workers; ++rank) {
    const pid_t pid = fork();
    SL_CHECK(pid >= 0, "fork");
    if (pid > 0) {
      children.push_back(pid);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(go[1]);
    (void)ChooseOpenBlasKernels();  // As workers do.
    (void)SetComputeThreads(1);
    const DataSplit data = *LoadData(config.data(), config.model(), "");
    Sampler sampler = *Sampler::Create({.examples = data.train->examples(),
                                        .batch_size = 64,
                                        .rank = Rank{rank},
                                        .world_size = options.workers,
                                        .seed = options.seed});
    const auto model = *CreateModel(config.model(), data.train->features(),
                                    data.train->classes());
    const Optimizer optimizer = *Optimizer::Create(config.optimizer());
    const int tables = static_cast<int>(model->tables().size());
    std::vector<std::vector<float>> slots(tables);
    for (int t = 0; t < tables; ++t) {
      InitializeElements(model->tables()[t], options.seed, 0,
                         model->parameter(t));
      slots[t].resize(model->parameter(t).size());
    }
    std::vector<float> inputs(64 * data.train->features());
    std::vector<int64_t> labels(64);
    const auto step = [&](Clock clock) {
      std::vector<Payload> gradients(tables);
      data.train->Gather(sampler.Batch(clock), inputs.data(), labels.data());
      const auto loss = model->ForwardBackward(
          {.examples = 64, .inputs = inputs.data(), .labels = labels.data()},
          [&](int table, Payload gradient) {
            gradients[table] = std::move(gradient);
          });
      SL_CHECK(loss.ok(), loss.status().ToString());
      for (int t = 0; t < tables; ++t) {
        const std::byte* const gradient = gradients[t].data();
        Optimizer::ApplyArgs args;
        args.in = args.out = model->parameter(t).data();
        args.slots[0] = slots[t].data();
        args.gradients = absl::MakeConstSpan(&gradient, 1);
        args.elements = model->parameter(t).size();
        args.numbers.learning_rate = 0.01f;
        optimizer.Apply(args);
      }
    };
    for (Clock clock = 0; clock < 5; ++clock) step(clock);  // Warm-up.
    char byte = 'r';
    (void)!write(results[1], &byte, 1);
    (void)!read(go[0], &byte, 1);  // The parent closes its end.
    for (Clock clock = 0; clock < options.steps; ++clock) step(clock);
    _exit(0);
  }
  close(results[1]);
  close(go[0]);
  for (int i = 0; i < options.workers; ++i) {
    char byte;
    SL_CHECK(read(results[0], &byte, 1) == 1, "a baseline process failed");
  }
  const auto start = std::chrono::steady_clock::now();
  close(go[1]);
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    SL_CHECK(status == 0, "a baseline process failed");
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  close(results[0]);
  return Round{
      .steps_per_second = options.steps / seconds, .checksum = "", .where = {}};
}

// The real binaries, through `slackline run`, which lies beside this program.
absl::StatusOr<Round> RunMode(const Options& options, const std::string& mode,
                              int round) {
  const std::filesystem::path bin =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      absl::StrCat("slackline-bench-step-", getpid(), "-", round);
  std::filesystem::create_directories(folder);
  const std::string config_file = (folder / "config.textproto").string();
  {
    config::ClusterConfig config = ConfigOf(options, mode, 7700);
    config.clear_coordinator();  // `run` picks a free port.
    std::ofstream(config_file) << ToText(config);
  }
  const std::string out = (folder / "run").string();
  const pid_t pid = fork();
  SL_CHECK(pid >= 0, "fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int log = open((folder / "log").c_str(), O_CREAT | O_WRONLY, 0644);
    dup2(log, 1);
    dup2(log, 2);
    const std::string program = (bin / "slackline").string();
    execl(program.c_str(), "slackline", "run", config_file.c_str(), "--out",
          out.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  std::ifstream summary_file(out + "/summary.json");
  if (status != 0 || !summary_file) {
    return absl::InternalError(
        absl::StrCat("mode ", mode, " failed; see ", folder.string()));
  }
  const nlohmann::json summary = nlohmann::json::parse(summary_file);
  std::filesystem::remove_all(folder);
  const double wall = summary["wall_seconds"];
  nlohmann::json where;
  for (const char* key : {"bytes_pushed", "bytes_pulled", "retries"})
    where[key] = summary[key];
  return Round{.steps_per_second = options.steps / wall,
               .checksum = summary["model_sha256"],
               .where = where};
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Steps per second of each mode against workers that exchange nothing.");
  app.add_option("--workers", options.workers)
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--servers", options.servers)
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "of each worker and round")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "rounds of each mode")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--modes", options.modes)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--transport", options.transport,
                 "as limits { transport }; with AUTO, shared memory")
      ->capture_default_str();
  app.add_option("--set", options.sets,
                 "a field of the config, as for slackline run, in the modes "
                 "over servers and by all-reduce: 'sync.compression[0]={...}'")
      ->type_name("FIELD=VALUE");
  app.add_flag("--smoke", options.smoke,
               "a small model and few steps, to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.smoke) {
    options.steps = 10;
    options.repeats = 1;
    options.workers = 2;
  }
  std::vector<std::string> names = {"alone"};
  names.insert(names.end(), options.modes.begin(), options.modes.end());
  std::map<std::string, std::vector<double>> speeds;
  std::map<std::string, Round> last;
  int round_number = 0;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (const std::string& name : names) {
      absl::StatusOr<Round> round =
          name == "alone" ? RunAlone(options)
                          : RunMode(options, name, round_number++);
      if (!round.ok()) {
        std::fprintf(stderr, "bench_step: %s\n",
                     round.status().ToString().c_str());
        return 1;
      }
      speeds[name].push_back(round->steps_per_second);
      last[name] = *std::move(round);
    }
  }
  const double alone = SpreadOf(speeds["alone"]).median;
  std::fprintf(stderr, "%-10s %10s %8s %8s %12s\n", "mode", "steps/s", "mad",
               "ratio", "ms per step");
  for (const std::string& name : names) {
    const Spread speed = SpreadOf(speeds[name]);
    const double extra_ms = 1000 / speed.median - 1000 / alone;
    PrintJsonLine("bench_step", {{"mode", name},
                                 {"workers", options.workers},
                                 {"servers", options.servers},
                                 {"transport", options.transport},
                                 {"sets", options.sets},
                                 {"steps", options.steps},
                                 {"repeats", options.repeats},
                                 {"seed", options.seed},
                                 {"steps_per_second", ToJson(speed)},
                                 {"ratio_to_alone", speed.median / alone},
                                 {"extra_ms_per_step", extra_ms},
                                 {"totals", last[name].where},
                                 {"checksum", last[name].checksum}});
    std::fprintf(stderr, "%-10s %10.1f %8.1f %8.3f %12.2f\n", name.c_str(),
                 speed.median, speed.mad, speed.median / alone,
                 1000 / speed.median);
  }
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
