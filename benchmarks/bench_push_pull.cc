// How near does push + pull through Slackline come to raw ZeroMQ DEALER/ROUTER
// with messages of the same size, in the same run?
//
// A step of a worker pushes B bytes and pulls B bytes, in messages of at most
// message_bytes with window_bytes in flight each way per server. Expected cost:
// 2 * B bytes through the socket; one round trip if B fits into a window, since
// pulls do not wait for the acknowledgement of the pushes. Servers and workers
// are processes; all workers step at the same time. Rounds of the systems
// alternate, each with new processes, so that drift of the machine hits all.
//
// stdout: one JSON line per size and system. stderr: the same as a table.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/push_pull.h"
#include "benchmarks/report.h"
#include "common/process/freed_memory.h"
#include "common/process/logging.h"
#include "common/status.h"

namespace slackline::bench {
namespace {

struct Options {
  std::vector<std::string> systems = {"raw", "transport", "slackline"};
  std::string transport = "tcp";
  std::string topology = "1x1";  // Workers x servers.
  std::vector<int64_t> bytes = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
  int64_t message_bytes = 1 << 20;
  int64_t window_bytes = 4 << 20;
  int repeats = 5;  // Rounds of each system and size.
  int steps = 0;    // Of a round; 0: by size.
  int spin_max_us = 0;
  uint64_t seed = 1;
  bool shared_gradients = false;
  bool smoke = false;
};

// Long enough for any round; a process that takes longer is stuck.
constexpr unsigned kRoundSecondsMax = 300;

// A forked process that writes lines to its parent. Killed with this object.
class Child {
 public:
  // `run` gets the stream to write to; it returns the exit code.
  explicit Child(const std::function<int(FILE*)>& run) {
    int ends[2];
    SL_CHECK(pipe(ends) == 0, "pipe");
    std::fflush(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    SL_CHECK(pid_ >= 0, "fork");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      alarm(kRoundSecondsMax);
      close(ends[0]);
      FILE* const output = fdopen(ends[1], "w");
      const int code = run(output);
      std::fclose(output);
      _exit(code);
    }
    close(ends[1]);
    input_ = fdopen(ends[0], "r");
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        input_(std::exchange(other.input_, nullptr)) {}
  ~Child() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    std::fclose(input_);
  }

  // Without its newline. An error if the process ended instead; it has written
  // the reason to stderr.
  absl::StatusOr<std::string> ReadLine() {
    std::string line;
    for (int c; (c = std::getc(input_)) != EOF;) {
      if (c == '\n') return line;
      line.push_back(static_cast<char>(c));
    }
    return absl::AbortedError("a process of the benchmark failed");
  }

