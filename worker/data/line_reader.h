// Reads text line by line, so that the text need not fit into memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/gzip_reader.h"

namespace slackline {

// Thread-compatible.
class LineReader {
 public:
  static constexpr size_t kLineBytesMax = 1 << 26;
  static constexpr size_t kPieceBytes = 1 << 16;  // So much is read at once.

  // Errors as of GzipReader::Open().
  static absl::StatusOr<LineReader> Open(const std::string& path);

  // Whether there is a next line, which is then `*line` without its end ("\n"
  // or
  // "\r\n"), valid until the next call. InvalidArgument names a line of more
  // than kLineBytesMax; DataLoss: the compressed file is damaged.
  absl::StatusOr<bool> Next(absl::string_view* line);

  const std::string& path() const { return reader_.path(); }
  int64_t line_number() const { return line_number_; }  // Of `*line`, from 1.

 private:
  explicit LineReader(GzipReader reader);

  GzipReader reader_;
  std::vector<char> buffer_;
  size_t begin_ = 0;  // What is read and not returned: [begin_, end_).
  size_t end_ = 0;
  std::string long_line_;  // The part of a line that is in no buffer any more.
  int64_t line_number_ = 0;
};

// Text from a file as it goes into a message: quoted, short, and nothing
// unprintable.
std::string Shown(absl::string_view text);

}  // namespace slackline
