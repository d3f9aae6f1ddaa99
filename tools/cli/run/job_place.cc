#include "tools/cli/run/job_place.h"

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/cluster_config.h"
#include "common/status.h"
#include "common/version.h"
#include "tools/cli/data/find_data.h"
#include "tools/cli/doctor/copy_lines.h"
#include "tools/cli/doctor/examination.h"
#include "tools/cli/doctor/host_examiner.h"
#include "tools/cli/doctor/job_needs.h"
#include "tools/cli/launch/ray_bridge.h"
#include "tools/cli/launch/remote_cluster.h"
#include "tools/cli/launch/remote_hosts.h"
#include "tools/cli/launch/remote_shell.h"
#include "tools/cli/members/capacity.h"
#include "tools/cli/members/local_hosts.h"
#include "tools/cli/run/hosts_of_run.h"
#include "tools/cli/run/local_cluster.h"

namespace slackline {
namespace {

constexpr absl::Duration kPortMax = absl::Seconds(30);
constexpr char kPortText[] =
    "coordinator.port (choose another, or leave it out for any free one)";

// Of an attempt to listen at the coordinator's port.
absl::Status AboutPort(const absl::Status& status) {
  // ResolveHost()'s, of a name that has no address.
  if (absl::IsNotFound(status)) return Annotate(status, "coordinator.host");
  return Annotate(status, kPortText);
}

// The hosts at which the coordinator may listen.
std::set<std::string> CoordinatorHosts(const config::ClusterConfig& config) {
  std::set<std::string> hosts = {config.coordinator().host()};
  if (AnyServerTakesOver(config)) {
    for (const ServerProcess& server : ServerProcesses(config))
      hosts.insert(server.host);
  }
  return hosts;
}

// What CheckHosts() of `hosts` is about.
doctor::Job NeedsOf(const RunOptions& options,
                    const config::ClusterConfig& config,
                    std::vector<std::string> hosts, int coordinator_port,
                    const std::string& engine) {
  const auto bin_by = [&](const config::Launch& launch) {
    return RemotePathsOf(launch, options.bin_dir, "", "").bin_dir;
  };
  doctor::Job job = JobNeeds(config, {.hosts = std::move(hosts),
                                      .coordinator_port = coordinator_port,
                                      .engine = engine,
                                      .data_dir = "",
                                      .bin_here = bin_by(config::Launch()),
                                      .bin_there = bin_by(config.launch())});
  job.set_version(VersionText("slackline"));
  return job;
}

class ThisMachine : public JobPlace {
 public:
  ThisMachine(const RunOptions& options, const config::ClusterConfig& config,
              Display* display)
      : options_(options), config_(config), display_(display) {}

  absl::Status Check() override {
    return CheckPrograms(options_.bin_dir, config_);
  }

  absl::StatusOr<std::string> FindData() override {
    return slackline::FindData(config_, options_.data_dir, display_);
  }

  absl::Status Connect(SignalWatch* /*signals*/) override {
    return absl::OkStatus();
  }

  absl::StatusOr<int> ReservePort(int port) override {
    if (port != 0) {
      for (const std::string& host : CoordinatorHosts(config_))
        SL_RETURN_IF_ERROR(AboutPort(CheckPortFree(host, port)));
      return port;
    }
    SL_ASSIGN_OR_RETURN(PortReservation free,
                        PortReservation::AnyFree(config_.coordinator().host()));
    port_.emplace(std::move(free));
    return port_->port();
  }

  absl::Status CheckCapacity(const std::string& data_dir) override {
    const Demand demand = DemandOf(config_, data_dir);
    const Capacity here = CapacityHere();
    if (options_.check_memory) SL_RETURN_IF_ERROR(CheckMemory(demand, here));
    if (const std::string warning = CoresWarning(demand, here);
        !warning.empty()) {
      display_->Print(warning);
    }
    return absl::OkStatus();
  }