 private:
  pid_t pid_ = -1;
  FILE* input_ = nullptr;
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "bench_push_pull: %s\n", status.ToString().c_str());
  return 1;
}

struct Round {
  double seconds = 0;  // Of the worker that took longest.
  std::vector<double> step_us;
  std::string checksum;  // Of worker 0.
};

int RunWorker(PushPullSystem& system, const PushPullSetup& setup, int worker,
              const std::vector<std::string>& endpoints, int steps, int go,
              FILE* output) {
  using SteadyClock = std::chrono::steady_clock;
  auto connected = system.Connect(setup, worker, endpoints);
  if (!connected.ok()) return Fail(connected.status());
  PushPullWorker& client = **connected;
  const int warm_up = std::max(2, steps / 10);
  for (int i = 0; i < warm_up; ++i) {
    const absl::Status status = client.Step(/*verify=*/i == 0);
    if (!status.ok()) return Fail(status);
  }
  std::fprintf(output, "ready\n");
  std::fflush(output);
  char byte;
  if (read(go, &byte, 1) != 0) return 1;  // The parent closes its end.

  std::vector<double> step_us;
  step_us.reserve(steps);
  const auto start = SteadyClock::now();
  auto before = start;
  for (int i = 0; i < steps; ++i) {
    const absl::Status status = client.Step(/*verify=*/false);
    if (!status.ok()) return Fail(status);
    const auto now = SteadyClock::now();
    step_us.push_back(
        std::chrono::duration<double, std::micro>(now - before).count());
    before = now;
  }
  const double seconds = std::chrono::duration<double>(before - start).count();
  const nlohmann::json result = {{"seconds", seconds},
                                 {"step_us", step_us},
                                 {"checksum", client.Checksum()}};
  std::fprintf(output, "%s\n", result.dump().c_str());
  return 0;
}

absl::StatusOr<Round> RunRound(PushPullSystem& system,
                               const PushPullSetup& setup, int steps) {
  std::vector<Child> servers;
  std::vector<std::string> endpoints;
  for (int i = 0; i < setup.servers; ++i) {
    servers.emplace_back([&](FILE* output) {
      return Fail(system.Serve(setup, i, [&](const std::string& endpoint) {
        std::fprintf(output, "%s\n", endpoint.c_str());
        std::fflush(output);
      }));
    });
    SL_ASSIGN_OR_RETURN(endpoints.emplace_back(), servers.back().ReadLine());
  }

  int go[2];
  SL_CHECK(pipe(go) == 0, "pipe");
  std::vector<Child> workers;
  for (int i = 0; i < setup.workers; ++i) {
    workers.emplace_back([&](FILE* output) {
      close(go[1]);
      return RunWorker(system, setup, i, endpoints, steps, go[0], output);
    });
  }
  close(go[0]);
  absl::Status ready;
  for (Child& worker : workers) ready.Update(worker.ReadLine().status());
  close(go[1]);
  SL_RETURN_IF_ERROR(ready);

  Round round;
  for (size_t i = 0; i < workers.size(); ++i) {
    SL_ASSIGN_OR_RETURN(const std::string line, workers[i].ReadLine());
    const auto result = nlohmann::json::parse(line);
    round.seconds = std::max(round.seconds, result["seconds"].get<double>());
    for (const double us : result["step_us"]) round.step_us.push_back(us);
    if (i == 0) round.checksum = result["checksum"];
  }
  return round;
}

// What the rounds of one system at one size add up to.
struct Total {
  std::vector<double> step_us;    // All steps of all workers.
  std::vector<double> gigabytes;  // By round, 1e9 bytes each way per second.
  std::string checksum;
};

absl::Status Measure(const Options& options, PushPullSetup setup,
                     const std::vector<std::unique_ptr<PushPullSystem>>& all) {
  const int64_t step_bytes = 2 * setup.bytes * setup.workers;
  const int steps = options.steps > 0
                        ? options.steps
                        : static_cast<int>(std::clamp<int64_t>(
                              (int64_t{1} << 30) / step_bytes, 20, 3000));
  std::vector<Total> totals(all.size());
  for (int i = 0; i < options.repeats; ++i) {
    for (size_t s = 0; s < all.size(); ++s) {
      SL_ASSIGN_OR_RETURN(const Round round, RunRound(*all[s], setup, steps));
      Total& total = totals[s];
      total.step_us.insert(total.step_us.end(), round.step_us.begin(),
                           round.step_us.end());
      total.gigabytes.push_back(static_cast<double>(step_bytes) * steps /
                                round.seconds / 1e9);
      total.checksum = round.checksum;
    }
  }
  const double limit_us = SpreadOf(totals[0].step_us).median;
  for (size_t s = 0; s < all.size(); ++s) {
    const Total& total = totals[s];
    const Spread step = SpreadOf(total.step_us);
    const Spread speed = SpreadOf(total.gigabytes);
    const double p99 = Percentile(total.step_us, 99);
    // Of medians of steps: a few steps that lost their core to some other
    // program, milliseconds each, move a round's mean speed far more.
    const double ratio = limit_us / step.median;
    PrintJsonLine("bench_push_pull",
                  {{"system", all[s]->name()},
                   {"transport", options.transport},
                   {"workers", setup.workers},
                   {"servers", setup.servers},
                   {"bytes", setup.bytes},
                   {"message_bytes", setup.message_bytes},
                   {"window_bytes", setup.window_bytes},
                   {"repeats", options.repeats},
                   {"steps", steps},
                   {"spin_max_us", options.spin_max_us},
                   {"seed", options.seed},
                   {"shared_gradients", options.shared_gradients},
                   {"step_us", ToJson(step)},
                   {"step_us_p99", p99},
                   {"gigabytes_per_second", ToJson(speed)},
                   {"ratio_to_first", ratio},
                   {"checksum", total.checksum}});
    std::fprintf(stderr,
                 "%-10s %-4s %-5s %9lld  %9.1f %9.1f %9.1f  %6.3f +- %.3f  "
                 "%5.2f\n",
                 all[s]->name().c_str(), options.transport.c_str(),
                 options.topology.c_str(), static_cast<long long>(setup.bytes),
                 step.median, step.mad, p99, speed.median, speed.mad, ratio);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Compares push + pull through Slackline with raw ZeroMQ in one run.");
  app.add_option("--systems", options.systems,
                 "what to run, with commas; ratios are to the first one")
      ->delimiter(',')
      ->check(CLI::IsMember({"raw", "transport", "slackline"}))
      ->capture_default_str();
  app.add_option("--transport", options.transport,
                 "tcp, ipc or shm, which raw ZeroMQ does not have: it "
                 "takes ipc then")
      ->check(CLI::IsMember({"tcp", "ipc", "shm"}))
      ->capture_default_str();
  app.add_option("--topology", options.topology,
                 "workers x servers, each a process, for example 2x2")
      ->check([](const std::string& text) {
        int workers = 0;
        int servers = 0;
        char rest;
        const bool good = std::sscanf(text.c_str(), "%dx%d%c", &workers,
                                      &servers, &rest) == 2 &&
                          workers >= 1 && servers >= 1;
        return good ? std::string() : "must be workers x servers, as in 2x2";
      })
      ->capture_default_str();
  app.add_option("--bytes", options.bytes,
                 "pushed, and pulled, by a worker in a step; several sizes "
                 "with commas, units as in 64KiB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 32));
  app.add_option("--message-bytes", options.message_bytes,
                 "payload of one message")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--window-bytes", options.window_bytes,
                 "in flight each way between a worker and a server")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "rounds of each system and size")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "steps of a round; 0: by size")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app.add_option("--spin-max-us", options.spin_max_us,
                 "longest spin before a sleep; raw never spins")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the bytes that are sent")
      ->capture_default_str();
  app.add_flag("--shared-gradients", options.shared_gradients,
               "Slackline's workers make their gradients in shared memory, and "
               "not where frameworks make them");
  app.add_flag("--smoke", options.smoke,
               "small sizes and few steps, to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  SetUpLogging("bench_push_pull", TimeSource());  // stdout is for the figures.

  const std::map<std::string, PushPullSetup::Via> vias = {
      {"tcp", PushPullSetup::Via::kTcp},
      {"ipc", PushPullSetup::Via::kIpc},
      {"shm", PushPullSetup::Via::kShm}};
  PushPullSetup setup{.via = vias.at(options.transport),
                      .message_bytes = options.message_bytes,
                      .window_bytes = options.window_bytes,
                      .seed = options.seed,
                      .shared_gradients = options.shared_gradients};
  std::sscanf(options.topology.c_str(), "%dx%d", &setup.workers,
              &setup.servers);
  if (options.smoke) {
    options.bytes = {4 << 10, 256 << 10};
    options.repeats = 2;
    options.steps = 5;
    // More messages than a window holds.
    setup.message_bytes = 24 << 10;
    setup.window_bytes = 64 << 10;
  }
  if (setup.window_bytes < setup.message_bytes) {
    std::fprintf(stderr,
                 "--window-bytes: %lld is less than one message "
                 "(--message-bytes is %lld)\n",
                 static_cast<long long>(setup.window_bytes),
                 static_cast<long long>(setup.message_bytes));
    return 2;
  }
  for (const int64_t bytes : options.bytes) {
    if (bytes % (4 * setup.servers) == 0) continue;
    std::fprintf(stderr,
                 "--bytes: %lld is not a multiple of %d, 4 for each server\n",
                 static_cast<long long>(bytes), 4 * setup.servers);
    return 2;
  }

  KeepFreedMemory();  // For all systems, as Slackline's programs do.
  std::vector<std::unique_ptr<PushPullSystem>> systems;
  for (const std::string& name : options.systems) {
    if (name == "raw") systems.push_back(MakeRawPushPull());
    if (name == "transport") {
      systems.push_back(
          MakeTransportPushPull(absl::Microseconds(options.spin_max_us)));
    }
    if (name == "slackline") systems.push_back(MakeSlacklinePushPull());
  }

  std::fprintf(stderr, "%-10s %-4s %-5s %9s  %9s %9s %9s  %15s  %5s\n",
               "system", "via", "w x s", "bytes", "step us", "mad", "p99",
               "GB/s", "ratio");
  for (const int64_t bytes : options.bytes) {
    setup.bytes = bytes;
    const absl::Status status = Measure(options, setup, systems);
    if (!status.ok()) return Fail(status);
  }
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
