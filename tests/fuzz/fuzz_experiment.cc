// The experiment file.
#include "tests/fuzz/input.h"
#include "tools/experiment/experiment_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static slackline::fuzz::MemoryFile file;
  file.Write(data, size);
  (void)slackline::LoadExperiment(file.path());
  return 0;
}
