#include "tools/cli/doctor/job_needs.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/health/health_place.h"
#include "common/sync/sync_config.h"
#include "tools/cli/doctor/diagnosis.h"
#include "tools/cli/members/capacity.h"

namespace slackline {
namespace {

// Measured (/proc/PID/fd): a server with the coordinator has 57 with six peers,
// and 26 of them before anybody has connected.
constexpr int64_t kOwnFiles = 40;
constexpr int64_t kFilesPerPeer = 4;
// More are alike: a port of each group is as good as all of them.
constexpr int kDoorsMax = 16;
// Of each host. An agent holds so many sockets beside the others.
constexpr int kHealthDoorsMax = 128;

// Each process has a port for its health page, to which nobody of the job
// connects.
void AddHealthDoors(const config::ClusterConfig& config,
                    std::map<std::string, doctor::HostNeed>* needs) {
  std::map<std::string, int> counts;
  const auto add = [&](const std::string& host, const std::string& process,
                       const HealthPlace& place) {
    const auto found = needs->find(host);
    if (found == needs->end() || place.port == 0) return;
    if (++counts[host] > kHealthDoorsMax) return;
    doctor::Door& door = *found->second.add_door();
    door.set_label(absl::StrCat(kHealthDoor, process));
    door.set_host(place.host);
    door.set_port(place.port);
  };
  const HealthPlaces places = HealthPlacesOf(config);
  if (places.servers.empty()) return;
  for (const ServerProcess& server : ServerProcesses(config)) {
    add(server.host, absl::StrCat("server ", server.index),
        places.servers[static_cast<size_t>(server.index)]);
  }
  for (const WorkerProcess& worker : WorkerProcesses(config)) {
    add(worker.host, absl::StrCat("worker ", worker.rank),
        places.workers[static_cast<size_t>(worker.rank)]);
  }
}

// How the hosts are reached, and what processes there find.
void AddWays(const config::Launch& launch, bool is_elsewhere,
             doctor::Job* job) {
  if (launch.has_ssh()) {
    const config::Ssh& ssh = launch.ssh();
    std::vector<std::string> words = {ssh.program()};
    if (ssh.has_port())
      words.insert(words.end(), {"-p", absl::StrCat(ssh.port())});
    if (ssh.has_identity_file())
      words.insert(words.end(), {"-i", ssh.identity_file()});
    if (words.size() > 1 || ssh.program() != "ssh")
      job->set_ssh(ShellLine(words));
    if (ssh.has_user()) job->set_ssh_user(absl::StrCat(ssh.user(), "@"));
  }
  if (!is_elsewhere) return;
  for (const std::string& variable : launch.environment()) {
    const size_t equals = variable.find('=');
    if (equals == std::string::npos) continue;
    (*job->mutable_environment())[variable.substr(0, equals)] =
        variable.substr(equals + 1);
  }
}

void AddProgram(const std::string& path, doctor::HostNeed* need) {
  if (!absl::c_linear_search(need->program(), path)) need->add_program(path);
}

// What each host needs, by its name.
struct HostNeeds {
  void AddDoor(doctor::HostNeed* need, doctor::Door wanted);

