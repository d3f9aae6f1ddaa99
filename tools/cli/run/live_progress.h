// The progress of a job that runs elsewhere, as its coordinator tells it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tools/cli/job/coordinator_client.h"
#include "tools/cli/job/progress.h"

namespace slackline {

// Without a coordinator that can be reached from here there is none, and that
// is not an error: it may be behind a firewall. Make it after a SignalWatch.
class LiveProgress {
 public:
  explicit LiveProgress(std::string out_dir) : out_dir_(std::move(out_dir)) {}

  // Never waits. The coordinator is the one of the config in the run's folder,
  // which is another one when the job has been started again.
  void Poll(absl::Time now);
  // Whether it was heard within the last seconds.
  bool IsHeard(absl::Time now) const;
  // For a terminal of `width` columns; empty unless IsHeard().
  std::vector<std::string> Block(int width, absl::Time now) const;

 private:
  void Connect();

  const std::string out_dir_;
  std::filesystem::file_time_type config_time_{};
  std::unique_ptr<CoordinatorClient> client_;
  Progress progress_;
  absl::Time next_ask_ = absl::InfinitePast();
  absl::Time heard_ = absl::InfinitePast();
};

}  // namespace slackline
