// The numerical libraries under the models: how many threads they use, and
// whether a fast one is loaded at all. Both concern the whole process, because
// LibTorch and BLAS keep such settings there.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace slackline {

// Lets one operation (a matrix product, a convolution) use `threads` threads in
// LibTorch and in OpenBLAS, which has a pool of its own, and never runs two
// operations at once. Call it from main() before the first model.
// InvalidArgument if `threads` is not in [1, 1024]; nothing changes then.
absl::Status SetComputeThreads(int threads);

struct BlasLibrary {
  bool fast = false;  // Not the reference implementation.
  std::string name;   // For people: "OpenBLAS (/usr/lib/.../libblas.so.3)".
};
// The library that does LibTorch's matrix products. Without a fast one training
// takes about 15 times as long, so a program should say so aloud, with the fix:
// install libopenblas0-pthread.
BlasLibrary LoadedBlas();

}  // namespace slackline
