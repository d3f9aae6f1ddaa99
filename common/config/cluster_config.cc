#include "common/config/cluster_config.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/block/field_origins.h"
#include "common/config/cluster_checks.h"
#include "common/config/overrides.h"
#include "common/config/parse_text.h"
#include "common/host_port.h"
#include "common/rng.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"
#include "google/protobuf/text_format.h"

namespace slackline {

absl::StatusOr<std::string> ReadTextFile(absl::string_view what,
                                         const std::string& path) {
  const std::string file = absl::StrCat(what, " '", path, "'");
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::NotFoundError(
        absl::StrCat(file, " is a folder; a file is required"));
  }
  // To open a pipe waits for whoever writes to it, perhaps for ever.
  if (std::filesystem::is_other(path, ignored)) {
    return absl::NotFoundError(
        absl::StrCat(file,
                     " is a pipe or a device; a file is required, which "
                     "all processes of the job can read"));
  }
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    return absl::NotFoundError(
        absl::StrCat(file, " cannot be opened: ",
                     errno == 0 ? "unknown reason" : std::strerror(errno)));
  }
  std::string text(kConfigFileBytesMax + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad())
    return absl::NotFoundError(absl::StrCat(file, " cannot be read"));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kConfigFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, " is larger than ", kConfigFileBytesMax,
                     " bytes; is this a ", what, "?"));
  }
  return text;
}

absl::StatusOr<config::ClusterConfig> LoadClusterConfig(
    const std::string& path, const ConfigParts& parts,
    const ConfigOverrides& overrides) {
  SL_ASSIGN_OR_RETURN(const std::string text,
                      ReadTextFile("cluster config", path));
  return ParseClusterConfig(text, path, parts, overrides);
}

absl::StatusOr<config::ClusterConfig> ParseClusterConfig(
    const std::string& text, const std::string& file_name,
    const ConfigParts& parts, const ConfigOverrides& overrides) {
  if (text.size() > kConfigFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ":1:1: the file is larger than ",
                     kConfigFileBytesMax, " bytes; is this a cluster config?"));
  }
  config::ClusterConfig config;
  FieldOrigins origins(file_name);
  SL_RETURN_IF_ERROR(ParseConfigText(text, file_name, &config, &origins));
  SL_RETURN_IF_ERROR(ApplyOverrides(overrides, &config, &origins));
  FillDefaults(&config, parts);
  const ConfigProblems problems(origins);
  CheckCluster(config, origins, problems);
  parts.check(config, problems);
  SL_RETURN_IF_ERROR(problems.ToStatus());
  return config;
}

std::string ModeText(const config::ClusterConfig& config) {
  const config::Sync& sync = config.sync();
  if (sync.has_auto_()) return "auto";
  if (sync.phase_size() == 0) return ModeText(ConfiguredMode(sync));
  return absl::StrJoin(
      sync.phase(), ", ", [](std::string* text, const config::Phase& phase) {
        absl::StrAppend(text, ModeText(ConfiguredMode(phase)));
        if (!phase.has_until_epoch()) return;
        absl::StrAppend(text, " until epoch ", phase.until_epoch());
      });
}

std::string ToText(const config::ClusterConfig& config) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  SL_CHECK(printer.PrintToString(config, &text), "a config in memory prints");
  return text;
}

std::string ConfigHash(const config::ClusterConfig& config) {
  config::ClusterConfig hashed = config;
  hashed.clear_track();
  // Without maps and unknown fields, Protobuf writes a message in one way only:
  // by field number.
  uint64_t hash = 0;
  for (const unsigned char c : hashed.SerializeAsString()) {
    hash = Mix64(hash ^ c);
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

std::string MachineOf(absl::string_view host) {
  return IsLoopback(host) ? "localhost" : CanonicalHost(host);
}

std::string HostOfProcess(const std::string& host, int index) {
  return absl::StrReplaceAll(host, {{kIndexInHost, absl::StrCat(index)}});
}

std::vector<ServerProcess> ServerProcesses(
    const config::ClusterConfig& config) {
  std::vector<ServerProcess> processes;
  for (const config::ServerGroup& group : config.server()) {
    for (int p = 0; p < group.count(); ++p) {
      ServerProcess process;
      process.index = static_cast<int>(processes.size());
      process.host = HostOfProcess(group.host(), p);
      process.listen = group.listen();
      process.threads = group.threads();
      process.slowdown = group.slowdown();
      if (group.port() != 0) {
        process.first_port = group.port() + p * group.threads();
      }
      processes.push_back(process);
    }
  }
  return processes;
}

bool AnyServerTakesOver(const config::ClusterConfig& config) {
  return config.coordinator().has_etcd() && config.replicas() > 0;
}

std::string CoordinatorEndpointAt(const config::ClusterConfig& config,
                                  int index) {
  const std::string host = index == 0 ? config.coordinator().host()
                                      : ServerProcesses(config)[index].host;
  return TcpEndpoint(host, config.coordinator().port());
}

std::vector<std::string> CoordinatorEndpoints(
    const config::ClusterConfig& config) {
  std::vector<std::string> endpoints = {CoordinatorEndpointAt(config, 0)};
  if (!AnyServerTakesOver(config)) return endpoints;
  for (const ServerProcess& server : ServerProcesses(config)) {
    const std::string endpoint =
        TcpEndpoint(server.host, config.coordinator().port());
    if (server.index > 0 && !absl::c_linear_search(endpoints, endpoint))
      endpoints.push_back(endpoint);
  }
  return endpoints;
}

std::vector<WorkerProcess> WorkerProcesses(
    const config::ClusterConfig& config) {
  std::vector<WorkerProcess> processes;
  std::map<std::string, int> gpus;  // CUDA workers so far, by host.
  for (const config::WorkerGroup& group : config.worker()) {
    for (int p = 0; p < group.count(); ++p) {
      WorkerProcess process;
      process.rank = static_cast<int>(processes.size());
      process.host = HostOfProcess(group.host(), p);
      process.listen = group.listen();
      if (group.port() != 0) process.port = group.port() + p;
      process.threads = group.threads();
      process.slowdown = group.slowdown();
      process.conditions = group.conditions();
      process.command = group.command();
      if (group.device() == config::WorkerGroup::CUDA) {
        const int number = gpus[MachineOf(process.host)]++;
        process.gpu = p < group.gpu_size() ? group.gpu(p) : number;
      }
      processes.push_back(process);
    }
  }
  return processes;
}

}  // namespace slackline
