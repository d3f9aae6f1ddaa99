// What zlib decompresses for us.
#include <array>

#include "common/status.h"
#include "tests/fuzz/input.h"
#include "worker/data/gzip_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static slackline::fuzz::MemoryFile file;
  file.Write(data, size);
  auto reader = slackline::GzipReader::Open(file.path());
  if (!reader.ok()) return 0;
  std::array<char, 4096> buffer;
  while (true) {
    const auto bytes = reader->Read(buffer.data(), buffer.size());
    if (!bytes.ok() || *bytes == 0) break;
    SL_CHECK(*bytes <= static_cast<int64_t>(buffer.size()) &&
                 reader->offset() <= reader->bytes_max(),
             "more than a file of this size can hold");
  }
  return 0;
}