  absl::Status CheckHosts(int coordinator_port) override {
    // One machine, by whatever names.
    std::map<std::string, HostExaminer> examiners;
    return slackline::CheckHosts(
        NeedsOf(options_, config_, HostsOfMembers(config_), coordinator_port,
                "here"),
        /*from_here=*/false,
        [&](std::vector<HostQuestion> questions, absl::Duration /*wait_max*/) {
          std::vector<absl::StatusOr<doctor::Reply>> replies;
          for (const HostQuestion& question : questions) {
            replies.push_back(
                examiners[question.host].Answer(question.question));
          }
          return replies;
        });
  }

  absl::StatusOr<std::unique_ptr<Cluster>> Start(
      const LaunchOptions& launch,
      const config::ClusterConfig& /*config*/) override {
    return LocalCluster::Start(launch);
  }

 private:
  const RunOptions& options_;
  const config::ClusterConfig& config_;
  Display* const display_;
  std::optional<PortReservation> port_;
};

class OtherMachines : public JobPlace {
 public:
  OtherMachines(const RunOptions& options, const config::ClusterConfig& config,
                RemoteShell shell, Display* display)
      : options_(options),
        config_(config),
        shell_(std::move(shell)),
        display_(display) {}

  absl::Status Check() override {
    SL_RETURN_IF_ERROR(CheckWorkersHavePrograms(config_));
    return CheckRemoteConfig(config_, shell_.name);
  }

  // What was named may be on the hosts alone.
  absl::StatusOr<std::string> FindData() override {
    if (!options_.data_dir.empty() || config_.launch().has_data_dir())
      return options_.data_dir;
    return slackline::FindData(config_, "", display_);
  }

  absl::Status Connect(SignalWatch* signals) override {
    signals_ = signals;
    const doctor::Job job = NeedsOf(options_, config_, HostsOfMembers(config_),
                                    /*coordinator_port=*/0, shell_.name);
    SL_ASSIGN_OR_RETURN(
        hosts_,
        RemoteHosts::Connect(
            {.shell = shell_,
             .bin_dir = job.bin_there(),
             .hosts = HostsOfMembers(config_),
             .install =
                 [job](const std::string& host, bool is_there) {
                   return InstallText(job, host, is_there);
                 },
             .say = [this](const std::string& text) { display_->Print(text); }},
            signals));
    return absl::OkStatus();
  }

  absl::StatusOr<int> ReservePort(int port) override {
    std::vector<RemoteHosts::Request> requests;
    for (const std::string& host : CoordinatorHosts(config_)) {
      agent::ToAgent message;
      message.mutable_reserve_port()->set_host(host);
      message.mutable_reserve_port()->set_port(port);
      // The host of server 0 may have another name in `coordinator`.
      const bool known = absl::c_linear_search(hosts_->hosts(), host);
      requests.push_back({.host = known ? host : hosts_->hosts().front(),
                          .message = std::move(message)});
    }
    // Any server may take over with etcd alone, which has a port that is given.
    SL_ASSIGN_OR_RETURN(const std::vector<agent::Answer> answers,
                        AnnotatedAsk(std::move(requests)));
    return port != 0 ? port : answers.front().port();
  }

