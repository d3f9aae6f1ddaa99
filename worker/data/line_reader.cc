#include "worker/data/line_reader.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status.h"

namespace slackline {

LineReader::LineReader(GzipReader reader)
    : reader_(std::move(reader)), buffer_(kPieceBytes) {}

absl::StatusOr<LineReader> LineReader::Open(const std::string& path) {
  SL_ASSIGN_OR_RETURN(GzipReader reader, GzipReader::Open(path));
  return LineReader(std::move(reader));
}

absl::StatusOr<bool> LineReader::Next(absl::string_view* line) {
  long_line_.clear();
  while (true) {
    if (begin_ == end_) {
      SL_ASSIGN_OR_RETURN(
          const int64_t got,
          reader_.Read(buffer_.data(), static_cast<int64_t>(buffer_.size())));
      begin_ = 0;
      end_ = static_cast<size_t>(got);
      if (got == 0) {
        if (long_line_.empty()) return false;
        break;  // The last line has no end.
      }
    }
    const char* const from = buffer_.data() + begin_;
    const void* const found = std::memchr(from, '\n', end_ - begin_);
    if (found != nullptr) {
      const auto size =
          static_cast<size_t>(static_cast<const char*>(found) - from);
      begin_ += size + 1;
      ++line_number_;
      *line = absl::string_view(from, size);
      if (!long_line_.empty()) {
        long_line_.append(from, size);
        *line = long_line_;
      }
      *line = absl::StripSuffix(*line, "\r");
      return true;
    }
    long_line_.append(from, end_ - begin_);
    begin_ = end_;
    if (long_line_.size() > kLineBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          path(), ":", line_number_ + 1, ": has more than ", kLineBytesMax,
          " bytes in one line; is this a text file?"));
    }
  }
  ++line_number_;
  *line = absl::StripSuffix(long_line_, "\r");
  return true;
}

std::string Shown(absl::string_view text) {
  std::string shown(text.substr(0, 40));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return absl::StrCat("'", shown, text.size() > 40 ? "..." : "", "'");
}

}  // namespace slackline
