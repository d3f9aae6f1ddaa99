// For tests that need a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "common/cuda/cuda_status.h"
#include "gtest/gtest.h"

// First in a test, or in a fixture's SetUp(): skips it, with the reason, where
// CUDA finds no GPU.
#define SL_SKIP_WITHOUT_GPU()                                              \
  do {                                                                     \
    const std::string sl_why_ = ::slackline::WhyNoGpu();                   \
    if (!sl_why_.empty()) GTEST_SKIP() << "no GPU to run on: " << sl_why_; \
  } while (false)

namespace slackline {

// Empty if there is one.
inline std::string WhyNoGpu() {
  int count = 0;
  const absl::Status status =
      CudaStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (!status.ok()) return std::string(status.message());
  return count > 0 ? "" : "CUDA counts none";
}

}  // namespace slackline
