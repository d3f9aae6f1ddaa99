#include "common/metrics/step_phases.h"

namespace slackline {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::Message;

// Sums of such numbers stay far from overflow.
constexpr double kAmountMax = 1e18;

}  // namespace

std::vector<std::pair<std::string, double>> PhasesOf(const Message& phases) {
  std::vector<std::pair<std::string, double>> named;
  const Descriptor& fields = *phases.GetDescriptor();
  for (int i = 0; i < fields.field_count(); ++i) {
    named.emplace_back(
        fields.field(i)->name(),
        phases.GetReflection()->GetDouble(phases, fields.field(i)));
  }
  return named;
}

void AddPhases(const Message& from, Message* to) {
  const Descriptor& fields = *from.GetDescriptor();
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto* const field = fields.field(i);
    to->GetReflection()->SetDouble(
        to, field,
        to->GetReflection()->GetDouble(*to, field) +
            from.GetReflection()->GetDouble(from, field));
  }
}

bool IsAmount(double value) {
  return value >= 0 && value <= kAmountMax;  // False for NaN.
}

bool AreSeconds(const Message& phases) {
  for (const auto& [name, seconds] : PhasesOf(phases)) {
    if (!IsAmount(seconds)) return false;
  }
  return true;
}

double OwnSeconds(const run::StepPhases& phases) {
  return phases.loading() + phases.computing() + phases.pushing() +
         phases.pulling();
}

}  // namespace slackline
