// Where Prometheus finds the figures of a run's processes: a file in the folder
// of the run (file_sd_configs), while it runs.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"

namespace slackline {

inline constexpr char kMetricsTargetsName[] = "metrics_targets.json";

// One group for each process, with the labels "slackline_job" and "run". Empty:
// the config has no health ports that are known beforehand.
std::string MetricsTargets(const config::ClusterConfig& config,
                           const std::string& out_dir);

// The file, which is removed with this object.
class MetricsTargetsFile {
 public:
  // Writes none for a job without health ports. Errors as of
  // WriteFileAtomically().
  static absl::StatusOr<MetricsTargetsFile> Write(
      const config::ClusterConfig& config, const std::string& out_dir);
  MetricsTargetsFile(MetricsTargetsFile&& other) noexcept;
  MetricsTargetsFile& operator=(MetricsTargetsFile&&) = delete;
  ~MetricsTargetsFile();

 private:
  explicit MetricsTargetsFile(std::string path) : path_(std::move(path)) {}

  std::string path_;  // Empty: there is none.
};

}  // namespace slackline
