// What a worker asks of the update that its gradient makes, beside the
// gradient: the numbers that the schedulers of scripts change from step to
// step.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace slackline {

class Optimizer;
namespace wire {
class StepOptions;
}

struct StepOptions {
  // The usual rate is multiplied by it. With 0, only the optimizer's state
  // changes.
  double rate_factor = 1;
  // It replaces the optimizer's momentum, or its beta1 (Optimizer::momentum()).
  // None: that of the optimizer.
  std::optional<double> momentum = std::nullopt;

  bool operator==(const StepOptions&) const = default;
};

// What a worker may ask for is at most this, and at least 0.
inline constexpr double kRateFactorMax = 1e6;

// What is wrong with the options of a worker, whatever the optimizer; "" if
// they are allowed. A momentum is at least 0, and below 1 as a float.
std::string FaultOf(const StepOptions& options);
// What is wrong with options that have the part of a rule for stale gradients,
// whose factor has no bound but that it is finite.
std::string FaultOfJudged(const StepOptions& options);

// InvalidArgument: the options have a momentum that no update of the table's
// optimizer may have (Optimizer::FaultOfMomentum()).
absl::Status CheckMomentum(const StepOptions& options,
                           const Optimizer& optimizer, absl::string_view table);

wire::StepOptions ToWire(const StepOptions& options);
StepOptions FromWire(const wire::StepOptions& message);

}  // namespace slackline
