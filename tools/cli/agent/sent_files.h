// Files that an agent sends, in the folder of the run here.
#pragma once

#include <map>
#include <string>
#include <utility>

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
  // be written.
  absl::Status Take(const std::string& host, const agent::FilePart& part);

 private:
  const std::string folder_;
  Mutex mutex_;
  std::map<std::string, std::string> hosts_
      ABSL_GUARDED_BY(mutex_);  // By name.
};

}  // namespace slackline
