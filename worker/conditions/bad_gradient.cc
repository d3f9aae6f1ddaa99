#include "worker/conditions/bad_gradient.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/status.h"

namespace slackline {

bool HasBadGradient(const config::Conditions& conditions, Clock step) {
  const auto& steps = conditions.nonfinite_at_step();
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

Payload WithNan(const Payload& gradient) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  SL_CHECK(gradient.size() >= sizeof(kNan), "a gradient without a float");
  Payload copy = Payload::Copy(gradient.data(), gradient.size());
  std::memcpy(copy.MutableData(), &kNan, sizeof(kNan));
  return copy;
}

}  // namespace slackline
