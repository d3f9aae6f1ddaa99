#include "worker/memory/float_memory.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/optim/finite.h"

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

absl::StatusOr<bool> HostMemory::AllFinite(
    absl::Span<const absl::Span<const float>> arrays) {
  return std::all_of(
      arrays.begin(), arrays.end(), [](absl::Span<const float> array) {
        return optim::AllFinite(
            reinterpret_cast<const std::byte*>(array.data()), array.size());
      });
}

absl::Status HostMemory::Apply(const Optimizer& optimizer,
                               const Optimizer::ApplyArgs& args) {
  optimizer.Apply(args);
  return absl::OkStatus();
}

}  // namespace slackline
