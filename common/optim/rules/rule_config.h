// An optimizer's block of the config: what is allowed in it, and which formula
// with which numbers it asks for. Each is a file of this folder.
#pragma once

#include <cstdint>

#include "common/config/config_problems.h"
#include "common/optim/rules/rule.h"
#include "proto/optimizer.pb.h"

namespace slackline::optim {

struct RuleConfig {
  config::Optimizer::KindCase kind;  // The block.
  Rule rule;                         // The formula.
  double (*learning_rate)(const config::Optimizer& config);
  // Adds what is wrong with the fields of the block.
  void (*check)(const config::Optimizer& config,
                const ConfigProblems& problems);
  // Of update number `update_count`, counted from 1. Without gradient_scale.
  Coefficients (*coefficients)(const config::Optimizer& config, float rate,
                               int64_t update_count);
};

extern const RuleConfig kSgdConfig;
extern const RuleConfig kMomentumConfig;
extern const RuleConfig kNesterovConfig;
extern const RuleConfig kAdagradConfig;
extern const RuleConfig kAdamConfig;
extern const RuleConfig kAdamwConfig;

inline constexpr const RuleConfig* kRuleConfigs[] = {
    &kSgdConfig,     &kMomentumConfig, &kNesterovConfig,
    &kAdagradConfig, &kAdamConfig,     &kAdamwConfig};

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
