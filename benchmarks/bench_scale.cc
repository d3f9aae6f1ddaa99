// What does a push and a pull of one shard cost, as a job grows?
//
// One shard thread in a process of its own, ASP with SGD, and W workers in this
// one: the product's ClientCore over TCP connections, one for each worker. A
// step of a worker pushes and pulls all S shards of B bytes. The expected cost
// of one push and one pull is the same for every S and W: a few lookups, the
// copy of B bytes, and a share of a message. `bsp` is the same with all workers
// in lockstep: nearly every pull is parked until the last push of its clock has
// come. `stream` is different: one worker pushes one shard without ever
// pulling, with P pushes unanswered.
//
// server_us and worker_us are processor time for each push and pull of a shard
// (of `stream`: for each push), ZeroMQ's threads included: so other programs
// disturb them less than they disturb wall time. server_bytes is what the
// memory of the server grows by for each pair of a shard and a worker.
//
// stdout: one JSON line for each case. stderr: the same as a table.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
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
#include "benchmarks/report.h"
#include "common/net/poller.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/process/freed_memory.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "server/control_endpoint.h"
#include "server/shard/shard_thread.h"
#include "worker/client/client_core.h"

namespace slackline::bench {
namespace {

constexpr uint64_t kRun = 1;
// A case that takes longer is stuck.
constexpr unsigned kCaseSecondsMax = 300;
// ZeroMQ allows 1023 sockets in a context.
constexpr int kWorkersPerTransport = 256;

struct Case {
  int shards = 1;
  int workers = 1;
  int64_t shard_bytes = 64;
  int64_t steps = 1;  // Of each worker, after the first, which is not timed.
  int in_flight = 0;  // Of `stream`: pushes unanswered. 0: steps with pulls.
  bool lockstep = false;  // BSP; else ASP.
  const char* name() const {
    if (in_flight > 0) return "stream";
    return lockstep ? "bsp" : "steps";
  }
};

Incarnation IncarnationOf(int rank) { return 100 + rank; }

wire::View ViewOf(const Case& c, const wire::Endpoints& server) {
  wire::View view;
  view.set_number(1);
  view.set_run(kRun);
  view.set_job("bench-scale");
  view.set_state(wire::RUNNING);
  sync::Mode& mode = *view.add_phase()->mutable_mode();
  if (c.lockstep) {
    mode.mutable_bsp();
  } else {
    mode.mutable_asp();
  }
  view.set_steps_total(int64_t{1} << 40);
  view.set_steps_per_epoch(int64_t{1} << 40);
  *view.add_server()->add_thread() = server;
  for (int rank = 0; rank < c.workers; ++rank) {
    wire::WorkerMember& worker = *view.add_worker();
    worker.set_rank(rank);
    worker.set_incarnation(IncarnationOf(rank));
    worker.set_founder(true);
  }
  const int64_t elements = c.shard_bytes / static_cast<int64_t>(sizeof(float));
  wire::Table& table = *view.add_table();
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1);
  table.set_name("table");
  table.add_shape(c.shards * elements);
  table.set_shard_elements(elements);
  table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
  for (int shard = 0; shard < c.shards; ++shard) {
    view.add_owner_server(0);
    view.add_owner_thread(0);
  }
  return view;
}

// The server's process: one shard thread that has been told the view. Writes
// its endpoint and lives until it is killed.
absl::Status Serve(const Case& c, int output) {
  ZmqTransport transport;
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Listener> control,
                      transport.Listen({}));
  SL_RETURN_IF_ERROR(control->Bind(kControlEndpoint).status());
  ShardThread::Options options;
  options.core.self = {.server = 0, .thread = 0};
  options.host = "127.0.0.1";
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<ShardThread> thread,
                      ShardThread::Start(transport, options, {}));
  SL_ASSIGN_OR_RETURN(std::shared_ptr<const View> view,
                      View::Create(ViewOf(c, thread->endpoints())));
  thread->Follow(std::move(view));
  // Asks it until it answers that it has the view.
  Poller poller;
  poller.Add(*control);
  for (uint64_t seen = 0; seen == 0;) {
    SL_RETURN_IF_ERROR(poller.Wait(absl::InfiniteDuration()));
    SL_ASSIGN_OR_RETURN(const std::optional<Listener::Incoming> told,
                        control->Receive());
    if (!told.has_value()) continue;
    seen = told->message.header.view_number();
    Message question;
    question.header.mutable_stats_request();
    SL_RETURN_IF_ERROR(control->Send(told->from, question));
  }
  const std::string line = thread->endpoints().tcp() + "\n";
  SL_CHECK(write(output, line.data(), line.size()) ==
               static_cast<ssize_t>(line.size()),
           "write");
  for (;;) pause();
}

