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
#include "common/keys/key_watch.h"
#include "common/process/job_key.h"
#include "proto/cluster.pb.h"

namespace slackline {

class RunKey {
 public:
  // Whether Make() will find a key. Changes nothing, but for a user's key that
  // is made. InvalidArgument: the key that is given is a file of the run
  // itself, which would be removed at its end. Others as of MakeKeyOfRun().
  static absl::Status Check(const config::ClusterConfig& config,
                            const KeyPlace& place, const std::string& out_dir);
  // Writes the files, in place of all that an earlier run has left. They are
  // removed with this object. Of a job with insecure: true there are none.
  // Errors as of Check(), or why they cannot be written.
  static absl::StatusOr<std::unique_ptr<RunKey>> Make(
      const config::ClusterConfig& config, const KeyPlace& place,
      const std::string& out_dir);
  RunKey(const RunKey&) = delete;
  RunKey& operator=(const RunKey&) = delete;

  // An absolute path, since processes may work elsewhere; empty: no key.
  const std::string& folder() const { return folder_; }
  // Of `slackline run`, an operator; its plan is that of the files as they are.
  const std::optional<KeySource>& source() const { return source_; }
  // Looks whether the key that they were made of is to be exchanged, and writes
  // the files anew then. To be called again and again. What to tell the user if
  // they were written, else empty; the error says why they could not be, or
  // what is wrong with that key. A key that is not whole is looked at twice,
  // since it may be in the midst of being written.
  absl::StatusOr<std::string> Follow();
  // What the user should know of it; empty: nothing.
  const std::string& note() const { return note_; }

 private:
  RunKey() = default;
  // Of the job. job.key, which is followed, comes last.
  absl::Status Write(const keys::Key& key);

  std::string job_;
  std::string folder_;
  std::string note_;
  std::string made_of_;  // A file; empty: it is not followed.
  std::string mark_;     // Of that file, when it was looked at.
  std::string broken_;   // Likewise, when it was no key file.
  std::optional<KeySource> source_;
  int workers_ = 0;
  keys::Key held_;  // Of the job, as in the files.
  std::vector<TemporaryKeyFile> files_;
};

}  // namespace slackline
