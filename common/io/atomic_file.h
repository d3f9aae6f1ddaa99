// Files that are there completely or not at all, whenever the machine stops.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace slackline {

// A file that is written in pieces: into a temporary file beside it (its path
// and ".partial-" and the process id), which gets its name when all of it is on
// the disk. Until then `path` is as it was, and after a failure the temporary
// file is gone. Errors name path, call and reason. One thread of a process at a
// time may write to one path.
class AtomicFile {
 public:
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(
      const std::string& path);
  // Without a Commit() that succeeded: removes the temporary file.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status Append(absl::string_view bytes);
  // Syncs the file and gives it its name. Nothing may be called after it.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string partial, int file)
      : path_(std::move(path)), partial_(std::move(partial)), file_(file) {}
  const std::string path_;
  const std::string partial_;
  int file_;
  bool committed_ = false;
};

// Writes `parts`, one after the other, to `path`, as an AtomicFile.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> parts);

// Makes the names in a folder durable. That a file system cannot sync folders
// is not an error.
absl::Status SyncFolder(const std::string& folder);

}  // namespace slackline