// The process; killed with this object.
class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Case& c) {
    int ends[2];
    SL_CHECK(pipe(ends) == 0, "pipe");
    std::fflush(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    SL_CHECK(pid >= 0, "fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      alarm(kCaseSecondsMax);
      close(ends[0]);
      const absl::Status status = Serve(c, ends[1]);
      std::fprintf(stderr, "bench_scale: %s\n", status.ToString().c_str());
      _exit(1);
    }
    close(ends[1]);
    std::unique_ptr<Server> server(new Server(pid));
    for (char byte; read(ends[0], &byte, 1) == 1 && byte != '\n';)
      server->endpoint_.push_back(byte);
    close(ends[0]);
    if (server->endpoint_.empty())
      return absl::AbortedError("the server's process failed");
    return server;
  }
  ~Server() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  const std::string& endpoint() const { return endpoint_; }
  double CpuSeconds() const {
    clockid_t clock;
    timespec time{};
    SL_CHECK(clock_getcpuclockid(pid_, &clock) == 0, "clock_getcpuclockid");
    clock_gettime(clock, &time);
    return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
  }
  int64_t ResidentBytes() const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/statm"));
    int64_t size = 0;
    int64_t resident = 0;
    file >> size >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }

 private:
  explicit Server(pid_t pid) : pid_(pid) {}
  const pid_t pid_;
  std::string endpoint_;
};

double OwnCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
}

