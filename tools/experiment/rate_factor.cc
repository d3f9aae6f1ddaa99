#include "tools/experiment/rate_factor.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<std::string> RateAssignment(
    absl::string_view factor, const config::ClusterConfig& config) {
  double times = 0;
  if (!absl::SimpleAtod(factor, &times) || !std::isfinite(times) ||
      times <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kRateFactor, ": value is '", factor,
                     "'; a number above 0 is required"));
  }
  const google::protobuf::Reflection* const reflection =
      config::Optimizer::GetReflection();
  const google::protobuf::FieldDescriptor* const kind =
      reflection->GetOneofFieldDescriptor(
          config.optimizer(),
          config::Optimizer::descriptor()->FindOneofByName("kind"));
  if (kind == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        kRateFactor,
        ": the config has no optimizer, so the program of its workers sets the "
        "rate; give the program an argument for it instead"));
  }
  const google::protobuf::Message& block =
      reflection->GetMessage(config.optimizer(), kind);
  const google::protobuf::FieldDescriptor* const rate =
      kind->message_type()->FindFieldByName("learning_rate");
  SL_CHECK(rate != nullptr, "every optimizer has a learning rate");
  // Rounded to what people write: 0.3 times 0.1 is 0.03.
  return absl::StrFormat("optimizer.%s.learning_rate=%.15g", kind->name(),
                         block.GetReflection()->GetDouble(block, rate) * times);
}

}  // namespace slackline
