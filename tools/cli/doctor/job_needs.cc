#include "tools/cli/doctor/job_needs.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "tools/cli/run/capacity.h"

namespace slackline {
namespace {

// Of a process: logs, libraries, its own sockets; and what a connection to
// another one takes at most, with shared memory (a socket, two rings, two
// arenas, and one connection in each direction).
constexpr int64_t kOwnFiles = 128;
constexpr int64_t kFilesPerPeer = 12;
constexpr int64_t kKeepMax = 1000;
// More are alike: a port of each group is as good as all of them.
constexpr int kDoorsMax = 16;

}  // namespace

doctor::Job JobNeeds(const config::ClusterConfig& config,
                     const JobNeedsOptions& options) {
  const Demand demand = DemandOf(config, options.data_dir);
  doctor::Job job;
  job.set_job(config.job());
  job.set_engine(options.engine);
  job.set_model_bytes(demand.model_bytes);
  job.set_shared_memory_only(config.limits().transport() ==
                             config::Limits::SHM);
  const bool is_elsewhere = options.engine != "here";
  const bool any_server = AnyServerTakesOver(config);
  job.set_shares_run_folder(is_elsewhere && any_server);
  if (config.has_checkpoint()) {
    job.set_checkpoint_keep(
        std::min<int64_t>(config.checkpoint().keep(), kKeepMax));
    job.set_shares_checkpoints(is_elsewhere);
  }
  const std::vector<ServerProcess> servers = ServerProcesses(config);
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  int64_t peers = static_cast<int64_t>(workers.size());
  for (const ServerProcess& server : servers) peers += server.threads;

  std::map<std::string, doctor::HostNeed> needs;
  for (const std::string& host : options.hosts) {
    doctor::HostNeed& need = needs[host];
    need.set_name(host);
    need.set_server_bytes(demand.server_bytes);
    need.set_worker_bytes(demand.worker_bytes);
    need.set_open_files(kOwnFiles + kFilesPerPeer * peers);
    need.set_listen(true);
  }
  const auto add_door = [](doctor::HostNeed* need, const std::string& label,
                           const std::string& host, const std::string& listen,
                           int port) {
    if (need->door_size() >= kDoorsMax) return;
    for (const doctor::Door& door : need->door()) {
      // Of doors at any port one stands for all.
      if (door.port() == port && door.host() == host &&
          door.listen() == listen) {
        return;
      }
    }
    doctor::Door& door = *need->add_door();
    door.set_label(port == 0 ? "any port" : label);
    door.set_host(host);
    door.set_listen(listen);
    door.set_port(port);
  };
  if (!options.hosts.empty()) {
    doctor::HostNeed& first = needs[options.hosts.front()];
    add_door(&first, "coordinator", config.coordinator().host(),
             config.coordinator().listen(), options.coordinator_port);
  }
  for (const ServerProcess& server : servers) {
    const auto found = needs.find(server.host);
    if (found == needs.end()) continue;
    doctor::HostNeed& need = found->second;
    need.set_servers(need.servers() + 1);
    need.set_threads(need.threads() + server.threads);
    need.set_writes_checkpoints(true);
    need.set_listen(need.listen() && !server.listen.empty());
    if (any_server && options.coordinator_port != 0) {
      add_door(&need, "coordinator", server.host, server.listen,
               options.coordinator_port);
    }
    for (int thread = 0; thread < server.threads; ++thread) {
      add_door(&need, absl::StrCat("server ", server.index), server.host,
               server.listen,
               server.first_port == 0 ? 0 : server.first_port + thread);
    }
  }
  for (const WorkerProcess& worker : workers) {
    const auto found = needs.find(worker.host);
    if (found == needs.end()) continue;
    doctor::HostNeed& need = found->second;
    need.set_workers(need.workers() + 1);
    need.set_threads(need.threads() + worker.threads);
    need.set_gpus(std::max(need.gpus(), worker.gpu + 1));
    need.set_own_programs(need.own_programs() || !worker.command.empty());
    need.set_data(need.data() ||
                  (config.has_data() && !config.data().has_teacher_student()));
    // With all-reduce worker 0 writes checkpoints.
    if (worker.rank == 0) need.set_writes_checkpoints(true);
    need.set_listen(need.listen() && !worker.listen.empty());
    add_door(&need, absl::StrCat("worker ", worker.rank), worker.host,
             worker.listen, worker.port);
  }
  for (const std::string& host : options.hosts) *job.add_host() = needs[host];
  return job;
}

}  // namespace slackline
