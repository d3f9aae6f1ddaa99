// Reads a file, decompressing it if it is in gzip format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct gzFile_s;  // zlib's.

namespace slackline {

// Thread-compatible. Errors name the path; offsets are in decompressed bytes.
class GzipReader {
 public:
  // NotFound if there is no such file, Unavailable if it cannot be opened.
  static absl::StatusOr<GzipReader> Open(const std::string& path);

  // Reads up to `bytes`; fewer, possibly 0, only at the end of the file.
  // DataLoss if the compressed data are cut off or damaged.
  absl::StatusOr<int64_t> Read(void* to, int64_t bytes);

  const std::string& path() const { return path_; }
  int64_t offset() const { return offset_; }
  // The most that the file can decompress to; 1032 to 1 is deflate's limit.
  int64_t bytes_max() const { return file_bytes_ * 1032; }

 private:
  GzipReader(std::string path, gzFile_s* file, int64_t file_bytes);
  struct Close {
    void operator()(gzFile_s* file) const;
  };
  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  int64_t file_bytes_;
  int64_t offset_ = 0;
};

}  // namespace slackline