  absl::Status CheckCapacity(const std::string& data_dir) override {
    const Demand all = DemandOf(config_, data_dir);
    for (const std::string& host : hosts_->hosts()) {
      Demand demand = all;
      demand.servers = demand.workers = demand.threads = 0;
      for (const ServerProcess& server : ServerProcesses(config_)) {
        if (server.host != host) continue;
        ++demand.servers;
        demand.threads += server.threads;
      }
      for (const WorkerProcess& worker : WorkerProcesses(config_)) {
        if (worker.host != host) continue;
        ++demand.workers;
        demand.threads += worker.threads;
      }
      const agent::Hello& hello = hosts_->About(host);
      const Capacity there = {.cores = hello.cores(),
                              .memory_bytes = hello.memory_bytes()};
      if (options_.check_memory) {
        SL_RETURN_IF_ERROR(
            Annotate(CheckMemory(demand, there), absl::StrCat("host ", host)));
      }
      if (const std::string warning = CoresWarning(demand, there);
          !warning.empty()) {
        display_->Print(absl::StrCat("host ", host, ": ", warning));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckHosts(int coordinator_port) override {
    return slackline::CheckHosts(
        NeedsOf(options_, config_, hosts_->hosts(), coordinator_port,
                shell_.name),
        /*from_here=*/true,
        [this](std::vector<HostQuestion> questions, absl::Duration wait_max) {
          return hosts_->AskDoctors(std::move(questions), wait_max, signals_);
        });
  }

  absl::StatusOr<std::unique_ptr<Cluster>> Start(
      const LaunchOptions& launch,
      const config::ClusterConfig& config) override {
    return RemoteCluster::Start(
        {.launch = launch,
         .config_text = ToText(config),
         .config = config,
         .paths = RemotePathsOf(config.launch(), launch.bin_dir, launch.out_dir,
                                launch.data_dir)},
        hosts_.get(), signals_);
  }

  std::string Text() const override {
    return absl::StrCat(
        "\nhosts: ", absl::StrJoin(HostsOfMembers(config_), ", "), " (",
        shell_.name, ")");
  }

 protected:
  void SetShell(RemoteShell shell) { shell_ = std::move(shell); }
  bool HasLostAny() const {
    return hosts_ != nullptr &&
           absl::c_any_of(hosts_->hosts(), [&](const std::string& host) {
             return !hosts_->On(host).Lost().ok();
           });
  }
  void Disconnect() { hosts_.reset(); }
  Display* display() const { return display_; }

 private:
  absl::StatusOr<std::vector<agent::Answer>> AnnotatedAsk(
      std::vector<RemoteHosts::Request> requests) {
    absl::StatusOr<std::vector<agent::Answer>> answers =
        hosts_->Ask(std::move(requests), kPortMax, signals_);
    if (!answers.ok()) return AboutPort(answers.status());
    return answers;
  }

  const RunOptions& options_;
  const config::ClusterConfig& config_;
  RemoteShell shell_;
  Display* const display_;
  SignalWatch* signals_ = nullptr;
  std::unique_ptr<RemoteHosts> hosts_;
};

class RayNodes : public OtherMachines {
 public:
  RayNodes(const RunOptions& options, const config::ClusterConfig& config,
           RemoteShell shell, Display* display)
      : OtherMachines(options, config, std::move(shell), display) {}
  ~RayNodes() override { Disconnect(); }  // Before the way there is gone.

  absl::Status FindHosts(SignalWatch* signals,
                         config::ClusterConfig* config) override {
    SL_ASSIGN_OR_RETURN(
        bridge_, RayBridge::Start({.config = *config,
                                   .on_these_hosts = !HasStandIns(*config),
                                   .say = [this](const std::string& text) {
                                     display()->Print(text);
                                   }}));
    SL_ASSIGN_OR_RETURN(*config, bridge_->AwaitNodes(signals));
    SetShell(bridge_->Shell());
    return absl::OkStatus();
  }

  absl::StatusOr<bool> ReplaceHosts(SignalWatch* signals,
                                    config::ClusterConfig* config) override {
    if (!HasLostAny()) return false;
    SL_ASSIGN_OR_RETURN(config::ClusterConfig now,
                        bridge_->ReplaceNodes(signals));
    if (HostsOfMembers(now) == HostsOfMembers(*config)) return false;
    Disconnect();
    *config = std::move(now);
    return true;
  }

  Gone WhatIsGone() override {
    if (!HasLostAny()) return {};
    Gone gone = {.why = bridge_->WhyGone()};
    if (gone.why.empty()) return gone;
    gone.what_to_do = absl::StrCat(
        "begin the cluster again, or name another by --set "
        "launch.ray.address=HOST:PORT; `",
        bridge_->LookCommand(), "` says whether it is there");
    return gone;
  }

 private:
  std::unique_ptr<RayBridge> bridge_;
};

}  // namespace

std::unique_ptr<JobPlace> PlaceOf(const RunOptions& options,
                                  const config::ClusterConfig& config,
                                  Display* display) {
  RemoteShell shell = ShellOf(config.launch());
  if (shell.name.empty())
    return std::make_unique<ThisMachine>(options, config, display);
  if (config.launch().has_ray()) {
    return std::make_unique<RayNodes>(options, config, std::move(shell),
                                      display);
  }
  return std::make_unique<OtherMachines>(options, config, std::move(shell),
                                         display);
}

}  // namespace slackline
