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

// One of each kind, with and without weight decay.
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
  };
}

}  // namespace slackline
