#include "common/config/cluster_checks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/block/bounds.h"
#include "common/block/scalar_defaults.h"
#include "common/config/cluster_config.h"
#include "common/config/field_names.h"
#include "common/config/launch_checks.h"
#include "common/config/shell_line.h"
#include "common/endpoint.h"
#include "common/host_port.h"
#include "google/protobuf/descriptor.h"

namespace slackline {
namespace {

// Bounds on counts. They refuse slips of the keyboard, not real clusters.
constexpr int kServersMax = 1024;
constexpr int kReplicasMax = 2;
constexpr int kShardThreadsMax = 1024;  // Of a server.
constexpr int kComputeThreadsMax = 256;
constexpr int kJobLengthMax = 64;
constexpr int kHostLengthMax = 253;  // RFC 1035's bound on names.
constexpr int kCpusMax = 4096;
constexpr int kMemoryMbMax = 64 << 20;  // 64 TiB.
constexpr int kGpuMax = 1023;           // The largest index.
constexpr int kEtcdEndpointsMax = 16;
constexpr size_t kEtcdPrefixLengthMax = 200;
constexpr size_t kEtcdUserLengthMax = 200;

bool IsNumericAddress(absl::string_view host) {
  return !host.empty() &&
         host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

// Two names for one interface would hide a port that is taken twice.
std::string SameHostKey(const std::string& host) {
  return host == "localhost" ? "127.0.0.1" : CanonicalHost(host);
}

// The numeric address that is meant by one with letters that look like digits,
// as in "127.0.0.l"; empty: none is.
std::string AddressWithDigits(const std::string& host) {
  const std::vector<std::string> parts = absl::StrSplit(host, '.');
  if (parts.size() != 4) return "";
  int numbers = 0;
  std::string meant;
  for (const std::string& part : parts) {
    numbers += IsNumericAddress(part) ? 1 : 0;
    absl::StrAppend(
        &meant, meant.empty() ? "" : ".",
        absl::StrReplaceAll(part,
                            {{"l", "1"}, {"I", "1"}, {"o", "0"}, {"O", "0"}}));
  }
  // A name may have single letters between its dots.
  return numbers >= 2 && numbers < 4 && IsNumericAddress(meant) ? meant : "";
}

// Empty if `host` can be connected to as it is written, else what is wrong.
std::string HostProblem(const std::string& host) {
  if (host.empty()) return "is empty; a name or a numeric address is required";
  if (IsAnyAddress(host) || host == "[::]") {
    return absl::StrCat("value is ", host,
                        "; the other processes connect to this address, so "
                        "write the one under which they reach the machine");
  }
  if (host.size() > kHostLengthMax) {
    return absl::StrCat("value has ", host.size(), " characters; at most ",
                        kHostLengthMax, " are allowed");
  }
  if (absl::StrContains(host, "://")) {
    return absl::StrCat("value is ", Printable(host),
                        "; leave out the part up to ://");
  }
  if (IsIpv6(host)) {
    const std::string address = CanonicalHost(host);
    const bool link_local = address.size() > 3 &&
                            address.substr(0, 2) == "fe" &&
                            absl::StrContains("89ab", address.substr(2, 1));
    return link_local
               ? absl::StrCat("value is ", host,
                              "; an address of one link (fe80::/10) needs a "
                              "zone, which is another one on each machine, "
                              "write a unique local or a global address")
               : "";
  }
  const size_t colons = std::count(host.begin(), host.end(), ':');
  if (colons == 1) {
    return absl::StrCat("value is ", Printable(host),
                        "; the port goes into the field port");
  }
  if (colons > 1) {
    return absl::StrCat("value is ", Printable(host),
                        "; an IPv6 address is written without brackets, port "
                        "and zone, as in \"fd00::5\"");
  }
  for (const unsigned char c : host) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '-' && c != '_') {
      return absl::StrCat("value is ", Printable(host),
                          "; only letters, digits, '.', '-' and '_' are "
                          "allowed in a host name, and in one of server or "
                          "worker {index}, the number of the process in its "
                          "group");
    }
  }
  if (const std::string meant = AddressWithDigits(host); !meant.empty()) {
    return absl::StrCat("value is ", host,
                        ", with a letter in place of a digit; an IPv4 address "
                        "has four numbers from 0 to 255; did you mean ",
                        meant, "?");
  }
  if (!IsNumericAddress(host)) return "";
  const std::vector<std::string> parts = absl::StrSplit(host, '.');
  bool valid = parts.size() == 4;
  for (const std::string& part : parts) {
    int number = 0;
    valid = valid && part.size() <= 3 && absl::SimpleAtoi(part, &number) &&
            number <= 255;
  }
  return valid ? ""
               : absl::StrCat("value is ", host,
                              "; an IPv4 address has four numbers from 0 to "
                              "255, as in 10.0.0.5");
}

bool IsHttps(absl::string_view endpoint) {
  return absl::StartsWith(endpoint, "https://");
}

// Of "http://HOST:PORT".
std::string HostOfHttp(absl::string_view endpoint) {
  (void)absl::ConsumePrefix(&endpoint, "http://");
  return SplitHostPort(endpoint).first;
}

// Empty if the endpoint is "https://HOST:PORT", or "http://HOST:PORT" of a host
// that may be used so.
std::string EtcdEndpointProblem(const std::string& endpoint, bool insecure) {
  absl::string_view rest = endpoint;
  const bool is_https = IsHttps(endpoint);
  const bool is_http = absl::ConsumePrefix(&rest, "http://") ||
                       absl::ConsumePrefix(&rest, "https://");
  const size_t colon = rest.rfind(':');
  int port = 0;
  if (!is_http || colon == absl::string_view::npos ||
      rest.size() - colon - 1 > 5 ||
      !std::all_of(rest.begin() + static_cast<int64_t>(colon) + 1, rest.end(),
                   absl::ascii_isdigit) ||
      !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    return absl::StrCat("value is ", Printable(endpoint),
                        "; https:// or http://, a host, a colon and a port "
                        "from 1 to 65535 are required, as in "
                        "\"https://10.0.0.5:2379\"");
  }
  std::string host(rest.substr(0, colon));
  const bool in_brackets = host.size() > 2 && host.front() == '[' &&
                           host.back() == ']' &&
                           IsIpv6(host.substr(1, host.size() - 2));
  if (in_brackets) host = host.substr(1, host.size() - 2);
  if (!in_brackets && absl::StrContains(host, ':')) {
    return absl::StrCat("value is ", Printable(endpoint),
                        "; an IPv6 address stands in brackets before the "
                        "port, as in \"https://[fd00::5]:2379\"");
  }
  if (const std::string problem = HostProblem(host); !problem.empty())
    return absl::StrCat("the host's ", problem);
  if (is_https || insecure || IsLoopback(host)) return "";
  return absl::StrCat(
      "value is ", Printable(endpoint),
      "; by http:// nothing there is encrypted or authenticated, write "
      "https:// "
      "with coordinator { etcd { ca } }, or set insecure: true to accept that "
      "on a network that you trust");
}

bool IsEtcdPrefix(absl::string_view prefix) {
  return prefix.size() >= 2 && prefix.size() <= kEtcdPrefixLengthMax &&
         prefix.front() == '/' && prefix.back() != '/' &&
         std::all_of(prefix.begin(), prefix.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' ||
                  c == '/';
         });
}

