#include "common/sync/modes/mode.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "common/sync/modes/mode_rule.h"
#include "google/protobuf/descriptor.h"

namespace slackline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

const ModeRule* KnownRule(const sync::Mode& mode) {
  const ModeRule& rule = RuleOf(mode);
  return rule.kind() == mode.kind_case() ? &rule : nullptr;
}

// The block with a mode's parameters: `message` is a Mode, or of the config.
const FieldDescriptor* BlockOf(const ModeRule& rule, const Message& message) {
  const FieldDescriptor* const block =
      message.GetDescriptor()->FindFieldByName(rule.name());
  SL_CHECK(block != nullptr, "a schema has no block for a mode");
  return block;
}

const FieldDescriptor* FieldOf(const ModeRule::Parameter& parameter,
                               const Message& block) {
  const FieldDescriptor* const field =
      block.GetDescriptor()->FindFieldByName(parameter.field);
  SL_CHECK(field != nullptr, "a mode lacks a parameter of its rule");
  return field;
}

}  // namespace

std::vector<ModeProblem> ProblemsOf(const sync::Mode& mode, int workers) {
  std::vector<ModeProblem> problems;
  const ModeRule* const rule = KnownRule(mode);
  if (rule == nullptr) {
    problems.push_back(
        {.field = "", .why = "no mode is set, or one that is not known here"});
    return problems;
  }
  rule->Check(mode, workers, &problems);
  return problems;
}

std::string WhyNoMode(const sync::Mode& mode, int workers) {
  const std::vector<ModeProblem> problems = ProblemsOf(mode, workers);
  if (problems.empty()) return "";
  const ModeProblem& first = problems.front();
  if (first.field.empty()) return first.why;
  return absl::StrCat(ModeText(mode), ": ", first.field, ": ", first.why);
}

sync::Mode ConfiguredMode(const Message& block) {
  sync::Mode mode;
  const FieldDescriptor* const from =
      block.GetReflection()->GetOneofFieldDescriptor(
          block, block.GetDescriptor()->FindOneofByName("mode"));
  const ModeRule* const rule =
      from == nullptr ? nullptr : FindRule(from->name());
  if (rule == nullptr) {
    mode.mutable_bsp();
    return mode;
  }
  mode.GetReflection()
      ->MutableMessage(&mode, BlockOf(*rule, mode))
      ->CopyFrom(block.GetReflection()->GetMessage(block, from));
  return mode;
}

void PutConfiguredMode(const sync::Mode& mode, Message* block) {
  const ModeRule& rule = RuleOf(mode);
  block->GetReflection()
      ->MutableMessage(block, BlockOf(rule, *block))
      ->CopyFrom(mode.GetReflection()->GetMessage(mode, BlockOf(rule, mode)));
}

std::string ModeText(const sync::Mode& mode) {
  const ModeRule* const rule = KnownRule(mode);
  if (rule == nullptr) return "unknown";
  std::string text = rule->name();
  const Message& block =
      mode.GetReflection()->GetMessage(mode, BlockOf(*rule, mode));
  for (const ModeRule::Parameter& parameter : rule->parameters()) {
    absl::StrAppend(
        &text, ":",
        block.GetReflection()->GetInt32(block, FieldOf(parameter, block)));
  }
  const std::string given = rule->GivenDelaysOf(mode);
  if (!given.empty()) absl::StrAppend(&text, ":", given);
  return text;
}

std::optional<sync::Mode> ModeFromText(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  const ModeRule* const rule = FindRule(parts.front());
  if (rule == nullptr || rule->is_of_whole_job()) return std::nullopt;
  const size_t numbers = parts.size() - 1;
  if (numbers != 0 && numbers != rule->parameters().size()) return std::nullopt;
  sync::Mode mode;
  Message* const block =
      mode.GetReflection()->MutableMessage(&mode, BlockOf(*rule, mode));
  int32_t before = 0;
  for (size_t i = 0; i < rule->parameters().size(); ++i) {
    const ModeRule::Parameter& parameter = rule->parameters()[i];
    const FieldDescriptor* const field = FieldOf(parameter, *block);
    int32_t value = field->default_value_int32();
    if (numbers != 0 && (!absl::SimpleAtoi(parts[i + 1], &value) ||
                         value < parameter.least || value < before)) {
      return std::nullopt;
    }
    block->GetReflection()->SetInt32(block, field, value);
    before = value;
  }
  return mode;
}

bool SameMode(const sync::Mode& a, const sync::Mode& b) {
  return ModeText(a) == ModeText(b);
}

}  // namespace slackline
