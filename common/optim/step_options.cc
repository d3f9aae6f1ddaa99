#include "common/optim/step_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "proto/step_options.pb.h"

namespace slackline {
namespace {

std::string FaultOfMomentum(const StepOptions& options) {
  // A NaN is neither at least 0 nor below 1.
  const double momentum = options.momentum.value_or(0);
  if (momentum >= 0 && static_cast<float>(momentum) < 1) return "";
  return absl::StrCat("a momentum of ", momentum,
                      "; at least 0 and, as a float, below 1 is required");
}

}  // namespace

std::string FaultOf(const StepOptions& options) {
  if (!(options.rate_factor >= 0 && options.rate_factor <= kRateFactorMax)) {
    return absl::StrCat("a rate factor of ", options.rate_factor, "; 0 to ",
                        kRateFactorMax, " is required");
  }
  return FaultOfMomentum(options);
}

std::string FaultOfJudged(const StepOptions& options) {
  if (!std::isfinite(options.rate_factor) || options.rate_factor < 0) {
    return absl::StrCat("a rate factor of ", options.rate_factor,
                        "; a finite one of at least 0 is required");
  }
  return FaultOfMomentum(options);
}

absl::Status CheckMomentum(const StepOptions& options,
                           const Optimizer& optimizer,
                           absl::string_view table) {
  if (!options.momentum.has_value()) return absl::OkStatus();
  const std::string fault = optimizer.FaultOfMomentum(*options.momentum);
  if (fault.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the gradient of '", table, "' has a momentum of ",
                   *options.momentum, "; ", fault));
}

wire::StepOptions ToWire(const StepOptions& options) {
  wire::StepOptions message;
  if (options.rate_factor != 1) message.set_rate_factor(options.rate_factor);
  if (options.momentum.has_value()) message.set_momentum(*options.momentum);
  return message;
}

StepOptions FromWire(const wire::StepOptions& message) {
  StepOptions options;
  if (message.has_rate_factor()) options.rate_factor = message.rate_factor();
  if (message.has_momentum()) options.momentum = message.momentum();
  return options;
}

}  // namespace slackline
