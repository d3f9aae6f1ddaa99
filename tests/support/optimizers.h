// Optimizers to test the ways of computing an update with.
#pragma once

#include <string>
#include <vector>

#include "common/optim/optimizer.h"
#include "common/status.h"
#include "google/protobuf/text_format.h"

namespace slackline {

// A text that is no config is fatal.
inline config::Optimizer ParseOptimizer(const std::string& text) {
  config::Optimizer config;
  SL_CHECK(google::protobuf::TextFormat::ParseFromString(text, &config), text);
  return config;
}

inline Optimizer MakeOptimizer(const std::string& text) {
  absl::StatusOr<Optimizer> optimizer = Optimizer::Create(ParseOptimizer(text));
  SL_CHECK(optimizer.ok(), optimizer.status().ToString());
  return *std::move(optimizer);
}

// Each formula, with and without weight decay.
inline std::vector<std::string> OptimizerTexts() {
  return {
      "sgd { learning_rate: 0.1 }",
      "sgd { learning_rate: 0.1 weight_decay: 0.02 }",
      "momentum { learning_rate: 0.1 momentum: 0.8 }",
      "momentum { learning_rate: 0.1 weight_decay: 0.02 }",
      "nesterov { learning_rate: 0.1 momentum: 0.8 }",
      "nesterov { learning_rate: 0.1 weight_decay: 0.02 }",
      "adagrad { learning_rate: 0.1 }",
      "adagrad { learning_rate: 0.1 weight_decay: 0.02 epsilon: 1e-3 }",
      "adam { learning_rate: 0.01 }",
      "adam { learning_rate: 0.01 weight_decay: 0.02 beta1: 0.8 beta2: 0.99 }",
      "adamw { learning_rate: 0.01 }",
      "adamw { learning_rate: 0.01 weight_decay: 0.1 epsilon: 1e-4 }",
      "momentum { learning_rate: 0.1 weight_decay: 0.02 dampening: 0.3 }",
      "sgd { learning_rate: 0.1 weight_decay: 0.02 } maximize: true",
      "adam { learning_rate: 0.01 weight_decay: 0.02 amsgrad: true }",
      "adamw { learning_rate: 0.01 weight_decay: 0.1 amsgrad: true }",
      "rmsprop { learning_rate: 0.01 }",
      "rmsprop { learning_rate: 0.01 alpha: 0.9 momentum: 0.8 }",
      "rmsprop { learning_rate: 0.01 centered: true weight_decay: 0.02 }",
      "rmsprop { learning_rate: 0.01 centered: true momentum: 0.8 } "
      "maximize: true",
      "adadelta { learning_rate: 1 }",
      "adadelta { learning_rate: 0.5 rho: 0.8 weight_decay: 0.02 }",
      "adamax { learning_rate: 0.01 }",
      "adamax { learning_rate: 0.01 weight_decay: 0.02 beta2: 0.9 }",
      "nadam { learning_rate: 0.01 }",
      "nadam { learning_rate: 0.01 weight_decay: 0.02 momentum_decay: 0.1 }",
      "nadam { learning_rate: 0.01 weight_decay: 0.1 "
      "decoupled_weight_decay: true }",
      "radam { learning_rate: 0.01 beta2: 0.9 }",
      "radam { learning_rate: 0.01 weight_decay: 0.02 }",
      "radam { learning_rate: 0.01 weight_decay: 0.1 beta2: 0.9 "
      "decoupled_weight_decay: true }",
      "lion { learning_rate: 0.001 }",
      "lion { learning_rate: 0.001 weight_decay: 0.1 beta1: 0.8 }",
  };
}

}  // namespace slackline
