#include "common/optim/stale/stale_rule.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/block/table_pattern.h"
#include "common/optim/stale/formula.h"
#include "common/status.h"

namespace slackline {
namespace {

// As the config writes it: "gap_aware".
std::string NameOf(const optim::StaleConfig& rule) {
  return config::StaleGradients::descriptor()
      ->FindFieldByNumber(rule.rule)
      ->name();
}

// nullptr: the config has none.
const optim::StaleConfig* FindRule(const config::StaleGradients& config) {
  const auto* const found = std::find_if(std::begin(optim::kStaleConfigs),
                                         std::end(optim::kStaleConfigs),
                                         [&](const optim::StaleConfig* r) {
                                           return r->rule == config.rule_case();
                                         });
  return found == std::end(optim::kStaleConfigs) ? nullptr : *found;
}

}  // namespace

void CheckStaleGradients(const config::StaleGradients& config,
                         const ConfigProblems& problems) {
  const optim::StaleConfig* const rule = FindRule(config);
  if (rule != nullptr) {
    return rule->check(config, problems.In(NameOf(*rule)));
  }
  std::vector<std::string> names;
  for (const optim::StaleConfig* r : optim::kStaleConfigs) {
    names.push_back(NameOf(*r));
  }
  problems.Add("", absl::StrCat("has no rule; one of ",
                                absl::StrJoin(names, ", "), " is required"));
}

absl::StatusOr<StaleRule> StaleRule::Create(
    const config::StaleGradients& config) {
  const ConfigProblems problems;
  CheckStaleGradients(config, problems.In("stale"));
  SL_RETURN_IF_ERROR(problems.ToStatus());
  StaleRule rule;
  rule.formula_ = FindRule(config)->make(config);
  return rule;
}

absl::StatusOr<StaleRules> StaleRules::Create(const config::Sync& sync) {
  const ConfigProblems problems;
  for (int i = 0; i < sync.stale_size(); ++i) {
    CheckStaleGradients(sync.stale(i), problems.In("sync").In("stale", i));
  }
  SL_RETURN_IF_ERROR(problems.ToStatus());
  StaleRules rules;
  for (const config::StaleGradients& stale : sync.stale()) {
    SL_ASSIGN_OR_RETURN(StaleRule rule, StaleRule::Create(stale));
    rules.entries_.push_back({.pattern = stale.table(), .rule = rule});
  }
  return rules;
}

StaleRule StaleRules::For(const std::string& table) const {
  const auto found = std::find_if(
      entries_.begin(), entries_.end(),
      [&](const Entry& e) { return FitsTablePattern(e.pattern, table); });
  return found == entries_.end() ? StaleRule() : found->rule;
}

absl::Status StaleRules::CheckTables(
    absl::Span<const std::string> tables) const {
  const ConfigProblems problems;
  for (size_t i = 0; i < entries_.size(); ++i) {
    CheckTablePattern(entries_[i].pattern, tables,
                      problems.In("sync").In("stale", static_cast<int>(i)));
  }
  return problems.ToStatus();
}

}  // namespace slackline