  std::map<std::string, doctor::HostNeed> of_host;
  std::set<std::string> by_name;  // Those that others look up.
};

void HostNeeds::AddDoor(doctor::HostNeed* need, doctor::Door wanted) {
  if (!wanted.listen().empty() || wanted.coordinator())
    by_name.insert(wanted.host());
  if (wanted.port() == 0) wanted.set_label("any port");
  for (doctor::Door& door : *need->mutable_door()) {
    // Of doors at any port one stands for all.
    if (door.port() == wanted.port() && door.host() == wanted.host() &&
        door.listen() == wanted.listen()) {
      door.set_coordinator(door.coordinator() || wanted.coordinator());
      door.set_servers(door.servers() || wanted.servers());
      door.set_workers(door.workers() || wanted.workers());
      return;
    }
  }
  if (need->door_size() < kDoorsMax) *need->add_door() = std::move(wanted);
}

// `coordinator` is its door, wherever it is.
void AddServers(const config::ClusterConfig& config,
                const JobNeedsOptions& options, const doctor::Door& coordinator,
                HostNeeds* needs) {
  for (const ServerProcess& server : ServerProcesses(config)) {
    const auto found = needs->of_host.find(server.host);
    if (found == needs->of_host.end()) continue;
    doctor::HostNeed& need = found->second;
    need.set_servers(need.servers() + 1);
    need.set_threads(need.threads() + server.threads);
    AddProgram(absl::StrCat(options.bin_there, "/slackline_server"), &need);
    need.set_writes_checkpoints(true);
    need.set_listen(need.listen() && !server.listen.empty());
    doctor::Door door = coordinator;
    door.set_host(server.host);
    door.set_listen(server.listen);
    // Two names of one machine have one such port.
    if (AnyServerTakesOver(config) && options.coordinator_port != 0 &&
        MachineOf(server.host) != MachineOf(config.coordinator().host())) {
      needs->AddDoor(&need, door);
    }
    door.set_label(absl::StrCat("server ", server.index));
    door.set_coordinator(false);
    door.set_servers(true);
    for (int thread = 0; thread < server.threads; ++thread) {
      door.set_port(server.first_port == 0 ? 0 : server.first_port + thread);
      needs->AddDoor(&need, door);
    }
  }
}

void AddWorkers(const config::ClusterConfig& config,
                const JobNeedsOptions& options, HostNeeds* needs) {
  const bool may_all_reduce = MayAllReduce(config.sync());
  for (const WorkerProcess& worker : WorkerProcesses(config)) {
    const auto found = needs->of_host.find(worker.host);
    if (found == needs->of_host.end()) continue;
    doctor::HostNeed& need = found->second;
    need.set_workers(need.workers() + 1);
    need.set_threads(need.threads() + worker.threads);
    need.set_gpus(std::max(need.gpus(), worker.gpu + 1));
    if (!worker.command.empty()) {
      need.set_own_programs(true);
    } else if (config.has_model()) {
      AddProgram(absl::StrCat(options.bin_there, "/slackline_worker"), &need);
    }
    need.set_data(need.data() ||
                  (config.has_data() && !config.data().has_teacher_student()));
    // With all-reduce worker 0 writes checkpoints.
    if (worker.rank == 0) need.set_writes_checkpoints(true);
    need.set_listen(need.listen() && !worker.listen.empty());
    if (!may_all_reduce) continue;
    doctor::Door door;
    door.set_label(absl::StrCat("worker ", worker.rank));
    door.set_host(worker.host);
    door.set_listen(worker.listen);
    door.set_port(worker.port);
    door.set_workers(true);
    needs->AddDoor(&need, door);
  }
}

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
  job.set_has_key(!config.insecure());
  const bool is_elsewhere = options.engine != "here";
  job.set_bin_here(options.bin_here);
  job.set_bin_there(options.bin_there);
  AddWays(config.launch(), is_elsewhere, &job);
  // As the coordinator's LinkCheck has it: copies, and moves that nobody asks
  // for.
  job.set_servers_need_each_other(config.replicas() > 0 ||
                                  config.rebalance().mode() ==
                                      config::Rebalance::AUTO);
  job.set_shares_run_folder(is_elsewhere && AnyServerTakesOver(config));
  if (config.has_checkpoint()) {
    job.set_checkpoint_keep(config.checkpoint().keep());
    job.set_shares_checkpoints(is_elsewhere);
  }
  auto peers = static_cast<int64_t>(WorkerProcesses(config).size());
  for (const ServerProcess& server : ServerProcesses(config))
    peers += server.threads;

  HostNeeds needs{.of_host = {}, .by_name = {config.coordinator().host()}};
  for (const std::string& host : options.hosts) {
    doctor::HostNeed& need = needs.of_host[host];
    need.set_name(host);
    need.set_server_bytes(demand.server_bytes);
    need.set_worker_bytes(demand.worker_bytes);
    need.set_open_files(kOwnFiles + kFilesPerPeer * peers);
    need.set_listen(true);
  }
  doctor::Door coordinator;
  coordinator.set_label("coordinator");
  coordinator.set_host(config.coordinator().host());
  coordinator.set_listen(config.coordinator().listen());
  coordinator.set_port(options.coordinator_port);
  coordinator.set_coordinator(true);
  if (!options.hosts.empty())
    needs.AddDoor(&needs.of_host[options.hosts.front()], coordinator);
  AddServers(config, options, coordinator, &needs);
  AddWorkers(config, options, &needs);
  AddHealthDoors(config, &needs.of_host);
  for (const std::string& host : options.hosts)
    *job.add_host() = needs.of_host[host];
  job.mutable_by_name()->Assign(needs.by_name.begin(), needs.by_name.end());
  return job;
}

}  // namespace slackline
