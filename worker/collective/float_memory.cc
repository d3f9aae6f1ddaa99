#include "worker/collective/float_memory.h"

#include <cstring>
#include <vector>

namespace slackline {

absl::StatusOr<FloatMemory::Array> HostMemory::Allocate(size_t elements) {
  const auto owner = std::make_shared<std::vector<float>>(elements, 0.0f);
  return Array{.values = absl::MakeSpan(*owner), .owner = owner};
}

absl::Status HostMemory::Copy(const void* from, absl::Span<float> to) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size() * sizeof(float));
  return absl::OkStatus();
}

absl::Status HostMemory::CopyIn(const void* from, absl::Span<float> to) {
  return Copy(from, to);
}

absl::Status HostMemory::CopyOut(absl::Span<const float> from, void* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size() * sizeof(float));
  return absl::OkStatus();
}

absl::Status HostMemory::Apply(const Optimizer& optimizer,
                               const Optimizer::ApplyArgs& args) {
  optimizer.Apply(args);
  return absl::OkStatus();
}

}  // namespace slackline
