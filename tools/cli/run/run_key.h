// The key of the job in the folder of its run, where its processes and
// `slackline status` find it while the job runs.
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
  // Writes the file, in place of one that an earlier run has left. Of a job
  // with insecure: true there is none.
  static absl::StatusOr<std::unique_ptr<RunKey>> Make(
      const config::ClusterConfig& config, const KeyPlace& place,
      const std::string& out_dir);
  // Removes the file: who gets the folder later gets no key.
  ~RunKey();
  RunKey(const RunKey&) = delete;
  RunKey& operator=(const RunKey&) = delete;

  const std::string& file() const { return file_; }  // Empty: none.
  // Of `slackline run`, an operator.
  const std::optional<Credentials>& credentials() const {
    return credentials_;
  }

 private:
  RunKey(std::string file, std::optional<Credentials> credentials);

  const std::string file_;
  const std::optional<Credentials> credentials_;
};

}  // namespace slackline
