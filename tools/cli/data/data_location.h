// Where the training data of a job are on this machine, and what to do if they
// are not.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cluster.pb.h"

namespace slackline {

// The folder inside a data folder in which MNIST is looked for by default.
inline constexpr char kMnistFolder[] = "mnist";

// ~/.cache/slackline/data of the user that runs this. NotFound: the system
// knows no home folder of the user.
absl::StatusOr<std::string> CacheDataDir();

// The files that `data` needs and that are not in `data_dir`; those of IDX may
// also be there without ".gz", or with what else DataFilesOf() allows.
std::vector<std::string> MissingDataFiles(const config::Data& data,
                                          const std::string& data_dir);

struct DataLocationOptions {
  std::string data_dir;   // The user's choice; empty: none.
  std::string cache_dir;  // Used without one.
  // Put MNIST or its stand-in into a folder.
  std::function<absl::Status(const std::string& folder)> fetch_mnist;
  std::function<absl::Status(const std::string& folder)> write_stand_in;
  // Tells the user something; may have several lines.
  std::function<void(const std::string&)> say;
};

// The --data-dir for the workers. Without the user's choice: the cache, filled
// by a download if the job needs MNIST; if that fails, a generated stand-in,
// which is said loudly. NotFound names the files that are missing and the fix.
absl::StatusOr<std::string> LocateData(const config::Data& data,
                                       const DataLocationOptions& options);

// Downloads MNIST into `folder`. AlreadyExists if it holds other files that
// would be read in its place.
absl::Status FetchMnist(const std::string& folder,
                        const std::function<void(const std::string&)>& say);

// How to get a9a, of which no checksum is published.
std::string A9aHelp(absl::string_view data_dir);

}  // namespace slackline
