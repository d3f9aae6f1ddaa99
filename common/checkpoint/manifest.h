// The manifest of a checkpoint: <folder>/manifest.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"

namespace slackline {

inline constexpr int kCheckpointFormat = 1;
inline constexpr char kManifestFile[] = "manifest.json";

// What is wrong with a manifest by itself; empty: it makes sense. Names,
// shapes, optimizers, clocks and files are within their bounds, and unique
// where they have to be; there are at least one table and one part.
std::string WhyNoManifest(const checkpoint::Manifest& manifest);
inline constexpr int64_t kKeptBytesMax = int64_t{1} << 30;

// What is wrong with what somebody says of the files of a worker
// (kept_file.h), by itself: rank, names, sizes. Empty: nothing.
std::string WhyNoKept(const checkpoint::Kept& kept);
// Of all files that it names.
inline int64_t BytesOf(const checkpoint::Manifest& manifest) {
  int64_t bytes = 0;
  for (const checkpoint::Part& part : manifest.part()) bytes += part.bytes();
  for (const checkpoint::Kept& kept : manifest.kept())
    bytes += kept.bytes() + kept.residuals().bytes();
  return bytes;
}
// Of all shapes of a manifest that makes sense, in its order.
std::vector<int64_t> TableElements(const checkpoint::Manifest& manifest);

// The file is the Manifest as JSON with the names of the proto, and its
// ManifestSha256() as "sha256". Written whole or not at all, synced.
// InvalidArgument: WhyNoManifest().
absl::Status WriteManifest(const std::string& folder,
                           const checkpoint::Manifest& manifest);
// NotFound: there is none. DataLoss names the file and what is damaged, out of
// its bounds (WhyNoManifest()), or of another format.
absl::StatusOr<checkpoint::Manifest> ReadManifest(const std::string& folder);
// Of the manifest, however it is written; 64 hexadecimal digits.
std::string ManifestSha256(const checkpoint::Manifest& manifest);

}  // namespace slackline
