// How near does push + pull through Slackline come to raw ZeroMQ DEALER/ROUTER
// with messages of the same size, in the same run? And how near does ZeroMQ
// come to the kernel's sockets, and they to a copy in memory?
//
// A step of a worker pushes B bytes and pulls B bytes, in messages of at most
// message_bytes with window_bytes in flight each way per server. Expected cost:
// 2 * B bytes through the socket; one round trip if B fits into a window, since
// pulls do not wait for the acknowledgement of the pushes. Servers and workers
// are processes; all workers step at the same time. Rounds of the systems
// alternate, each with new processes, so that drift of the machine hits all.
//
// With --load each round goes on in open loop: steps are due at fixed times,
// and one that is late has waited since then.
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
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/process_cost.h"
#include "benchmarks/push_pull.h"
#include "benchmarks/report.h"
#include "common/process/freed_memory.h"
#include "common/process/logging.h"
#include "common/status.h"

namespace slackline::bench {
namespace {

struct Options {
  std::vector<std::string> systems = {"raw", "memory", "tcp", "transport",
                                      "slackline"};
  std::string transport = "tcp";
  std::string topology = "1x1";  // Workers x servers.
  std::vector<int64_t> bytes = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
  int64_t message_bytes = 1 << 20;
  int64_t window_bytes = 4 << 20;
  int repeats = 5;  // Rounds of each system and size.
  int steps = 0;    // Of a round; 0: by size.
  int spin_max_us = 0;
  double load = 0;  // Of the speed in closed loop.
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

