#include "common/optim/stale_rule.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace slackline {
namespace {

using Config = config::StaleGradients;

constexpr float kRootEpsilon = 1e-7F;

absl::Status CheckDecay(const char* field, double decay) {
  if (decay >= 0 && decay < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ".decay: ", decay, " is not in [0, 1)"));
}

absl::Status CheckLambda(const char* field, double lambda) {
  if (lambda >= 0 && std::isfinite(lambda)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ".lambda: ", lambda, " is not at least 0"));
}

float LoadFloat(const std::byte* bytes, size_t index) {
  float value;
  std::memcpy(&value, bytes + index * sizeof(float), sizeof(float));
  return value;
}

bool Fits(const std::string& pattern, const std::string& table) {
  return fnmatch(pattern.c_str(), table.c_str(), 0) == 0;
}

}  // namespace

absl::StatusOr<StaleRule> StaleRule::Create(const Config& config) {
  StaleRule rule;
  rule.kind_ = config.rule_case();
  switch (config.rule_case()) {
    case Config::kScale:
    case Config::kStalenessAwareRate:
      return rule;
    case Config::kGapAware:
      SL_RETURN_IF_ERROR(CheckDecay("gap_aware", config.gap_aware().decay()));
      rule.decay_ = static_cast<float>(config.gap_aware().decay());
      return rule;
    case Config::kDelayCompensation:
      SL_RETURN_IF_ERROR(CheckLambda("delay_compensation",
                                     config.delay_compensation().lambda()));
      rule.lambda_ = static_cast<float>(config.delay_compensation().lambda());
      return rule;
    case Config::kAdaptiveDelayCompensation: {
      const auto& adaptive = config.adaptive_delay_compensation();
      SL_RETURN_IF_ERROR(
          CheckLambda("adaptive_delay_compensation", adaptive.lambda()));
      SL_RETURN_IF_ERROR(
          CheckDecay("adaptive_delay_compensation", adaptive.decay()));
      rule.lambda_ = static_cast<float>(adaptive.lambda());
      rule.decay_ = static_cast<float>(adaptive.decay());
      return rule;
    }
    case Config::kDrop:
      if (!config.drop().has_beyond_clocks() ||
          !(config.drop().beyond_clocks() >= 0)) {
        return absl::InvalidArgumentError(
            absl::StrCat("drop.beyond_clocks: ",
                         config.drop().has_beyond_clocks()
                             ? absl::StrCat(config.drop().beyond_clocks())
                             : "none",
                         "; a number of clocks of at least 0 is required"));
      }
      rule.limit_clocks_ = config.drop().beyond_clocks();
      return rule;
    case Config::RULE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "no rule; one of scale, staleness_aware_rate, gap_aware, "
      "delay_compensation, adaptive_delay_compensation, drop is required");
}

bool StaleRule::NeedsBase() const {
  return kind_ == Config::kGapAware || kind_ == Config::kDelayCompensation ||
         kind_ == Config::kAdaptiveDelayCompensation;
}

bool StaleRule::NeedsUpdates() const { return kind_ == Config::kGapAware; }

StaleRule::Verdict StaleRule::Judge(const Args& args, Memory* memory) const {
  Verdict verdict;
  const double delay_clocks =
      static_cast<double>(args.missed_updates) / args.workers;
  // Applies `f(gradient, moved, index)` to every element, where `moved` is how
  // far the parameter has moved since.
  const auto map = [&](const auto& f) {
    verdict.gradient = Payload::Allocate(args.elements * sizeof(float));
    auto* const out = reinterpret_cast<float*>(verdict.gradient.MutableData());
    for (size_t i = 0; i < args.elements; ++i) {
      const float moved = args.then == nullptr ? 0 : args.now[i] - args.then[i];
      out[i] = f(LoadFloat(args.gradient, i), moved, i);
    }
  };
  switch (kind_) {
    case Config::RULE_NOT_SET:
      break;
    case Config::kScale: {
      const auto factor = static_cast<float>(1 / (1 + delay_clocks));
      if (factor != 1) {
        map([=](float g, float, size_t) { return g * factor; });
      }
      break;
    }
    case Config::kStalenessAwareRate:
      verdict.rate_factor =
          static_cast<double>(args.workers) /
          static_cast<double>(std::max<int64_t>(1, args.missed_updates));
      break;
    case Config::kGapAware:
      if (args.then == nullptr || memory->mean.empty()) break;
      map([&](float g, float moved, size_t i) {
        const float usual = memory->mean[i];
        return usual > 0 ? g / (1 + std::fabs(moved) / usual) : g;
      });
      break;
    case Config::kDelayCompensation:
      if (args.then == nullptr) break;
      map([&](float g, float moved, size_t) {
        return g + lambda_ * g * g * moved;
      });
      break;
    case Config::kAdaptiveDelayCompensation: {
      std::vector<float>& mean = memory->mean;
      const bool first = mean.empty();
      if (first) mean.resize(args.elements);
      // Also where the base is not known: the mean is of all gradients.
      map([&](float g, float moved, size_t i) {
        mean[i] = first ? g * g : decay_ * mean[i] + (1 - decay_) * g * g;
        const float lambda = lambda_ / std::sqrt(mean[i] + kRootEpsilon);
        return g + lambda * g * g * moved;
      });
      break;
    }
    case Config::kDrop:
      verdict.drop = delay_clocks > limit_clocks_;
      break;
  }
  return verdict;
}

void StaleRule::Updated(const float* before, const float* after,
                        size_t elements, Memory* memory) const {
  if (!NeedsUpdates()) return;
  std::vector<float>& mean = memory->mean;
  const bool first = mean.empty();
  if (first) mean.resize(elements);
  for (size_t i = 0; i < elements; ++i) {
    const float moved = std::fabs(after[i] - before[i]);
    mean[i] = first ? moved : decay_ * mean[i] + (1 - decay_) * moved;
  }
}

absl::StatusOr<StaleRules> StaleRules::Create(const config::Sync& sync) {
  StaleRules rules;
  for (int i = 0; i < sync.stale_size(); ++i) {
    absl::StatusOr<StaleRule> rule = StaleRule::Create(sync.stale(i));
    SL_RETURN_IF_ERROR(
        Annotate(rule.status(), absl::StrCat("sync.stale[", i, "]")));
    rules.entries_.push_back(
        {.pattern = sync.stale(i).table(), .rule = *std::move(rule)});
  }
  return rules;
}

StaleRule StaleRules::For(const std::string& table) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(),
                   [&](const Entry& e) { return Fits(e.pattern, table); });
  return found == entries_.end() ? StaleRule() : found->rule;
}

absl::Status StaleRules::CheckTables(
    absl::Span<const std::string> tables) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const std::string& pattern = entries_[i].pattern;
    if (std::any_of(tables.begin(), tables.end(),
                    [&](const std::string& t) { return Fits(pattern, t); })) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("sync.stale[", i, "].table: \"", pattern,
                     "\" fits no table of the model; they are ",
                     absl::StrJoin(tables, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace slackline
