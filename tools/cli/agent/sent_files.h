// Files that an agent sends, in the folder of the run here.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "proto/agent.pb.h"

namespace slackline {

// Of all agents of a job; any thread may call it.
class SentFiles {
 public:
  explicit SentFiles(std::string folder) : folder_(std::move(folder)) {}

  // A file that begins anew has its name once it is complete. A name that a
  // file of another host has already is taken below from-HOST/.
  // InvalidArgument: no agent sends such a part; Unavailable: the file cannot
  // be written, and counts as missing until it comes anew and is complete.
  absl::Status Add(const std::string& host, const agent::FilePart& part);

  struct Missing {
    std::string host;
    std::string name;
    std::string why;
  };
  std::vector<Missing> missing() const;

 private:
  absl::Status Write(const std::string& host, const agent::FilePart& part);
  // Of a file that is missing, and does not come anew: a part of it is of no
  // use.
  bool IsUseless(const std::string& host, const std::string& name) const;

  const std::string folder_;
  mutable Mutex mutex_;
  std::map<std::string, std::string> hosts_
      ABSL_GUARDED_BY(mutex_);  // By name.
  struct Failed {
    std::string why;
    bool comes = false;  // Anew.
  };
  // By host and name.
  std::map<std::pair<std::string, std::string>, Failed> missing_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace slackline
