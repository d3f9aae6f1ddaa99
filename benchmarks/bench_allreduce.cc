// How far ahead of Gloo's ring is an all-reduce through our Collective, over
// tcp and through shared memory? Over GPUs, how near does it come to NCCL's, in
// the same run? And what does a key cost over tcp, where "keyed" compares with
// our own all-reduce without one?
//
// Ranks are processes on this machine. Each has both systems and one buffer,
// and does a number of all-reduces of all of it with one, then with the other,
// in turns, so that drift of the machine hits both. A ratio is that of two
// neighbouring turns.
//
// Expected cost: over tcp the same bytes as Gloo's, 2 (n - 1) / n of the buffer
// sent and received by each rank, by one thread in place of two, and two
// hand-overs between threads for each operation, since ours runs beside the
// caller. Through shared
// memory each byte is copied once, read for the sum by every rank or by one,
// and written: no system call moves it. Over NCCL the same kernel, and polling
// instead of sleeping. With a key each byte is sealed once where it is sent and
// opened once where it is received, at 1.5 GB/s of a core each, in the thread
// that sends and receives.
//
// Time is what the caller of rank 0 waits for a result, with the GPU, too: that
// is what a step waits for. stdout: one JSON line per transport, number of
// ranks and size. stderr: the same as a table.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/allreduce.h"
#include "benchmarks/report.h"
#include "common/status.h"
#include "tests/support/ranks.h"

