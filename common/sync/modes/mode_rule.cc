#include "common/sync/modes/mode_rule.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace slackline {

absl::Span<const ModeRule* const> AllRules() {
  static const std::array<const ModeRule*, 7> rules = {
      &BspRule(),    &SspRule(),       &DsspRule(),  &AspRule(),
      &BackupRule(), &AllReduceRule(), &DelaysRule()};
  return rules;
}

const ModeRule& RuleOf(const sync::Mode& mode) {
  for (const ModeRule* const rule : AllRules()) {
    if (rule->kind() == mode.kind_case()) return *rule;
  }
  return BspRule();
}

const ModeRule* FindRule(absl::string_view name) {
  for (const ModeRule* const rule : AllRules()) {
    if (rule->name() == name) return rule;
  }
  return nullptr;
}

std::string ModeRule::name() const {
  return sync::Mode::descriptor()->FindFieldByNumber(kind())->name();
}

void ModeRule::Check(const sync::Mode&, int, std::vector<ModeProblem>*) const {}

void CheckStaleness(const char* field, int64_t value,
                    std::vector<ModeProblem>* problems) {
  if (value >= 0 && value <= kStalenessBoundMax) return;
  problems->push_back(
      {.field = field,
       .why = absl::StrCat("value is ", value, "; 0 to ", kStalenessBoundMax,
                           " is required; for no bound use asp")});
}

}  // namespace slackline
