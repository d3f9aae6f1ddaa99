// Model files: what is read can be written, and reads the same.
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/safetensors.h"
#include "common/status.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static slackline::fuzz::MemoryFile file;
  file.Write(data, size);
  const auto read = slackline::ReadSafetensors(file.path());
  if (!read.ok()) return 0;
  std::vector<slackline::TensorView> views;
  for (const slackline::Tensor& tensor : read->tensors) {
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= extent;
    SL_CHECK(elements == static_cast<int64_t>(tensor.values.size()),
             tensor.name);
    views.push_back(tensor.view());
  }
  (void)slackline::TensorsSha256(views);
  return 0;
}
