// IDX: the images and the labels, plain or gzip, one after the other.
#include "tests/fuzz/data_split.h"
#include "tests/fuzz/input.h"
#include "worker/data/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static slackline::fuzz::MemoryFile images;
  static slackline::fuzz::MemoryFile labels;
  slackline::fuzz::Input input(data, size);
  for (slackline::fuzz::MemoryFile* const file : {&images, &labels}) {
    const auto chunk = input.Chunk();
    file->Write(chunk.data(), chunk.size());
  }
  const auto read =
      slackline::ReadIdx({.images = images.path(), .labels = labels.path()});
  if (read.ok()) slackline::fuzz::SplitInEveryWay(*read);
  return 0;
}