class Workers {
 public:
  static absl::StatusOr<std::unique_ptr<Workers>> Create(
      const Case& c, const std::string& endpoint) {
    wire::Endpoints endpoints;
    endpoints.set_tcp(endpoint);
    SL_ASSIGN_OR_RETURN(std::shared_ptr<const View> view,
                        View::Create(ViewOf(c, endpoints)));
    std::unique_ptr<Workers> all(new Workers(c));
    for (int rank = 0; rank < c.workers; ++rank) {
      if (rank % kWorkersPerTransport == 0)
        all->transports_.push_back(std::make_unique<ZmqTransport>());
      auto worker = std::make_unique<Worker>(
          ClientCore::Options{.rank = Rank{rank},
                              .incarnation = IncarnationOf(rank),
                              .run = kRun},
          view);
      SL_ASSIGN_OR_RETURN(
          worker->channel,
          all->transports_.back()->Connect({.kind = PeerId::Kind::kWorker,
                                            .index = rank,
                                            .instance = IncarnationOf(rank)},
                                           endpoint, ChannelOptions()));
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

  explicit Workers(const Case& c)
      : case_(c),
        gradient_(Payload::Allocate(c.shards * c.shard_bytes)),
        versions_(c.shards, 0) {
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
      if (case_.in_flight > 0 &&
          worker.client.unacknowledged_bytes() >=
              static_cast<size_t>(case_.in_flight) * gradient_.size()) {
        return absl::OkStatus();
      }
      ClientCore::Effects effects;
      SL_RETURN_IF_ERROR(worker.client.Push(worker.clock++, TableId{0},
                                            gradient_, /*rate_factor=*/1,
                                            versions_, time_.Now(), &effects));
      if (case_.in_flight == 0) {
        worker.client.Pull(worker.clock, worker.clock, time_.Now(), &effects);
        worker.pulling = true;
      }
      SL_RETURN_IF_ERROR(Perform(worker, effects));
    }
    return absl::OkStatus();
  }

  absl::Status Perform(Worker& worker, ClientCore::Effects& effects) {
    SL_RETURN_IF_ERROR(effects.failure);
    for (const ClientCore::Send& send : effects.sends)
      SL_RETURN_IF_ERROR(worker.channel->Send(send.message));
    for (const ClientCore::PullResult& pulled : effects.pulled) {
      newest_ = std::max(newest_, pulled.shards.front().version);
      worker.pulling = false;
    }
    return absl::OkStatus();
  }

  const Case case_;
  const TimeSource time_;
  Payload gradient_;
  const std::vector<Version> versions_;
  std::vector<std::unique_ptr<ZmqTransport>> transports_;
  Poller poller_;
  std::vector<std::unique_ptr<Worker>> workers_;
  Version newest_ = 0;
};

absl::Status Measure(const Case& c) {
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::Start(c));
  const int64_t empty = server->ResidentBytes();
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Workers> workers,
                      Workers::Create(c, server->endpoint()));
  SL_RETURN_IF_ERROR(workers->Run(1));  // Connects, and touches all memory.
  const int64_t full = server->ResidentBytes();
  const double server_before = server->CpuSeconds();
  const double own_before = OwnCpuSeconds();
  const auto start = std::chrono::steady_clock::now();
  SL_RETURN_IF_ERROR(workers->Run(c.steps));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  const double requests = static_cast<double>(c.steps) * c.shards * c.workers;
  const double server_us =
      (server->CpuSeconds() - server_before) * 1e6 / requests;
  const double worker_us = (OwnCpuSeconds() - own_before) * 1e6 / requests;
  const auto pairs = static_cast<double>(c.shards) * c.workers;
  const double server_bytes = static_cast<double>(full - empty) / pairs;
  // In lockstep, a clock makes one update.
  const auto updates = static_cast<Version>(
      (c.steps + 1) * (c.lockstep ? 1 : c.workers));
  if (c.in_flight == 0 && workers->newest() != updates) {
    return absl::InternalError(absl::StrCat("the shard is at version ",
                                            workers->newest(), " after ",
                                            updates, " pushes"));
  }
  PrintJsonLine("bench_scale", {{"case", c.name()},
                                {"shards", c.shards},
                                {"workers", c.workers},
                                {"shard_bytes", c.shard_bytes},
                                {"steps", c.steps},
                                {"in_flight", c.in_flight},
                                {"server_us", server_us},
                                {"worker_us", worker_us},
                                {"per_second", requests / seconds},
                                {"server_bytes", server_bytes},
                                {"retries", workers->retries()}});
  std::fprintf(stderr, "%-6s %7d %7d %6lld %10.2f %10.2f %12.0f %12.0f\n",
               c.name(), c.shards, c.workers,
               static_cast<long long>(c.shard_bytes), server_us, worker_us,
               requests / seconds, server_bytes);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::vector<int> shards = {16, 256, 4096, 100000};
  std::vector<int> workers = {1, 16, 128, 1024};
  int64_t shard_bytes = 64;
  int64_t requests = 400000;
  int64_t pushes = 1000000;
  int in_flight = 256;
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
  app.add_option("--pushes", pushes, "of the stream; 0: no stream")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--in-flight", in_flight, "pushes of the stream unanswered")
      ->check(CLI::Range(1, 1 << 20))
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
    pushes = 2000;
  }
  // A worker's connection needs several descriptors.
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  KeepFreedMemory();

  std::vector<Case> cases;
  const auto add = [&](int s, int w, bool lockstep) {
    cases.push_back({.shards = s,
                     .workers = w,
                     .shard_bytes = shard_bytes,
                     .steps = std::max<int64_t>(2, requests / s / w),
                     .lockstep = lockstep});
  };
  for (const int s : shards) add(s, 1, false);
  for (const bool lockstep : {false, true}) {
    for (const int w : workers) {
      if (w != 1) add(16, w, lockstep);
    }
  }
  if (pushes > 0) {
    cases.push_back(
        {.shard_bytes = shard_bytes, .steps = pushes, .in_flight = in_flight});
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
