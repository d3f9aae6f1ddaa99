// LIBSVM text, plain or gzip.
#include "tests/fuzz/data_split.h"
#include "tests/fuzz/input.h"
#include "worker/data/libsvm.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static slackline::fuzz::MemoryFile file;
  file.Write(data, size);
  const auto read = slackline::ReadLibsvm(file.path(), /*features=*/123);
  if (read.ok()) slackline::fuzz::SplitInEveryWay(*read);
  return 0;
}
