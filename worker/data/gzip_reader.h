// Reads a file, decompressing it if it is in gzip format.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

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

  // Reads the rest of the file, which has to be `bytes` long, at least 0, and
  // hands it to `take` in pieces that, but for the last one, are a multiple of
  // 4096 bytes. InvalidArgument if it is not: before anything is read if so
  // much does not fit into the file. `content` completes "its header promises
  // ...".
  using Take = std::function<void(absl::Span<const uint8_t> piece)>;
  absl::Status ReadRest(int64_t bytes, absl::string_view content,
                        const Take& take);

  const std::string& path() const { return path_; }
  int64_t offset() const { return offset_; }
  // The most that the file can decompress to.
  int64_t bytes_max() const { return bytes_max_; }

 private:
  GzipReader(std::string path, gzFile_s* file, int64_t bytes_max);
  struct Close {
    void operator()(gzFile_s* file) const;
  };
  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  int64_t bytes_max_;
  int64_t offset_ = 0;
};

}  // namespace slackline