class ClusterChecks {
 public:
  ClusterChecks(const config::ClusterConfig& config,
                const FieldOrigins& origins, const ConfigProblems& problems)
      : config_(config), origins_(origins), problems_(problems) {}

  void Run() const {
    CheckJob();
    CheckServers();
    CheckEtcd();
    CheckWorkers();
    CheckHosts();
    CheckListens();
    CheckPorts();
    CheckTransport();
    CheckHealth();
    CheckLaunch(config_, problems_);
    CheckTrack(config_, problems_);
  }

 private:
  void CheckJob() const {
    const std::string& job = config_.job();
    if (!config_.has_job()) {
      return problems_.Add("job",
                           "is missing; name the run, as in job: \"mnist\"");
    }
    bool valid = !job.empty() && job.size() <= kJobLengthMax &&
                 absl::ascii_isalnum(static_cast<unsigned char>(job[0]));
    for (const unsigned char c : job) {
      valid =
          valid && (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.');
    }
    // Output files and sockets carry the name.
    if (!valid) {
      problems_.Add(
          "job",
          absl::StrCat("value is ", Printable(job), "; 1 to ", kJobLengthMax,
                       " letters, digits, '-', '_' or '.' are required, "
                       "the first a letter or digit"));
    }
  }

  void CheckServers() const {
    if (config_.server_size() == 0) {
      return problems_.Add(
          "server",
          "is missing; at least one is required, as in server { "
          "host: \"127.0.0.1\" }");
    }
    int64_t total = 0;
    for (int i = 0; i < std::min(config_.server_size(), kGroupsMax); ++i) {
      const config::ServerGroup& group = config_.server(i);
      const std::string path = absl::StrCat("server[", i, "]");
      problems_.Range(path + ".count", group.count(), 1, kServersMax);
      problems_.Range(path + ".threads", group.threads(), 1, kShardThreadsMax);
      problems_.Range(path + ".port", group.port(), 0, 65535);
      problems_.Slowdown(path + ".slowdown", group.slowdown(),
                         "the server's own speed");
      CheckNeeds(path, group);
      total += group.count();
    }
    CheckTotal("server", config_.server_size(), total, kServersMax);
    CheckReplicas(total);
  }

  void CheckEtcd() const {
    if (!config_.coordinator().has_etcd()) return;
    const config::Etcd& etcd = config_.coordinator().etcd();
    const ConfigProblems problems = problems_.In("coordinator").In("etcd");
    if (etcd.endpoint_size() == 0) {
      problems.Add("endpoint",
                   "is missing; write the address of each member of the etcd "
                   "cluster, as in endpoint: \"http://127.0.0.1:2379\"");
    }
    problems.Require(etcd.endpoint_size() <= kEtcdEndpointsMax, "endpoint",
                     etcd.endpoint_size(),
                     absl::StrCat("a list of at most ", kEtcdEndpointsMax));
    for (int i = 0; i < std::min(etcd.endpoint_size(), kEtcdEndpointsMax);
         ++i) {
      const std::string problem =
          EtcdEndpointProblem(etcd.endpoint(i), config_.insecure());
      if (!problem.empty())
        problems.Add(absl::StrCat("endpoint[", i, "]"), problem);
    }
    CheckEtcdFiles(etcd, problems);
    CheckEtcdUser(etcd, problems);
    // The default is as good as the job's name, which is checked.
    if (origins_.At("coordinator.etcd.prefix").empty()) return;
    if (!IsEtcdPrefix(etcd.prefix())) {
      problems.Add("prefix",
                   absl::StrCat("value is ", Printable(etcd.prefix()),
                                "; a slash and 1 to ", kEtcdPrefixLengthMax - 1,
                                " letters, digits, '-', '_', '.' or '/' are "
                                "required, no slash at the end, as in "
                                "\"/slackline/mnist\""));
    }
  }

  static void CheckEtcdFiles(const config::Etcd& etcd,
                             const ConfigProblems& problems) {
    const bool any_https =
        std::any_of(etcd.endpoint().begin(), etcd.endpoint().end(), IsHttps);
    const auto check = [&](const char* field, const std::string& path) {
      if (path.empty()) return;
      if (path.front() != '/') {
        problems.Add(field,
                     absl::StrCat("value is ", Printable(path),
                                  "; an absolute path is required, since "
                                  "servers run in folders of their own"));
      } else if (!any_https) {
        problems.Add(field, absl::StrCat("value is ", Printable(path),
                                         "; it is for https://, and no "
                                         "endpoint begins so"));
      }
    };
    check("ca", etcd.ca());
    check("certificate", etcd.certificate());
    check("private_key", etcd.private_key());
    if (any_https && etcd.ca().empty()) {
      problems.Add("ca",
                   "is missing; name the file with the certificates of those "
                   "who may have signed that of etcd, as in ca: "
                   "\"/etc/etcd/ca.pem\"");
    }
    if (etcd.certificate().empty() != etcd.private_key().empty()) {
      problems.Add(
          etcd.certificate().empty() ? "certificate" : "private_key",
          "is missing; a certificate and its private key belong together, and "
          "are for an etcd that asks for one (--client-cert-auth)");
    }
  }

  static void CheckEtcdUser(const config::Etcd& etcd,
                            const ConfigProblems& problems) {
    if (etcd.user().empty() != etcd.password_file().empty()) {
      problems.Add(etcd.user().empty() ? "user" : "password_file",
                   "is missing; a user and the file with its password belong "
                   "together, and are for an etcd with users (etcdctl auth "
                   "enable)");
    }
    const std::string& user = etcd.user();
    if (user.size() > kEtcdUserLengthMax ||
        !std::all_of(user.begin(), user.end(), absl::ascii_isgraph)) {
      problems.Add("user", absl::StrCat("value is ", Printable(user),
                                        "; at most ", kEtcdUserLengthMax,
                                        " printable characters without spaces "
                                        "are required"));
    }
    if (!etcd.password_file().empty() && etcd.password_file().front() != '/') {
      problems.Add("password_file",
                   absl::StrCat("value is ", Printable(etcd.password_file()),
                                "; an absolute path is required, since servers "
                                "run in folders of their own"));
    }
    if (user.empty()) return;
    for (int i = 0; i < std::min(etcd.endpoint_size(), kEtcdEndpointsMax);
         ++i) {
      const std::string& endpoint = etcd.endpoint(i);
      if (IsHttps(endpoint) || IsLoopback(HostOfHttp(endpoint))) continue;
      problems.Add(absl::StrCat("endpoint[", i, "]"),
                   absl::StrCat("value is ", Printable(endpoint),
                                "; with a user https:// is required to other "
                                "hosts, since whoever reads http:// has the "
                                "password, whatever insecure says"));
    }
  }

  void CheckReplicas(int64_t servers) const {
    const int replicas = config_.replicas();
    if (!problems_.Range("replicas", replicas, 0, kReplicasMax)) return;
    problems_.Require(
        replicas == 0 || replicas < servers, "replicas", replicas,
        absl::StrCat("less than the number of servers (", servers, ")"),
        "each copy of a shard is on a server of its own");
  }

  void CheckWorkers() const {
    if (config_.worker_size() == 0) {
      return problems_.Add(
          "worker",
          "is missing; at least one is required, as in worker { "
          "host: \"127.0.0.1\" count: 4 }");
    }
    int64_t total = 0;
    bool counts_ok = config_.worker_size() <= kGroupsMax, gpus_ok = true;
    for (int i = 0; i < std::min(config_.worker_size(), kGroupsMax); ++i) {
      const config::WorkerGroup& group = config_.worker(i);
      const std::string path = absl::StrCat("worker[", i, "]");
      counts_ok =
          problems_.Range(path + ".count", group.count(), 1, kWorkersMax) &&
          counts_ok;
      if (group.device() == config::WorkerGroup::DEVICE_UNSPECIFIED) {
        problems_.Add(path + ".device",
                      "value is DEVICE_UNSPECIFIED; CPU or CUDA is required");
      }
      gpus_ok = CheckGpuList(path, group) && gpus_ok;
      problems_.Range(path + ".port", group.port(), 0, 65535);
      problems_.Range(path + ".threads", group.threads(), 1,
                      kComputeThreadsMax);
      problems_.Slowdown(path + ".slowdown", group.slowdown(),
                         "the worker's own speed");
      CheckNeeds(path, group);
      if (group.has_command()) CheckCommand(path + ".command", group.command());
      total += group.count();
    }
    CheckTotal("worker", config_.worker_size(), total, kWorkersMax);
    if (gpus_ok && counts_ok && total <= kWorkersMax) CheckGpusDiffer();
  }

  template <typename Group>
  void CheckNeeds(const std::string& path, const Group& group) const {
    if (group.has_cpus())
      problems_.Range(path + ".cpus", group.cpus(), 1, kCpusMax);
    if (group.has_memory_mb())
      problems_.Range(path + ".memory_mb", group.memory_mb(), 1, kMemoryMbMax);
  }

  void CheckCommand(const std::string& path, const std::string& command) const {
    const absl::StatusOr<std::vector<std::string>> words =
        SplitShellLine(command);
    if (!words.ok()) {
      problems_.Add(path, absl::StrCat("value is ", Printable(command), "; ",
                                       words.status().message()));
    } else if (words->empty() || words->front().empty()) {
      problems_.Add(path,
                    "names no program; write one with its arguments, as in "
                    "command: \"python3 train.py\", or leave it out");
    }
  }

  // Whether the list, if there is one, can be used.
  bool CheckGpuList(const std::string& path,
                    const config::WorkerGroup& group) const {
    if (group.gpu_size() == 0) return true;
    if (group.device() != config::WorkerGroup::CUDA) {
      problems_.Add(
          path + ".gpu",
          "is for workers that train on GPUs; add device: CUDA, or leave "
          "it out");
      return false;
    }
    if (group.gpu_size() != group.count()) {
      problems_.Add(
          path + ".gpu",
          absl::StrCat("lists ", group.gpu_size(), "; one for each of the ",
                       group.count(),
                       " processes of the group is required, or none"));
      return false;
    }
    bool in_range = true;
    for (int i = 0; i < group.gpu_size(); ++i) {
      in_range = problems_.Range(absl::StrCat(path, ".gpu[", i, "]"),
                                 group.gpu(i), 0, kGpuMax) &&
                 in_range;
    }
    return in_range;
  }

  // No two processes on one GPU: NCCL refuses that.
  void CheckGpusDiffer() const {
    // Machine and index to the field that takes it.
    std::map<std::pair<std::string, int>, std::string> taken;
    const std::vector<WorkerProcess> workers = WorkerProcesses(config_);
    size_t rank = 0;
    for (int i = 0; i < config_.worker_size(); ++i) {
      const config::WorkerGroup& group = config_.worker(i);
      for (int p = 0; p < group.count(); ++p, ++rank) {
        const WorkerProcess& worker = workers[rank];
        if (worker.gpu < 0) continue;
        const std::string path = absl::StrCat(
            "worker[", i, "]",
            group.gpu_size() > 0 ? absl::StrCat(".gpu[", p, "]") : "");
        const auto [other, is_new] =
            taken.insert({{MachineOf(worker.host), worker.gpu}, path});
        if (is_new) continue;
        problems_.Add(path,
                      absl::StrCat("GPU ", worker.gpu, " of ", worker.host,
                                   " is already taken by ", other->second,
                                   "; each worker needs its own, list "
                                   "different ones in the field gpu"));
      }
    }
  }

  void CheckTotal(const std::string& field, int groups, int64_t processes,
                  int64_t processes_max) const {
    if (groups > kGroupsMax) {
      problems_.Add(field,
                    absl::StrCat("there are ", groups, " blocks; at most ",
                                 kGroupsMax, " are allowed, use count"));
    } else if (groups > 1 && processes > processes_max) {
      problems_.Add(field, absl::StrCat("there are ", processes,
                                        " processes in all; at most ",
                                        processes_max, " are allowed"));
    }
  }

  struct HostField {
    std::string path;
    std::string host;
  };

  // Fields with a usable address; the others are reported.
  std::vector<HostField> UsableHosts() const {
    std::vector<HostField> usable;
    const auto add = [&](const std::string& path, bool given,
                         const std::string& host) {
      const std::string problem =
          given ? HostProblem(host)
                : "is missing; write the address of the machine, as in host: "
                  "\"127.0.0.1\"";
      if (problem.empty()) {
        usable.push_back({path, host});
      } else {
        problems_.Add(path, problem);
      }
    };
    // A coordinator's host that is the default repeats the server's problems.
    if (!origins_.At("coordinator.host").empty()) {
      add("coordinator.host", true, config_.coordinator().host());
    }
    for (int i = 0; i < std::min(config_.server_size(), kGroupsMax); ++i) {
      const config::ServerGroup& group = config_.server(i);
      add(absl::StrCat("server[", i, "].host"), group.has_host(),
          HostOfProcess(group.host(), std::max(0, group.count() - 1)));
    }
    for (int i = 0; i < std::min(config_.worker_size(), kGroupsMax); ++i) {
      const config::WorkerGroup& group = config_.worker(i);
      add(absl::StrCat("worker[", i, "].host"), group.has_host(),
          HostOfProcess(group.host(), std::max(0, group.count() - 1)));
    }
    return usable;
  }

  // Groups or processes, which is said elsewhere.
  bool HasTooMany() const {
    const auto too_many = [](const auto& groups) {
      return groups.size() > kGroupsMax ||
             std::any_of(groups.begin(), groups.end(), [](const auto& group) {
               return group.count() > kWorkersMax;
             });
    };
    return too_many(config_.server()) || too_many(config_.worker());
  }

  void CheckHealth() const {
    if (!config_.has_health()) return;
    const config::Health& health = config_.health();
    const ConfigProblems problems = problems_.In("health");
    const std::string& host = health.host();
    const std::string problem = IsAnyAddress(host) ? "" : HostProblem(host);
    if (!problem.empty()) problems.Add("host", problem);
    if (!problems.Range("port", health.port(), 0, 65535) ||
        health.port() == 0 || HasTooMany()) {
      return;
    }
    std::map<std::string, int> processes;
    int most = 0;
    for (const ServerProcess& server : ServerProcesses(config_))
      most = std::max(most, ++processes[MachineOf(server.host)]);
    for (const WorkerProcess& worker : WorkerProcesses(config_))
      most = std::max(most, ++processes[MachineOf(worker.host)]);
    problems.Require(health.port() + most <= 65536, "port", health.port(),
                     absl::StrCat("at most ", 65536 - most),
                     absl::StrCat("one host has ", most,
                                  " processes, each with a port of its own"));
  }

  // All hosts that a pattern stands for, but for loopback addresses.
  template <typename Groups>
  static void AddHostsOfPatterns(const Groups& groups,
                                 std::set<std::string>* hosts) {
    for (int i = 0; i < std::min(groups.size(), kGroupsMax); ++i) {
      if (HostOfProcess(groups[i].host(), 0) == groups[i].host()) continue;
      for (int p = 0; p < std::min(groups[i].count(), kGroupsMax); ++p) {
        const std::string host = HostOfProcess(groups[i].host(), p);
        if (!IsLoopback(host)) hosts->insert(SameHostKey(host));
      }
    }
  }

  void CheckHosts() const {
    const HostField* loopback = nullptr;
    const HostField* remote = nullptr;
    std::set<std::string> remote_hosts;
    const std::vector<HostField> hosts = UsableHosts();
    for (const HostField& field : hosts) {
      if (IsLoopback(field.host)) {
        if (loopback == nullptr) loopback = &field;
        continue;
      }
      if (remote == nullptr) remote = &field;
      remote_hosts.insert(SameHostKey(field.host));
    }
    if (loopback != nullptr && remote != nullptr) {
      problems_.Add(
          loopback->path,
          absl::StrCat("value is ", loopback->host, "; processes on ",
                       remote->host, " (", remote->path,
                       ") cannot reach that, write this machine's address "
                       "on their network"));
    }
    AddHostsOfPatterns(config_.server(), &remote_hosts);
    AddHostsOfPatterns(config_.worker(), &remote_hosts);
    const size_t machines = remote_hosts.size() + (loopback != nullptr ? 1 : 0);
    const config::Limits::Transport transport = config_.limits().transport();
    if (IsWithinHost(transport) && machines > 1) {
      const std::string name = config::Limits::Transport_Name(transport);
      problems_.Add("limits.transport",
                    absl::StrCat("value is ", name, ", but the config names ",
                                 machines, " hosts; ", name,
                                 " works within one host, AUTO takes "
                                 "the fastest that there is"));
    }
  }

  void CheckListens() const {
    const auto check = [&](const std::string& path, bool given,
                           const std::string& listen) {
      if (!given) return;
      const bool any = IsAnyAddress(listen) && listen != "*";
      const std::string problem =
          listen == "*" ? "value is *; \"0.0.0.0\" stands for all addresses of "
                          "IPv4, and \"::\" for all of IPv6, too"
          : any         ? ""
                        : HostProblem(listen);
      if (!problem.empty()) problems_.Add(path, problem);
    };
    if (!origins_.At("coordinator.listen").empty()) {
      check("coordinator.listen", true, config_.coordinator().listen());
    }
    for (int i = 0; i < std::min(config_.server_size(), kGroupsMax); ++i) {
      check(absl::StrCat("server[", i, "].listen"),
            config_.server(i).has_listen(), config_.server(i).listen());
    }
    for (int i = 0; i < std::min(config_.worker_size(), kGroupsMax); ++i) {
      check(absl::StrCat("worker[", i, "].listen"),
            config_.worker(i).has_listen(), config_.worker(i).listen());
    }
  }

  // Ports [first, end) on one host, asked for by one field.
  struct PortClaim {
    std::string path;
    std::string host;
    int64_t first = 0;
    int64_t end = 0;
  };

  void CheckPorts() const {
    const int coordinator_port = config_.coordinator().port();
    problems_.Range("coordinator.port", coordinator_port, 0, 65535);
    std::vector<PortClaim> claims;
    const auto claim = [&](const std::string& path, const std::string& host,
                           int64_t port, int64_t count,
                           const char* of = "threads") {
      if (port < 1 || port > 65535 || count < 1) return;  // Free, or reported.
      if (port + count > 65536) {
        return problems_.Add(
            path, absl::StrCat("value is ", port, "; the group's ", count, " ",
                               of, " need ports up to ", port + count - 1,
                               ", 65535 is the largest"));
      }
      const std::string key = SameHostKey(host);
      for (const PortClaim& other : claims) {
        const int64_t shared = std::max(port, other.first);
        if (other.host != key || shared >= std::min(port + count, other.end)) {
          continue;
        }
        const std::string origin = origins_.At(other.path);
        return problems_.Add(
            path,
            absl::StrCat("address ", HostPort(host, static_cast<int>(shared)),
                         " is already taken by ", other.path, " (",
                         origin.empty() ? "default" : origin,
                         "); choose another port, or 0 for any"));
      }
      claims.push_back({path, key, port, port + count});
    };
    claim("coordinator.port", config_.coordinator().host(), coordinator_port,
          1);
    for (int i = 0; i < std::min(config_.server_size(), kGroupsMax); ++i) {
      const config::ServerGroup& group = config_.server(i);
      const auto claim_at = [&](const std::string& host, int64_t first,
                                int64_t count) {
        // The coordinator may come to the host of each server.
        const std::string key = SameHostKey(host);
        const bool is_new = std::none_of(
            claims.begin(), claims.end(), [&](const PortClaim& other) {
              return other.host == key && other.path == "coordinator.port";
            });
        if (AnyServerTakesOver(config_) && is_new)
          claim("coordinator.port", host, coordinator_port, 1);
        claim(absl::StrCat("server[", i, "].port"), host,
              group.port() == 0 ? 0 : first, count);
      };
      if (HostOfProcess(group.host(), 0) == group.host()) {
        claim_at(group.host(), group.port(),
                 int64_t{group.count()} * group.threads());
        continue;
      }
      for (int p = 0; p < std::min(group.count(), kGroupsMax); ++p) {
        claim_at(HostOfProcess(group.host(), p),
                 group.port() + int64_t{p} * group.threads(), group.threads());
      }
    }
    for (int i = 0; i < std::min(config_.worker_size(), kGroupsMax); ++i) {
      const config::WorkerGroup& group = config_.worker(i);
      const std::string path = absl::StrCat("worker[", i, "].port");
      if (HostOfProcess(group.host(), 0) == group.host()) {
        claim(path, group.host(), group.port(), group.count(), "processes");
        continue;
      }
      for (int p = 0; p < std::min(group.count(), kGroupsMax); ++p) {
        claim(path, HostOfProcess(group.host(), p),
              group.port() == 0 ? 0 : group.port() + p, 1, "processes");
      }
    }
    if (config_.health().port() == 0 || HasTooMany()) return;
    std::map<std::string, std::pair<std::string, int>> processes;
    const auto count = [&](const std::string& host) {
      std::pair<std::string, int>& on_host = processes[SameHostKey(host)];
      if (on_host.second++ == 0) on_host.first = host;
    };
    for (const ServerProcess& server : ServerProcesses(config_))
      count(server.host);
    for (const WorkerProcess& worker : WorkerProcesses(config_))
      count(worker.host);
    for (const auto& [key, on_host] : processes) {
      claim("health.port", on_host.first, config_.health().port(),
            on_host.second, "processes");
    }
  }

  void CheckTransport() const {
    if (config_.limits().transport() == config::Limits::TRANSPORT_UNSPECIFIED) {
      problems_.Add(
          "limits.transport",
          absl::StrCat(
              "value is TRANSPORT_UNSPECIFIED; ",
              ExpectedValueText(
                  *config::Limits::descriptor()->FindFieldByName("transport")),
              " is required"));
    }
  }

  const config::ClusterConfig& config_;
  const FieldOrigins& origins_;
  const ConfigProblems& problems_;
};

}  // namespace

