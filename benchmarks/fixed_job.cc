#include "benchmarks/fixed_job.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/endpoint.h"
#include "common/net/poller.h"
#include "common/net/shm/shm_transport.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/status.h"
#include "common/view/shard_map.h"
#include "server/shard/control_endpoint.h"
#include "server/shard/shard_thread.h"

namespace slackline::bench {
namespace {

constexpr unsigned kSecondsMax = 300;

// One shard thread that has been told the view. Writes its endpoints and lives
// until it is killed.
absl::Status Serve(const FixedJob& job, int output) {
  ZmqTransport over_network;
  ShmTransport transport(over_network);
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Listener> control,
                      transport.Listen({}));
  SL_RETURN_IF_ERROR(control->Bind(kControlEndpoint).status());
  ShardThread::Options options;
  options.core.self = {.server = 0, .thread = 0};
  options.host = "127.0.0.1";
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<ShardThread> thread,
                      ShardThread::Start(transport, options, {}));
  SL_ASSIGN_OR_RETURN(std::shared_ptr<const View> view,
                      View::Create(ViewOf(job, thread->endpoints())));
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
  SL_CHECK(thread->endpoints().SerializeToFileDescriptor(output), "write");
  close(output);
  for (;;) pause();
}

}  // namespace

Incarnation IncarnationOf(int rank) { return 100 + rank; }

wire::View ViewOf(const FixedJob& job, const wire::Endpoints& server) {
  wire::View view;
  view.set_number(1);
  view.set_run(kFixedRun);
  view.set_job("fixed-job");
  view.set_state(wire::RUNNING);
  sync::Mode& mode = *view.add_phase()->mutable_mode();
  if (job.lockstep) {
    mode.mutable_bsp();
  } else {
    mode.mutable_asp();
  }
  view.set_steps_total(int64_t{1} << 40);
  view.set_steps_per_epoch(int64_t{1} << 40);
  *view.add_server()->add_thread() = server;
  for (int rank = 0; rank < job.workers; ++rank) {
    wire::WorkerMember& worker = *view.add_worker();
    worker.set_rank(rank);
    worker.set_incarnation(IncarnationOf(rank));
    worker.set_founder(true);
  }
  const int64_t elements =
      job.shard_bytes / static_cast<int64_t>(sizeof(float));
  wire::Table& table = *view.add_table();
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1);
  table.set_name("table");
  table.add_shape(job.shards * elements);
  table.set_shard_elements(elements);
  table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
  for (int shard = 0; shard < job.shards; ++shard) {
    view.add_owner_server(0);
    view.add_owner_thread(0);
  }
  return view;
}

absl::StatusOr<std::unique_ptr<FixedServer>> FixedServer::Start(
    const FixedJob& job) {
  int ends[2];
  SL_CHECK(pipe(ends) == 0, "pipe");
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  SL_CHECK(pid >= 0, "fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    alarm(kSecondsMax);
    close(ends[0]);
    const absl::Status status = Serve(job, ends[1]);
    std::fprintf(stderr, "server: %s\n", status.ToString().c_str());
    _exit(1);
  }
  close(ends[1]);
  std::unique_ptr<FixedServer> server(new FixedServer(pid));
  const bool parsed = server->endpoints_.ParseFromFileDescriptor(ends[0]);
  close(ends[0]);
  if (!parsed || NetworkEndpoint(server->endpoints_).empty())
    return absl::AbortedError("the server's process failed");
  return server;
}

FixedServer::~FixedServer() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

}  // namespace slackline::bench
