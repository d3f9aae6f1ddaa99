#include "common/optim/optimizer.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/optim/formulas.h"
#include "common/optim/kernels.h"
#include "common/status.h"

namespace slackline {
namespace {

// As the config writes it: "adam".
std::string NameOf(const optim::RuleConfig& rule) {
  return config::Optimizer::descriptor()->FindFieldByNumber(rule.kind)->name();
}

// nullptr: the config has none.
const optim::RuleConfig* FindRule(const config::Optimizer& config) {
  const auto* const found = std::find_if(std::begin(optim::kRuleConfigs),
                                         std::end(optim::kRuleConfigs),
                                         [&](const optim::RuleConfig* r) {
                                           return r->kind == config.kind_case();
                                         });
  return found == std::end(optim::kRuleConfigs) ? nullptr : *found;
}

const std::byte* AsBytes(const float* floats) {
  return reinterpret_cast<const std::byte*>(floats);
}
std::byte* AsBytes(float* floats) {
  return reinterpret_cast<std::byte*>(floats);
}

}  // namespace

void CheckOptimizer(const config::Optimizer& config,
                    const ConfigProblems& problems) {
  const optim::RuleConfig* const rule = FindRule(config);
  if (rule != nullptr) {
    return rule->check(config, problems.In(NameOf(*rule)));
  }
  std::vector<std::string> names;
  for (const optim::RuleConfig* r : optim::kRuleConfigs) {
    names.push_back(NameOf(*r));
  }
  problems.Add("",
               absl::StrCat("is missing; one of ", absl::StrJoin(names, ", "),
                            " is required, as in optimizer { sgd { "
                            "learning_rate: 0.05 } }"));
}

absl::StatusOr<Optimizer> Optimizer::Create(const config::Optimizer& config) {
  const ConfigProblems problems;
  CheckOptimizer(config, problems.In("optimizer"));
  SL_RETURN_IF_ERROR(problems.ToStatus());
  return Optimizer(FindRule(config), config);
}

std::optional<double> Optimizer::momentum() const {
  if (rule_->momentum == nullptr) return std::nullopt;
  return rule_->momentum(config_);
}

std::string Optimizer::FaultOfMomentum(double momentum) const {
  if (!this->momentum().has_value())
    return "the optimizer has none that a step may change";
  if (momentum == this->momentum()) return "";
  const bool above_zero = rule_->momentum_is_above_zero;
  const auto as_float = static_cast<float>(momentum);
  // A NaN is neither.
  if ((above_zero ? as_float > 0 : momentum >= 0) && as_float < 1) return "";
  return absl::StrCat(above_zero ? "above" : "at least",
                      " 0 and, as a float, below 1 is required");
}

int Optimizer::slot_count() const { return optim::SlotCount(rule()); }

optim::Coefficients Optimizer::CoefficientsOf(const ApplyArgs& args) const {
  SL_CHECK(args.update_count >= 1,
           absl::StrCat("update_count is ", args.update_count));
  optim::Coefficients c = rule_->coefficients(
      config_,
      {.rate = static_cast<float>(args.numbers.learning_rate),
       .momentum = args.numbers.momentum.value_or(momentum().value_or(0)),
       .update_count = args.update_count});
  c.gradient_scale =
      config_.maximize() ? -args.gradient_scale : args.gradient_scale;
  return c;
}

void Optimizer::Apply(const ApplyArgs& args) const {
  SL_CHECK(!args.gradients.empty(), "an update needs at least one gradient");
  optim::Operands operands;
  operands.in = AsBytes(args.in);
  operands.out = AsBytes(args.out);
  operands.gradients = args.gradients;
  operands.sum = AsBytes(args.sum);
  for (int slot = 0; slot < slot_count(); ++slot) {
    SL_CHECK(args.slots[slot] != nullptr, absl::StrCat("slot ", slot));
    operands.slots[slot] = AsBytes(args.slots[slot]);
  }
  optim::Update(rule(), CoefficientsOf(args), operands, args.elements);
}

}  // namespace slackline
