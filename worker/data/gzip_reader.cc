#include "worker/data/gzip_reader.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

GzipReader::GzipReader(std::string path, gzFile_s* file, int64_t bytes_max)
    : path_(std::move(path)), file_(file), bytes_max_(bytes_max) {}

void GzipReader::Close::operator()(gzFile_s* file) const { gzclose(file); }

absl::StatusOr<GzipReader> GzipReader::Open(const std::string& path) {
  std::error_code error;
  const auto file_bytes =
      static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error == std::errc::no_such_file_or_directory) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (error)
    return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  gzFile const file = gzopen(path.c_str(), "rb");
  if (file == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        path, ": cannot open: ", std::generic_category().message(errno)));
  }
  gzbuffer(file, 1 << 17);
  // 1032 to 1 is deflate's limit.
  return GzipReader(path, file,
                    gzdirect(file) == 1 ? file_bytes : file_bytes * 1032);
}

absl::StatusOr<int64_t> GzipReader::Read(void* to, int64_t bytes) {
  int64_t total = 0;
  while (total < bytes) {
    const auto piece =
        static_cast<unsigned>(std::min<int64_t>(bytes - total, 1 << 30));
    const int got = gzread(file_.get(), static_cast<char*>(to) + total, piece);
    // A compressed file that is cut off reads as a short one, with the error
    // set.
    int code = Z_OK;
    const char* const reason = gzerror(file_.get(), &code);
    if (got < 0 || code != Z_OK) {
      return absl::DataLossError(
          absl::StrCat(path_, ": damaged or cut off after ",
                       offset_ + std::max(got, 0), " decompressed bytes (",
                       code == Z_BUF_ERROR ? "unexpected end of file" : reason,
                       "); fetch the file again"));
    }
    if (got == 0) break;
    total += got;
    offset_ += got;
  }
  return total;
}

absl::Status GzipReader::ReadRest(int64_t bytes, absl::string_view content,
                                  const Take& take) {
  const auto promise = [&](absl::string_view but) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": its header promises ", content, ", ", bytes,
                     " bytes, ", but, "; fetch the file again"));
  };
  if (bytes > bytes_max_)
    return promise("more than a file of this size can hold");
  std::vector<uint8_t> piece(
      static_cast<size_t>(std::min<int64_t>(bytes, 1 << 20)));
  for (int64_t left = bytes; left > 0;) {
    SL_ASSIGN_OR_RETURN(
        const int64_t got,
        Read(piece.data(), std::min(left, static_cast<int64_t>(piece.size()))));
    if (got == 0)
      return promise(absl::StrCat("but only ", bytes - left, " follow"));
    left -= got;
    take(absl::MakeConstSpan(piece).first(static_cast<size_t>(got)));
  }
  uint8_t beyond = 0;
  SL_ASSIGN_OR_RETURN(const int64_t more, Read(&beyond, 1));
  if (more != 0) return promise("but more follow");
  return absl::OkStatus();
}

}  // namespace slackline
