#include "worker/conditions/bad_gradient.h"

#include <cstring>
#include <limits>

#include "absl/algorithm/container.h"
#include "common/status.h"

namespace slackline {

bool HasBadGradient(const config::Conditions& conditions, Clock step) {
  return absl::c_linear_search(conditions.nonfinite_at_step(), step);
}

std::optional<float> ScaleOf(const config::Conditions& conditions, Clock step) {
  if (!absl::c_linear_search(conditions.scaled_at_step(), step))
    return std::nullopt;
  return static_cast<float>(conditions.scaled_by());
}

Payload Scaled(const Payload& gradient, float scale) {
  Payload copy = Payload::Copy(gradient.data(), gradient.size());
  std::byte* const bytes = copy.MutableData();
  for (size_t at = 0; at < copy.size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, bytes + at, sizeof(value));
    value *= scale;
    std::memcpy(bytes + at, &value, sizeof(value));
  }
  return copy;
}

Payload WithNan(const Payload& gradient) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  SL_CHECK(gradient.size() >= sizeof(kNan), "a gradient without a float");
  Payload copy = Payload::Copy(gradient.data(), gradient.size());
  std::memcpy(copy.MutableData(), &kNan, sizeof(kNan));
  return copy;
}

}  // namespace slackline
