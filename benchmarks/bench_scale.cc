// What does a push and a pull of one shard cost, as a job grows?
//
// One shard thread in a process of its own, ASP with SGD, and W workers in this
// one: the product's ClientCore over TCP connections, one for each worker. A
// step of a worker pushes and pulls all S shards of B bytes. The expected cost
// of one push and one pull is the same for every S and W: a few lookups, the
// copy of B bytes, and a share of a message. `bsp` is the same with all workers
// in lockstep: nearly every pull is parked until the last push of its clock has
// come. Pushes without pulls are bench_stream's.
//
// server_us and worker_us are processor time for each push and pull of a shard,
// ZeroMQ's threads included: so other programs disturb them less than they
// disturb wall time. server_bytes is what the memory of the server grows by for
// each pair of a shard and a worker.
//
// stdout: one JSON line for each case. stderr: the same as a table.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/fixed_job.h"
#include "benchmarks/process_cost.h"
#include "benchmarks/report.h"
#include "common/endpoint.h"
#include "common/net/poller.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/process/freed_memory.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "worker/client/client_core.h"

namespace slackline::bench {
namespace {

// ZeroMQ allows 1023 sockets in a context.
constexpr int kWorkersPerTransport = 256;

struct Case {
  FixedJob job;
  int64_t steps = 1;  // Of each worker, after the first, which is not timed.
  const char* name() const { return job.lockstep ? "bsp" : "steps"; }
};

int64_t ResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class Workers {
 public:
  static absl::StatusOr<std::unique_ptr<Workers>> Create(
      const FixedJob& job, const wire::Endpoints& server) {
    SL_ASSIGN_OR_RETURN(std::shared_ptr<const View> view,
                        View::Create(ViewOf(job, server)));
    std::unique_ptr<Workers> all(new Workers(job));
    for (int rank = 0; rank < job.workers; ++rank) {
      if (rank % kWorkersPerTransport == 0)
        all->transports_.push_back(std::make_unique<ZmqTransport>());
      auto worker = std::make_unique<Worker>(
          ClientCore::Options{.rank = Rank{rank},
                              .incarnation = IncarnationOf(rank),
                              .run = kFixedRun},
          view);
      SL_ASSIGN_OR_RETURN(worker->channel,
                          all->transports_.back()->Connect(
                              {.kind = PeerId::Kind::kWorker,
                               .index = rank,
                               .instance = IncarnationOf(rank)},
                              NetworkEndpoint(server), ChannelOptions()));
      all->poller_.Add(*worker->channel);
      all->workers_.push_back(std::move(worker));
    }
    return all;
  }
  ~Workers() {
    for (const auto& worker : workers_) poller_.Remove(*worker->channel);
  }

  // Runs so many more steps of every worker to the end.
  absl::Status Run(int64_t steps) {
    for (const auto& worker : workers_) {
      worker->last = worker->clock + steps;
      worker->pulling = false;
      SL_RETURN_IF_ERROR(GoOn(*worker));
    }
    for (;;) {
      bool done = true;
      absl::Time wake = absl::InfiniteFuture();
      for (const auto& worker : workers_) {
        SL_RETURN_IF_ERROR(Receive(*worker));
        done &= worker->clock == worker->last && !worker->pulling &&
                worker->client.unacknowledged_bytes() == 0;
        wake = std::min(wake, worker->client.NextWakeup());
      }
      if (done) return absl::OkStatus();
      SL_RETURN_IF_ERROR(
          poller_.Wait(std::max(wake - time_.Now(), absl::ZeroDuration())));
    }
  }

  // The newest version of the first shard that anybody has pulled.
  Version newest() const { return newest_; }
  uint64_t retries() const {
    uint64_t retries = 0;
    for (const auto& worker : workers_) retries += worker->client.retries();
    return retries;
  }

 private:
  struct Worker {
    Worker(const ClientCore::Options& options,
           const std::shared_ptr<const View>& view)
        : client(options, view) {}
    ClientCore client;
    std::unique_ptr<Channel> channel;
    Clock clock = 0;  // Of its next push.
    Clock last = 0;
    bool pulling = false;
  };

  explicit Workers(const FixedJob& job)
      : gradient_(Payload::Allocate(job.shards * job.shard_bytes)),
        versions_(job.shards, 0) {
    std::memset(gradient_.MutableData(), 0, gradient_.size());
  }

  absl::Status Receive(Worker& worker) {
    for (;;) {
      SL_ASSIGN_OR_RETURN(std::optional<Message> message,
                          worker.channel->Receive());
      if (!message.has_value()) break;
      ClientCore::Effects effects;
      worker.client.OnMessage({0, 0}, *message, time_.Now(), &effects);
      SL_RETURN_IF_ERROR(Perform(worker, effects));
      SL_RETURN_IF_ERROR(GoOn(worker));
    }
    if (worker.client.NextWakeup() > time_.Now()) return absl::OkStatus();
    ClientCore::Effects effects;
    worker.client.OnTick(time_.Now(), &effects);
    return Perform(worker, effects);
  }

  absl::Status GoOn(Worker& worker) {
    while (worker.clock < worker.last && !worker.pulling) {
      ClientCore::Effects effects;
      SL_RETURN_IF_ERROR(worker.client.Push(worker.clock++, TableId{0},
                                            gradient_, StepOptions(), versions_,
                                            time_.Now(), &effects));
      worker.client.Pull(worker.clock, worker.clock, time_.Now(), &effects);
      worker.pulling = true;
      SL_RETURN_IF_ERROR(Perform(worker, effects));
    }
    return absl::OkStatus();
  }

  absl::Status Perform(Worker& worker, ClientCore::Effects& effects) {
    SL_RETURN_IF_ERROR(effects.failure);
    for (const ClientSend& send : effects.sends)
      SL_RETURN_IF_ERROR(worker.channel->Send(send.message));
    for (const PullResult& pulled : effects.pulled) {
      newest_ = std::max(newest_, pulled.shards.front().version);
      worker.pulling = false;
    }
    return absl::OkStatus();
  }

  const TimeSource time_;
  Payload gradient_;
  const std::vector<Version> versions_;
  std::vector<std::unique_ptr<ZmqTransport>> transports_;
  Poller poller_;
  std::vector<std::unique_ptr<Worker>> workers_;
  Version newest_ = 0;
};

absl::Status Measure(const Case& c) {
  const FixedJob& job = c.job;
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<FixedServer> server,
                      FixedServer::Start(job));
  const int64_t empty = ResidentBytes(server->pid());
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Workers> workers,
                      Workers::Create(job, server->endpoints()));
  SL_RETURN_IF_ERROR(workers->Run(1));  // Connects, and touches all memory.
  const int64_t full = ResidentBytes(server->pid());
  const Cost server_before = CostOf(server->pid());
  const Cost own_before = CostOf(getpid());
  const auto start = std::chrono::steady_clock::now();
  SL_RETURN_IF_ERROR(workers->Run(c.steps));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  const double requests =
      static_cast<double>(c.steps) * job.shards * job.workers;
  const double server_us =
      (CostOf(server->pid()) - server_before).cpu_us / requests;
  const double worker_us = (CostOf(getpid()) - own_before).cpu_us / requests;
  const auto pairs = static_cast<double>(job.shards) * job.workers;
  const double server_bytes = static_cast<double>(full - empty) / pairs;
  // In lockstep, a clock makes one update.
  const auto updates =
      static_cast<Version>((c.steps + 1) * (job.lockstep ? 1 : job.workers));
  if (workers->newest() != updates) {
    return absl::InternalError(absl::StrCat("the shard is at version ",
                                            workers->newest(), " after ",
                                            updates, " pushes"));
  }
  PrintJsonLine("bench_scale", {{"case", c.name()},
                                {"shards", job.shards},
                                {"workers", job.workers},
                                {"shard_bytes", job.shard_bytes},
                                {"steps", c.steps},
                                {"server_us", server_us},
                                {"worker_us", worker_us},
                                {"per_second", requests / seconds},
                                {"server_bytes", server_bytes},
                                {"retries", workers->retries()}});
  std::fprintf(stderr, "%-6s %7d %7d %6lld %10.2f %10.2f %12.0f %12.0f\n",
               c.name(), job.shards, job.workers,
               static_cast<long long>(job.shard_bytes), server_us, worker_us,
               requests / seconds, server_bytes);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::vector<int> shards = {16, 256, 4096, 100000};
  std::vector<int> workers = {1, 16, 128, 1024};
  int64_t shard_bytes = 64;
  int64_t requests = 400000;
  bool smoke = false;
  CLI::App app("Processor time for a push and a pull as a job grows.");
  app.add_option("--shards", shards, "with one worker; several with commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 1000000));
  app.add_option("--workers", workers, "with 16 shards; several with commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 10000));
  app.add_option("--shard-bytes", shard_bytes, "a multiple of 4")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--requests", requests, "pushes, and pulls, of a case; about")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->capture_default_str();
  app.add_flag("--smoke", smoke, "small and short, to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (shard_bytes % 4 != 0) {
    std::fprintf(stderr, "--shard-bytes: %lld is not a multiple of 4\n",
                 static_cast<long long>(shard_bytes));
    return 2;
  }
  if (smoke) {
    shards = {16, 1000};
    workers = {4};
    requests = 4000;
  }
  // A worker's connection needs several descriptors.
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  KeepFreedMemory();

  std::vector<Case> cases;
  const auto add = [&](int s, int w, bool lockstep) {
    cases.push_back({.job = {.shards = s,
                             .workers = w,
                             .shard_bytes = shard_bytes,
                             .lockstep = lockstep},
                     .steps = std::max<int64_t>(2, requests / s / w)});
  };
  for (const int s : shards) add(s, 1, false);
  for (const bool lockstep : {false, true}) {
    for (const int w : workers) {
      if (w != 1) add(16, w, lockstep);
    }
  }
  std::fprintf(stderr, "%-6s %7s %7s %6s %10s %10s %12s %12s\n", "case",
               "shards", "workers", "bytes", "server us", "worker us",
               "per second", "server bytes");
  for (const Case& c : cases) {
    if (const absl::Status status = Measure(c); !status.ok()) {
      std::fprintf(stderr, "bench_scale: %s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
