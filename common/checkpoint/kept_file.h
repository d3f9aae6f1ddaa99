// What a worker's program keeps in a checkpoint beside the parameters: a file
// of bytes that only the program reads, checkpoint.Kept of the manifest.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"

namespace slackline {

inline constexpr int64_t kKeptBytesMax = int64_t{1} << 30;

// "worker-3.state".
std::string KeptFileName(int32_t rank);

// Writes `folder`/KeptFileName(), creating the folder if need be: under a
// temporary name, synced, renamed. Errors name path, call and reason;
// InvalidArgument: there are more than kKeptBytesMax bytes.
absl::StatusOr<checkpoint::Kept> WriteKept(const std::string& folder,
                                           int32_t rank,
                                           absl::string_view bytes);

// What is wrong with what somebody says of such a file, by itself: rank, name,
// size. Empty: nothing.
std::string WhyNoKept(const checkpoint::Kept& kept);

// All of its bytes. DataLoss names the file, and what of it is not as `kept`
// says: it is not there, is no file, or has another size or hash.
absl::StatusOr<std::string> ReadKept(const std::string& folder,
                                     const checkpoint::Kept& kept);

// The bytes of this rank in the checkpoint of this folder, whose manifest has
// this hash; none if it has none of this rank. Errors name the file and what to
// do: the process may be on a host that does not see the folder.
struct FoundKept {
  bool found = false;
  std::string bytes;
};
absl::StatusOr<FoundKept> FindKept(const std::string& folder,
                                   const std::string& manifest_sha256,
                                   int32_t rank);

}  // namespace slackline
