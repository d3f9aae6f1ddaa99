// What an agent answers to `slackline doctor`: it looks at its host.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "proto/doctor.pb.h"
#include "tools/cli/doctor/doors.h"

namespace slackline {

// Blocks while it looks: some milliseconds, and as long as reading the data
// takes. Its end removes what it has left on the host. Belongs to one thread.
class HostExaminer {
 public:
  // With the user's key file there, to compare it; empty: it is not looked at.
  explicit HostExaminer(std::string user_key = "")
      : user_key_(std::move(user_key)) {}
  ~HostExaminer();
  HostExaminer(const HostExaminer&) = delete;
  HostExaminer& operator=(const HostExaminer&) = delete;

  // InvalidArgument: it asks for nothing that is known here.
  absl::StatusOr<doctor::Reply> Answer(const doctor::Question& question);

 private:
  doctor::HostFacts Look(const doctor::Look& look);
  doctor::FolderFacts LookAtFolder(const doctor::Folder& folder,
                                   const doctor::Look& look);

  const std::string user_key_;
  std::vector<std::string> marks_;  // Paths.
  std::unique_ptr<Doors> doors_;
};

// How the host's network leads to each name.
std::vector<doctor::Name> LookUpNames(const std::vector<std::string>& names);
// All files of the data with their hashes; an error stands for all others.
std::vector<doctor::DataFile> LookAtData(const config::Data& data,
                                         const std::string& folder);

}  // namespace slackline
