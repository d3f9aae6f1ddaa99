// An optimizer's block of the config: what is allowed in it, and which formula
// with which numbers it asks for. Each is a file of this folder.
#pragma once

#include <cstdint>
#include <optional>

#include "common/block/config_problems.h"
#include "common/optim/rules/rule.h"
#include "proto/optimizer.pb.h"

namespace slackline::optim {

// What the numbers of one update depend on, beside the config.
struct RuleStep {
  float rate = 0;
  double momentum = 0;  // This update's, if the rule has one.
  int64_t update_count = 1;
};

struct RuleConfig {
  config::Optimizer::KindCase kind;  // The block.
  Rule (*formula)(const config::Optimizer& config);
  double (*learning_rate)(const config::Optimizer& config);
  // The momentum, or beta1, that an update may replace. None, or nullptr: there
  // is none, or it has to be the same in all updates.
  std::optional<double> (*momentum)(const config::Optimizer& config);
  // It goes with a buffer that PyTorch leaves as it is in an update with a
  // momentum of 0, where the formula here would replace it. So none has that.
  bool momentum_is_above_zero = false;
  // Adds what is wrong with the fields of the block.
  void (*check)(const config::Optimizer& config,
                const ConfigProblems& problems);
  // The numbers of update `update_count`, counted from 1. gradient_scale is not
  // set.
  Coefficients (*coefficients)(const config::Optimizer& config,
                               const RuleStep& step);
};

// NAdam's product of the momenta of the first `updates` updates, which PyTorch
// keeps as mu_product.
double ProductOfMomenta(const config::NAdam& block, double updates);

extern const RuleConfig kSgdConfig;
extern const RuleConfig kMomentumConfig;
extern const RuleConfig kNesterovConfig;
extern const RuleConfig kAdagradConfig;
extern const RuleConfig kAdamConfig;
extern const RuleConfig kAdamwConfig;
extern const RuleConfig kRmspropConfig;
extern const RuleConfig kAdadeltaConfig;
extern const RuleConfig kAdamaxConfig;
extern const RuleConfig kNadamConfig;
extern const RuleConfig kRadamConfig;
extern const RuleConfig kLionConfig;

inline constexpr const RuleConfig* kRuleConfigs[] = {
    &kSgdConfig,    &kMomentumConfig, &kNesterovConfig, &kAdagradConfig,
    &kAdamConfig,   &kAdamwConfig,    &kRmspropConfig,  &kAdadeltaConfig,
    &kAdamaxConfig, &kNadamConfig,    &kRadamConfig,    &kLionConfig};

// The fields that every block has.
template <typename Block>
void CheckRates(const Block& block, const ConfigProblems& problems) {
  if (block.has_learning_rate()) {
    problems.FloatAboveZero("learning_rate", block.learning_rate());
  } else {
    problems.Add("learning_rate",
                 "is missing; above 0 is required, as in learning_rate: 0.05");
  }
  problems.FloatAtLeastZero("weight_decay", block.weight_decay());
}

}  // namespace slackline::optim
