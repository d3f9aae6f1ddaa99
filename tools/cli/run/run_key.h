// The key of the job in the folder of its run, and what its workers hold of it,
// where its processes and `slackline status` find them while the job runs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/keys/credentials.h"
#include "common/keys/key_file.h"
#include "common/process/job_key.h"
#include "proto/cluster.pb.h"

namespace slackline {

class RunKey {
 public:
  // Writes the files, in place of those that an earlier run has left. They are
  // removed with this object. Of a job with insecure: true there are none.
  static absl::StatusOr<std::unique_ptr<RunKey>> Make(
      const config::ClusterConfig& config, const KeyPlace& place,
      const std::string& out_dir);
  RunKey(const RunKey&) = delete;
  RunKey& operator=(const RunKey&) = delete;

  // An absolute path, since processes may work elsewhere; empty: no key.
  const std::string& folder() const { return folder_; }
  // Of `slackline run`, an operator.
  const std::optional<Credentials>& credentials() const { return credentials_; }
  // What the user should know of it; empty: nothing.
  const std::string& note() const { return note_; }

 private:
  RunKey() = default;

  std::string folder_;
  std::string note_;
  std::optional<Credentials> credentials_;
  std::vector<TemporaryKeyFile> files_;
};

}  // namespace slackline
