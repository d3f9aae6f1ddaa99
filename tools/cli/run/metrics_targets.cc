#include "tools/cli/run/metrics_targets.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/health/health_place.h"
#include "common/io/atomic_file.h"
#include "common/status.h"

namespace slackline {

std::string MetricsTargets(const config::ClusterConfig& config,
                           const std::string& out_dir) {
  if (!config.has_health() || config.health().port() == 0) return "";
  nlohmann::json groups = nlohmann::json::array();
  const auto add = [&](bool is_server, int index, const std::string& machine) {
    const std::optional<HealthPlace> place =
        HealthPlaceOf(config, is_server, index, std::nullopt);
    if (!place.has_value()) return;
    const bool is_ipv6 = absl::StrContains(machine, ':');
    groups.push_back(
        {{"targets",
          {absl::StrCat(is_ipv6 ? "[" : "", machine, is_ipv6 ? "]:" : ":",
                        place->port)}},
         {"labels",
          {{"slackline_job", config.job()},
           {"run", std::filesystem::path(out_dir).filename().string()}}}});
  };
  for (const ServerProcess& server : ServerProcesses(config))
    add(true, server.index, server.host);
  for (const WorkerProcess& worker : WorkerProcesses(config))
    add(false, worker.rank, worker.host);
  // A folder may have a name that is no text.
  return groups.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

absl::StatusOr<MetricsTargetsFile> MetricsTargetsFile::Write(
    const config::ClusterConfig& config, const std::string& out_dir) {
  const std::string targets = MetricsTargets(config, out_dir);
  if (targets.empty()) return MetricsTargetsFile("");
  std::string path = absl::StrCat(out_dir, "/", kMetricsTargetsName);
  SL_RETURN_IF_ERROR(WriteFileAtomically(path, {targets}));
  return MetricsTargetsFile(std::move(path));
}

MetricsTargetsFile::MetricsTargetsFile(MetricsTargetsFile&& other) noexcept
    : path_(std::exchange(other.path_, "")) {}

MetricsTargetsFile::~MetricsTargetsFile() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove(path_, ignored);
}

}  // namespace slackline
