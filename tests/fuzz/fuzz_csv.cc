// CSV: training and test data, plain or gzip, one after the other; the label is
// the last column or the one that is named "y".
#include "tests/fuzz/data_split.h"
#include "tests/fuzz/input.h"
#include "worker/data/csv.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static slackline::fuzz::MemoryFile train;
  static slackline::fuzz::MemoryFile test;
  slackline::fuzz::Input input(data, size);
  for (slackline::fuzz::MemoryFile* const file : {&train, &test}) {
    const auto chunk = input.Chunk();
    file->Write(chunk.data(), chunk.size());
  }
  for (const char* const label : {"", "y"}) {
    const auto first = slackline::ReadCsv(train.path(), label);
    if (!first.ok()) continue;
    slackline::fuzz::SplitInEveryWay(first->data);
    const auto second = slackline::ReadCsv(test.path(), label);
    if (second.ok()) (void)slackline::CheckSameColumns(*first, *second);
  }
  return 0;
}