void FillDefaults(config::ClusterConfig* config, const ConfigParts& parts) {
  config::Coordinator* coordinator = config->mutable_coordinator();
  if (!coordinator->has_host() && config->server_size() > 0 &&
      config->server(0).has_host()) {
    coordinator->set_host(HostOfProcess(config->server(0).host(), 0));
  }
  if (!coordinator->has_listen() && config->server_size() > 0 &&
      config->server(0).has_listen() &&
      coordinator->host() == HostOfProcess(config->server(0).host(), 0)) {
    coordinator->set_listen(config->server(0).listen());
  }
  if (coordinator->has_etcd() && !coordinator->etcd().has_prefix()) {
    coordinator->mutable_etcd()->set_prefix(
        absl::StrCat("/slackline/", config->job()));
  }
  config->mutable_schedule();
  config->mutable_sync()->mutable_collective();
  config->mutable_train();
  config->mutable_limits();
  config->mutable_rebalance();
  // Not the checkpoint block: that it is there, perhaps empty, has a meaning
  // (SignalWishes).
  parts.fill_defaults(config);
  WriteScalarDefaults(config);
}

void CheckCluster(const config::ClusterConfig& config,
                  const FieldOrigins& origins, const ConfigProblems& problems) {
  ClusterChecks(config, origins, problems).Run();
}

bool IsAnyAddress(absl::string_view host) {
  return host == "*" || host == "0.0.0.0" || CanonicalHost(host) == "::";
}

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || CanonicalHost(host) == "::1" ||
         (IsNumericAddress(host) && absl::StartsWith(host, "127."));
}

}  // namespace slackline
