// The key of the job in the folder of its run, and what each of its workers
// holds of it, where its processes and `slackline status` find them while the
// job runs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/keys/key_file.h"
#include "common/keys/key_follower.h"
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
  const std::optional<KeySource>& source() const { return source_; }
  // Looks whether the key that they were made of is to be exchanged, and writes
  // the files anew then. To be called again and again. What to tell the user if
  // they were written, else empty; the error says why they could not be.
  absl::StatusOr<std::string> Follow();
  // What the user should know of it; empty: nothing.
  const std::string& note() const { return note_; }

 private:
  RunKey() = default;
  // Of the job.
  absl::Status Write(const keys::Key& key);

  std::string job_;
  std::string folder_;
  std::string note_;
  std::string made_of_;  // A file; empty: it is not followed.
  std::string mark_;     // Of that file, when it was looked at.
  std::optional<KeySource> source_;
  int workers_ = 0;
  keys::Key held_;  // Of the job, as in the files.
  std::vector<TemporaryKeyFile> files_;
};

}  // namespace slackline
