// What the CUDA runtime reports, as a status.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace slackline {

// OK for cudaSuccess. Else the message has the call, the calling thread's GPU,
// and CUDA's name and description: ResourceExhausted if memory is short,
// InvalidArgument for a value that CUDA refuses, FailedPrecondition if there is
// no GPU or no driver for it, Internal for the rest.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

}  // namespace slackline