  pid_t pid() const { return pid_; }
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

using SteadyClock = std::chrono::steady_clock;

double MicrosecondsSince(SteadyClock::time_point then) {
  return std::chrono::duration<double, std::micro>(SteadyClock::now() - then)
      .count();
}

struct Round {
  double seconds = 0;  // Of the worker that took longest.
  std::vector<double> step_us;
  std::vector<double> loaded_us;  // In open loop.
  std::string checksum;           // Of worker 0.
  Cost workers;                   // Of all steps in closed loop.
  Cost servers;
};

// Steps that are due every `interval_us`; how long after that each has ended.
absl::StatusOr<std::vector<double>> RunOpenLoop(PushPullWorker& client,
                                                int steps, double interval_us) {
  const auto interval = std::chrono::duration_cast<SteadyClock::duration>(
      std::chrono::duration<double, std::micro>(interval_us));
  std::vector<double> us;
  us.reserve(static_cast<size_t>(steps));
  auto due = SteadyClock::now();
  for (int i = 0; i < steps; ++i, due += interval) {
    auto begin = due;
    if (SteadyClock::now() < due) {
      std::this_thread::sleep_until(due);
      // That a sleeper oversleeps is not the system's doing.
      begin = SteadyClock::now();
    }
    SL_RETURN_IF_ERROR(client.Step(/*verify=*/false));
    us.push_back(MicrosecondsSince(begin));
  }
  return us;
}

int RunWorker(PushPullSystem& system, const PushPullSetup& setup, int worker,
              const std::vector<std::string>& endpoints, int steps, double load,
              int go, const AllocationCounters& counters, FILE* output) {
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
  if (read(go, &byte, 1) != 1) return 1;

  std::vector<double> step_us;
  step_us.reserve(steps);
  const Cost cost_before = CostOf(getpid());
  const int64_t allocations_before = counters.of(worker);
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
  const int64_t allocations = counters.of(worker) - allocations_before;
  const Cost cost = CostOf(getpid()) - cost_before;
  const nlohmann::json result = {{"seconds", seconds},
                                 {"step_us", step_us},
                                 {"cpu_us", cost.cpu_us},
                                 {"wakeups", cost.wakeups},
                                 {"page_faults", cost.page_faults},
                                 {"allocations", allocations},
                                 {"checksum", client.Checksum()}};
  std::fprintf(output, "%s\n", result.dump().c_str());
  std::fflush(output);
  if (load == 0) return 0;
  if (read(go, &byte, 1) != 1) return 1;
  const absl::StatusOr<std::vector<double>> loaded =
      RunOpenLoop(client, steps, SpreadOf(step_us).median / load);
  if (!loaded.ok()) return Fail(loaded.status());
  std::fprintf(output, "%s\n", nlohmann::json(*loaded).dump().c_str());
  return 0;
}

absl::StatusOr<Round> RunRound(PushPullSystem& system,
                               const PushPullSetup& setup, int steps,
                               double load) {
  AllocationCounters counters(setup.workers + setup.servers);
  std::vector<Child> servers;
  std::vector<std::string> endpoints;
  for (int i = 0; i < setup.servers; ++i) {
    servers.emplace_back([&](FILE* output) {
      counters.CountHere(setup.workers + i);
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
      counters.CountHere(i);
      return RunWorker(system, setup, i, endpoints, steps, load, go[0],
                       counters, output);
    });
  }
  close(go[0]);
  // A byte for each worker lets all of them go on.
  const auto let_go = [&] {
    const std::string bytes(workers.size(), '.');
    SL_CHECK(write(go[1], bytes.data(), bytes.size()) ==
                 static_cast<ssize_t>(bytes.size()),
             "write to the workers");
  };
  const auto cost_of_servers = [&] {
    Cost sum;
    for (int i = 0; i < setup.servers; ++i) {
      Cost cost = CostOf(servers[static_cast<size_t>(i)].pid());
      cost.allocations = counters.of(setup.workers + i);
      sum = sum + cost;
    }
    return sum;
  };
  absl::Status ready;
  for (Child& worker : workers) ready.Update(worker.ReadLine().status());
  const Cost before = ready.ok() ? cost_of_servers() : Cost();
  let_go();
  SL_RETURN_IF_ERROR(ready);

  Round round;
  for (size_t i = 0; i < workers.size(); ++i) {
    SL_ASSIGN_OR_RETURN(const std::string line, workers[i].ReadLine());
    const auto result = nlohmann::json::parse(line);
    round.seconds = std::max(round.seconds, result["seconds"].get<double>());
    for (const double us : result["step_us"]) round.step_us.push_back(us);
    if (i == 0) round.checksum = result["checksum"];
    round.workers = round.workers + Cost{.cpu_us = result["cpu_us"],
                                         .wakeups = result["wakeups"],
                                         .page_faults = result["page_faults"],
                                         .allocations = result["allocations"]};
  }
  round.servers = cost_of_servers() - before;
  if (load > 0) {
    let_go();
    for (Child& worker : workers) {
      SL_ASSIGN_OR_RETURN(const std::string line, worker.ReadLine());
      for (const double us : nlohmann::json::parse(line))
        round.loaded_us.push_back(us);
    }
  }
  close(go[1]);
  return round;
}

// What the rounds of one system at one size add up to.
struct Total {
  std::vector<double> step_us;    // All steps of all workers.
  std::vector<double> loaded_us;  // In open loop.
  std::vector<double> gigabytes;  // By round, 1e9 bytes each way per second.
  std::string checksum;
  Cost workers;
  Cost servers;
};

// For each step of a worker.
nlohmann::ordered_json ToJson(const Cost& cost, double steps) {
  const auto each = [&](auto sum) { return static_cast<double>(sum) / steps; };
  return {{"cpu_us", each(cost.cpu_us)},
          {"wakeups", each(cost.wakeups)},
          {"page_faults", each(cost.page_faults)},
          {"allocations", each(cost.allocations)}};
}

nlohmann::ordered_json LatenciesOf(const std::vector<double>& us) {
  if (us.empty()) return nullptr;
  return {{"p50", Percentile(us, 50)},
          {"p99", Percentile(us, 99)},
          {"p99.9", Percentile(us, 99.9)}};
}

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
      SL_ASSIGN_OR_RETURN(const Round round,
                          RunRound(*all[s], setup, steps, options.load));
      Total& total = totals[s];
      total.loaded_us.insert(total.loaded_us.end(), round.loaded_us.begin(),
                             round.loaded_us.end());
      total.workers = total.workers + round.workers;
      total.servers = total.servers + round.servers;
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
    const auto counted = static_cast<double>(total.step_us.size());
    const nlohmann::ordered_json of_worker = ToJson(total.workers, counted);
    const nlohmann::ordered_json of_server = ToJson(total.servers, counted);
    const nlohmann::ordered_json loaded = LatenciesOf(total.loaded_us);
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
                   {"step_us_p99.9", Percentile(total.step_us, 99.9)},
                   {"load", options.load},
                   {"loaded_us", loaded},
                   {"worker_per_step", of_worker},
                   {"servers_per_step", of_server},
                   {"gigabytes_per_second", ToJson(speed)},
                   {"ratio_to_first", ratio},
                   {"checksum", total.checksum}});
    std::fprintf(
        stderr,
        "%-14s %-4s %-5s %9lld  %9.1f %9.1f %9.1f  %6.3f +- %.3f  "
        "%5.2f  %8.1f %8.1f %5.1f %5.1f %6.1f",
        all[s]->name().c_str(), options.transport.c_str(),
        options.topology.c_str(), static_cast<long long>(setup.bytes),
        step.median, step.mad, p99, speed.median, speed.mad, ratio,
        of_worker["cpu_us"].get<double>(), of_server["cpu_us"].get<double>(),
        of_worker["wakeups"].get<double>() + of_server["wakeups"].get<double>(),
        of_worker["page_faults"].get<double>() +
            of_server["page_faults"].get<double>(),
        of_worker["allocations"].get<double>() +
            of_server["allocations"].get<double>());
    if (!loaded.is_null()) {
      std::fprintf(stderr, "  %8.1f %8.1f %8.1f", loaded["p50"].get<double>(),
                   loaded["p99"].get<double>(), loaded["p99.9"].get<double>());
    }
    std::fprintf(stderr, "\n");
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Compares push + pull through Slackline with raw ZeroMQ in one run.");
  app.add_option("--systems", options.systems,
                 "what to run, with commas; ratios are to the first one. "
                 "+keys: encrypted by CURVE")
      ->delimiter(',')
      ->check(CLI::IsMember({"raw", "memory", "tcp", "transport", "slackline",
                             "raw+keys", "slackline+keys"}))
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
  app.add_option("--load", options.load,
                 "after the steps of a round, as many that are due at fixed "
                 "times, at this share of the speed that the system has just "
                 "had; 0: none")
      ->check(CLI::Range(0.0, 1.0))
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
                      .spin_max = absl::Microseconds(options.spin_max_us),
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
    if (name == "memory") systems.push_back(MakeMemoryPushPull());
    if (name == "tcp") systems.push_back(MakeTcpPushPull());
    if (name == "transport") systems.push_back(MakeTransportPushPull());
    if (name == "slackline") systems.push_back(MakeSlacklinePushPull());
    if (name == "raw+keys") systems.push_back(WithKeys(MakeRawPushPull()));
    if (name == "slackline+keys")
      systems.push_back(WithKeys(MakeSlacklinePushPull()));
  }

  std::fprintf(stderr,
               "%-14s %-4s %-5s %9s  %9s %9s %9s  %15s  %5s  %8s %8s %5s %5s "
               "%6s%s\n",
               "system", "via", "w x s", "bytes", "step us", "mad", "p99",
               "GB/s", "ratio", "worker", "servers", "wakes", "pages", "allocs",
               options.load > 0 ? "    load 50       99     99.9" : "");
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
