// What the files of this folder are made of: each is one rule for stale
// gradients, with its formula, its block of the config and its bounds.
// Internal to common/optim.
#pragma once

#include <cstring>
#include <memory>

#include "common/block/config_problems.h"
#include "common/optim/stale/stale_rule.h"

namespace slackline::optim {

// Names as in stale_rule.h: of a gradient g, tau is the number of updates that
// it misses, W the number of workers, w the parameter now, w_then the one that
// it was computed from.
struct StaleConfig {
  config::StaleGradients::RuleCase rule;
  // Adds what is wrong with the fields of the block.
  void (*check)(const config::StaleGradients& config,
                const ConfigProblems& problems);
  std::unique_ptr<const StaleRule::Formula> (*make)(
      const config::StaleGradients& config);
};

extern const StaleConfig kScale;
extern const StaleConfig kStalenessAwareRate;
extern const StaleConfig kGapAware;
extern const StaleConfig kDelayCompensation;
extern const StaleConfig kAdaptiveDelayCompensation;
extern const StaleConfig kDropStale;

inline constexpr const StaleConfig* kStaleConfigs[] = {
    &kScale,
    &kStalenessAwareRate,
    &kGapAware,
    &kDelayCompensation,
    &kAdaptiveDelayCompensation,
    &kDropStale};

// The gradient with `f(g, w - w_then, index)` for every element. Where w_then
// is not known, w - w_then is 0.
template <typename F>
Payload MapGradient(const StaleRule::Args& args, const F& f) {
  Payload result = Payload::Allocate(args.elements * sizeof(float));
  auto* const out = reinterpret_cast<float*>(result.MutableData());
  for (size_t i = 0; i < args.elements; ++i) {
    float g;
    std::memcpy(&g, args.gradient + i * sizeof(float), sizeof(float));
    out[i] = f(g, args.then == nullptr ? 0 : args.now[i] - args.then[i], i);
  }
  return result;
}

}  // namespace slackline::optim
