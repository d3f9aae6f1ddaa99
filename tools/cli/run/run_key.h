// The key of the job in the folder of its run, and what its workers hold of it,
// where its processes and `slackline status` find them while the job runs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/keys/credentials.h"
#include "common/process/job_key.h"
#include "proto/cluster.pb.h"

namespace slackline {

class RunKey {
 public:
  // Writes the files, in place of those that an earlier run has left. Of a job
  // with insecure: true there is none.
  static absl::StatusOr<std::unique_ptr<RunKey>> Make(
      const config::ClusterConfig& config, const KeyPlace& place,
      const std::string& out_dir);
  // Removes them: who gets the folder later gets no key.
  ~RunKey();
  RunKey(const RunKey&) = delete;
  RunKey& operator=(const RunKey&) = delete;

  // An absolute path, since processes may work elsewhere; empty: no key.
  const std::string& folder() const { return folder_; }
  // Of `slackline run`, an operator.
  const std::optional<Credentials>& credentials() const {
    return credentials_;
  }

 private:
  RunKey(std::string folder, std::optional<Credentials> credentials);

  const std::string folder_;
  const std::optional<Credentials> credentials_;
};

}  // namespace slackline