namespace slackline::bench {
namespace {

struct Options {
  std::vector<std::string> transports = {"tcp", "keyed", "shm", "nccl"};
  std::vector<int> ranks = {2, 4};
  std::vector<int64_t> bytes = {4 << 10, 64 << 10, 256 << 10, 1 << 20,
                                4 << 20, 16 << 20, 64 << 20,  256 << 20};
  int repeats = 11;  // Turns of each system.
  bool smoke = false;
};

// All sizes of one world; longer than that, and a process is stuck.
constexpr unsigned kWorldSecondsMax = 1200;

int OperationsPerTurn(const Options& options, int64_t bytes) {
  constexpr int64_t kTurnBytes = 64 << 20;
  if (options.smoke) return 2;
  return static_cast<int>(std::clamp<int64_t>(kTurnBytes / bytes, 1, 200));
}

using Operation = absl::Status (AllReduceRank::*)(size_t);

// Seconds per operation.
absl::StatusOr<double> Turn(AllReduceRank& rank, Operation operation,
                            size_t size, int operations) {
  // All ranks begin together, and those that slept are awake.
  for (int i = 0; i < 2; ++i) SL_RETURN_IF_ERROR((rank.*operation)(1));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < operations; ++i) {
    SL_RETURN_IF_ERROR((rank.*operation)(size));
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  return seconds.count() / operations;
}

absl::Status Verify(AllReduceRank& rank, Operation operation,
                    const AllReduceWorld& world, size_t size) {
  SL_RETURN_IF_ERROR(rank.Fill(WholeNumbers(world.rank, size)));
  SL_RETURN_IF_ERROR((rank.*operation)(size));
  SL_ASSIGN_OR_RETURN(const std::vector<float> sum, rank.Read());
  if (sum == SumOfWholeNumbers(world.world_size, size)) return absl::OkStatus();
  return absl::InternalError("an all-reduce gave a wrong sum");
}

absl::Status MeasureSize(const Options& options, const std::string& transport,
                         const AllReduceWorld& world, AllReduceRank& rank,
                         int64_t bytes) {
  const Operation ours = &AllReduceRank::Slackline;
  const Operation raw = &AllReduceRank::Raw;
  const size_t size = static_cast<size_t>(bytes) / sizeof(float);
  for (const Operation operation : {ours, raw}) {
    SL_RETURN_IF_ERROR(Verify(rank, operation, world, size));
  }
  const std::string checksum =
      Checksum(SumOfWholeNumbers(world.world_size, size).data(), bytes);
  // Sums of sums would overflow.
  SL_RETURN_IF_ERROR(rank.Fill(std::vector<float>(size, 0)));

  const int operations = OperationsPerTurn(options, bytes);
  std::vector<double> ours_us;
  std::vector<double> raw_us;
  std::vector<double> ratios;
  for (int repeat = -1; repeat < options.repeats; ++repeat) {
    double seconds[2];
    for (int turn = 0; turn < 2; ++turn) {
      const int system = (repeat & 1) ^ turn;
      SL_ASSIGN_OR_RETURN(seconds[system], Turn(rank, system == 0 ? ours : raw,
                                                size, operations));
    }
    if (repeat < 0) continue;  // Warm-up.
    ours_us.push_back(seconds[0] * 1e6);
    raw_us.push_back(seconds[1] * 1e6);
    ratios.push_back(seconds[1] / seconds[0]);
  }
  if (world.rank != 0) return absl::OkStatus();

  const Spread ours_spread = SpreadOf(ours_us);
  const Spread raw_spread = SpreadOf(raw_us);
  const Spread ratio = SpreadOf(ratios);
  const double moved = 2.0 * (world.world_size - 1) / world.world_size * bytes;
  const double ours_bandwidth = moved / ours_spread.median * 1e-3;
  const double raw_bandwidth = moved / raw_spread.median * 1e-3;
  PrintJsonLine(
      "allreduce",
      {{"transport", transport},
       {"ranks", world.world_size},
       {"bytes", bytes},
       {"repeats", options.repeats},
       {"operations", operations},
       {"slackline_us", ToJson(ours_spread)},
       {"raw_us", ToJson(raw_spread)},
       {"slackline_bus_gigabytes_per_second", ours_bandwidth},
       {"raw_bus_gigabytes_per_second", raw_bandwidth},
       {"slackline_gigabytes_per_second", bytes / ours_spread.median * 1e-3},
       {"raw_gigabytes_per_second", bytes / raw_spread.median * 1e-3},
       {"ratio_to_raw", ToJson(ratio)},
       {"checksum", checksum}});
  std::fprintf(
      stderr, "%-5s %5d %10lld  %11.1f %11.1f  %7.3f %7.3f  %5.2f +- %.2f\n",
      transport.c_str(), world.world_size, static_cast<long long>(bytes),
      ours_spread.median, raw_spread.median, ours_bandwidth, raw_bandwidth,
      ratio.median, ratio.mad);
  std::fflush(stdout);
  return absl::OkStatus();
}

int RunRank(const Options& options, const std::string& transport,
            const AllReduceWorld& world) {
  const auto run = [&]() -> absl::Status {
    SL_ASSIGN_OR_RETURN(const std::unique_ptr<AllReduceRank> rank,
                        transport == "tcp"     ? CreateTcpRank(world)
                        : transport == "keyed" ? CreateKeyedRank(world)
                        : transport == "shm"   ? CreateShmRank(world)
                                               : CreateNcclRank(world));
    for (const int64_t bytes : options.bytes) {
      SL_RETURN_IF_ERROR(MeasureSize(options, transport, world, *rank, bytes));
    }
    return absl::OkStatus();
  };
  const absl::Status status = run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_allreduce: rank %d of %d: %s\n", world.rank,
               world.world_size, status.ToString().c_str());
  return 1;
}

bool RunWorld(const Options& options, const std::string& transport,
              int world_size) {
  SharedMemoryStore store;
  std::fflush(nullptr);
  const pid_t parent = getpid();
  std::vector<pid_t> processes;
  for (int rank = 0; rank < world_size; ++rank) {
    processes.push_back(Fork([&, rank] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) return 1;
      alarm(kWorldSecondsMax);
      return RunRank(options, transport,
                     {.rank = rank, .world_size = world_size, .store = &store});
    }));
  }
  bool good = true;
  for (const pid_t process : processes) good = ExitCode(process) == 0 && good;
  return good;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Compares our all-reduce with raw Gloo and raw NCCL.");
  app.add_option("--transports", options.transports, "tcp, keyed, shm, nccl")
      ->delimiter(',')
      ->check(CLI::IsMember({"tcp", "keyed", "shm", "nccl"}))
      ->capture_default_str();
  app.add_option("--ranks", options.ranks, "numbers of ranks, with commas")
      ->delimiter(',')
      ->check(CLI::Range(2, 16))
      ->capture_default_str();
  app.add_option("--bytes", options.bytes,
                 "sizes of the buffer, with commas, units as in 64KiB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 32));
  app.add_option("--repeats", options.repeats, "turns of each system")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--smoke", options.smoke,
               "small sizes and few turns, to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.smoke) {
    options.bytes = {4 << 10, 1 << 20};
    options.repeats = 2;
  }

  std::fprintf(stderr, "%-5s %5s %10s  %11s %11s  %7s %7s  %13s\n", "via",
               "ranks", "bytes", "ours us", "raw us", "GB/s", "raw",
               "ratio to raw");
  // In a process of its own: CUDA does not survive a fork.
  const bool gpu = ExitCode(Fork([] { return CountGpus() > 0 ? 0 : 1; })) == 0;
  bool good = true;
  for (const std::string& transport : options.transports) {
    if (transport == "nccl" && !gpu) {
      std::fprintf(stderr, "nccl: left out, there is no GPU or no NCCL\n");
      continue;
    }
    for (const int ranks : options.ranks) {
      good = RunWorld(options, transport, ranks) && good;
    }
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
