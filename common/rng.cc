#include "common/rng.h"

#include <cmath>

namespace slackline {

double Rng::Normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
  return radius * std::cos(6.283185307179586476925 * Uniform());
}

}  // namespace slackline
