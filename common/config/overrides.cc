#include "common/config/overrides.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/config/field_names.h"
#include "common/config/parse_text.h"
#include "common/config/shell_line.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"
#include "common/sync/modes/mode_rule.h"

namespace slackline {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

absl::Status WrongValue(const FieldDescriptor& field, absl::string_view value) {
  // On the command line the shell has taken the quotes.
  return absl::InvalidArgumentError(
      absl::StrCat(field.name(), ": value is '", value, "'; ",
                   ExpectedValueText(field), " is required"));
}

// The value without the quotes around it, if it has them as in a config file;
// else empty.
absl::string_view WithoutQuotes(absl::string_view value) {
  if (value.size() < 3) return "";
  const char quote = value.front();
  const absl::string_view inside = value.substr(1, value.size() - 2);
  const bool quoted = (quote == '"' || quote == '\'') &&
                      value.back() == quote &&
                      !absl::StrContains(inside, quote);
  return quoted ? inside : "";
}

// Sets the singular field, or element `index` of a list; index -1 appends.
absl::Status SetScalar(const FieldDescriptor& field, int index,
                       absl::string_view text, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  // Reflection has three calls per type; this picks one.
  const auto store = [&](auto set, auto set_repeated, auto add, auto value) {
    if (!field.is_repeated()) {
      (reflection.*set)(message, &field, std::move(value));
    } else if (index >= 0) {
      (reflection.*set_repeated)(message, &field, index, std::move(value));
    } else {
      (reflection.*add)(message, &field, std::move(value));
    }
    return absl::OkStatus();
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      int32_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return WrongValue(field, text);
      return store(&Reflection::SetInt32, &Reflection::SetRepeatedInt32,
                   &Reflection::AddInt32, value);
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return WrongValue(field, text);
      return store(&Reflection::SetInt64, &Reflection::SetRepeatedInt64,
                   &Reflection::AddInt64, value);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value)) return WrongValue(field, text);
      return store(&Reflection::SetDouble, &Reflection::SetRepeatedDouble,
                   &Reflection::AddDouble, value);
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      if (text != "true" && text != "false") return WrongValue(field, text);
      return store(&Reflection::SetBool, &Reflection::SetRepeatedBool,
                   &Reflection::AddBool, text == "true");
    }
    case FieldDescriptor::CPPTYPE_STRING:
      if (const absl::string_view inside = WithoutQuotes(text);
          !inside.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            field.name(), ": value is ", text,
            ", with quotes; on the command line a text has none, as in ",
            field.name(), "=", inside));
      }
      return store(&Reflection::SetString, &Reflection::SetRepeatedString,
                   &Reflection::AddString, std::string(text));
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumValueDescriptor* value =
          field.enum_type()->FindValueByName(std::string(text));
      if (value == nullptr) return WrongValue(field, text);
      return store(&Reflection::SetEnum, &Reflection::SetRepeatedEnum,
                   &Reflection::AddEnum, value);
    }
    default:
      return WrongValue(field, text);
  }
}

// "[256,128]" or one value without brackets. Replaces the list.
absl::Status SetList(const FieldDescriptor& field, absl::string_view text,
                     Message* message) {
  message->GetReflection()->ClearField(message, &field);
  if (absl::StartsWith(text, "[") && absl::EndsWith(text, "]")) {
    text = text.substr(1, text.size() - 2);
    if (absl::StripAsciiWhitespace(text).empty()) return absl::OkStatus();
  }
  for (absl::string_view element : absl::StrSplit(text, ',')) {
    SL_RETURN_IF_ERROR(
        SetScalar(field, -1, absl::StripAsciiWhitespace(element), message));
  }
  return absl::OkStatus();
}

// Replaces the block `name` by "{FIELDS}", in text format. "{}" picks a branch
// of a choice, as in sync.asp={}.
absl::Status SetBlock(absl::string_view path, absl::string_view name,
                      absl::string_view value, Message* message) {
  absl::string_view inside = value;
  if (!absl::ConsumePrefix(&inside, "{") ||
      !absl::ConsumeSuffix(&inside, "}")) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": value is '", value, "'; a block is set field by field, as in ",
        "--set ", path, ".FIELD=VALUE, or as a whole, as in '", path,
        "={FIELD: VALUE}'"));
  }
  FieldOrigins unused("");
  const std::unique_ptr<Message> parsed(message->New());
  // Places count within the braces.
  SL_RETURN_IF_ERROR(ParseConfigText(std::string(inside), std::string(name),
                                     parsed.get(), &unused));
  message->CopyFrom(*parsed);
  return absl::OkStatus();
}

// "hidden" or "worker[1]".
struct PathPart {
  std::string name;
  int index = -1;  // -1: none given.
};

absl::StatusOr<PathPart> ParsePathPart(absl::string_view text) {
  PathPart part;
  const size_t bracket = text.find('[');
  part.name = std::string(text.substr(0, bracket));
  if (bracket == absl::string_view::npos) return part;
  // One spelling per path, because paths are compared as text.
  if (!absl::SimpleAtoi(absl::StripSuffix(text.substr(bracket + 1), "]"),
                        &part.index) ||
      part.index < 0 || text != absl::StrCat(part.name, "[", part.index, "]")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not a field; write an element as worker[0]"));
  }
  return part;
}

// Errors unless the part has an index exactly where the field wants one.
absl::Status CheckIndex(const FieldDescriptor& field, const PathPart& part,
                        bool is_last, const Message& message) {
  if (!field.is_repeated()) {
    if (part.index < 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "'", part.name, "' is no list; leave out [", part.index, "]"));
  }
  const int count = message.GetReflection()->FieldSize(message, &field);
  const bool blocks = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (part.index < 0) {
    if (is_last && !blocks) return absl::OkStatus();  // The list as a whole.
    return absl::InvalidArgumentError(
        absl::StrCat("'", part.name, "' is a list of ", count,
                     "; say which element, as in ", part.name, "[0]"));
  }
  if (part.index < count) return absl::OkStatus();
  // A whole block may be added at the end.
  if (part.index == count && blocks && is_last) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", part.name, "[", part.index, "]' does not exist; the ", "config has ",
      count, " ", part.name, " elements", count > 0 ? ", counted from 0" : ""));
}

// Forgets where the other branches of the field's choice came from.
void EraseSiblings(const FieldDescriptor& field, absl::string_view path,
                   FieldOrigins* origins) {
  const OneofDescriptor* choice = field.containing_oneof();
  for (int i = 0; choice != nullptr && i < choice->field_count(); ++i) {
    if (choice->field(i) == &field) continue;
    origins->Erase(FieldPath(path, *choice->field(i), -1));
  }
}

// Changes `config` even on error. `path` and `value` are the assignment's two
// sides, `origin` is what `origins` shall say of the field.
absl::Status Assign(absl::string_view path, absl::string_view value,
                    const std::string& origin, config::ClusterConfig* config,
                    FieldOrigins* origins) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '.');
  Message* message = config;
  std::string parent;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool is_last = i + 1 == parts.size();
    const Descriptor& type = *message->GetDescriptor();
    SL_ASSIGN_OR_RETURN(const PathPart part, ParsePathPart(parts[i]));
    const FieldDescriptor* field = type.FindFieldByName(part.name);
    if (field == nullptr) {
      return absl::InvalidArgumentError(UnknownFieldText(type, part.name));
    }
    SL_RETURN_IF_ERROR(CheckIndex(*field, part, is_last, *message));
    EraseSiblings(*field, parent, origins);
    parent = FieldPath(parent, *field, part.index);
    const bool is_block = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!is_last && !is_block) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part.name, "' is ", ExpectedValueText(*field),
                       " and has no fields inside"));
    }
    if (is_block) {
      const Reflection& reflection = *message->GetReflection();
      if (part.index >= 0 &&
          part.index == reflection.FieldSize(*message, field)) {
        message = reflection.AddMessage(message, field);
      } else {
        message = part.index >= 0 ? reflection.MutableRepeatedMessage(
                                        message, field, part.index)
                                  : reflection.MutableMessage(message, field);
      }
    }
    if (!is_last) continue;
    origins->Erase(parent);
    origins->Set(parent, origin);
    if (is_block) {
      return SetBlock(path, part.name, value, message);
    }
    if (field->is_repeated() && part.index < 0) {
      return SetList(*field, value, message);
    }
    return SetScalar(*field, part.index, value, message);
  }
  return absl::OkStatus();
}

// Splits "path=value"; both without surrounding blanks.
absl::StatusOr<std::pair<absl::string_view, absl::string_view>> Split(
    absl::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(
        "is not of the form path=value, as in train.epochs=3");
  }
  return std::pair(absl::StripAsciiWhitespace(assignment.substr(0, equals)),
                   absl::StripAsciiWhitespace(assignment.substr(equals + 1)));
}

std::string SetOrigin(absl::string_view assignment) {
  return absl::StrCat("--set ", assignment);
}

absl::Status AssignField(absl::string_view assignment,
                         config::ClusterConfig* config, FieldOrigins* origins) {
  const std::string origin = SetOrigin(assignment);
  const auto sides = Split(assignment);
  if (!sides.ok()) return Annotate(sides.status(), origin);
  return Annotate(Assign(sides->first, sides->second, origin, config, origins),
                  origin);
}

// "--on ssh". What the block has stays.
absl::Status AssignEngine(const std::string& name,
                          config::ClusterConfig* config,
                          FieldOrigins* origins) {
  const std::string origin = absl::StrCat("--on ", name);
  const OneofDescriptor& engines =
      *config::Launch::descriptor()->FindOneofByName("engine");
  std::vector<std::string> known;
  for (int i = 0; i < engines.field_count(); ++i) {
    const FieldDescriptor& field = *engines.field(i);
    known.push_back(field.name());
    if (field.name() != name) continue;
    EraseSiblings(field, "launch", origins);
    config::Launch* const launch = config->mutable_launch();
    launch->GetReflection()->MutableMessage(launch, &field);
    // Whoever gave the block gave it for this.
    const std::string path = absl::StrCat("launch.", name);
    if (origins->At(path).empty()) origins->Set(path, origin);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      origin, ": is not known; ", absl::StrJoin(known, ", "), " are"));
}

// The program after "--", for all workers.
void AssignCommand(const std::vector<std::string>& words,
                   config::ClusterConfig* config, FieldOrigins* origins) {
  const std::string line = ShellLine(words);
  for (int i = 0; i < config->worker_size(); ++i) {
    config->mutable_worker(i)->set_command(line);
    origins->Set(absl::StrCat("worker[", i, "].command"),
                 absl::StrCat("-- ", line));
  }
}

// The path of what `mode` sets: a block, with its options in it.
std::string PathOf(const wire::SetMode& mode) {
  return absl::StrCat("sync.",
                      mode.has_mode() ? RuleOf(mode.mode()).name() : "auto");
}

// The paths of the options in it.
std::vector<std::string> OptionPathsOf(const wire::SetMode& mode) {
  std::vector<std::string> paths;
  if (!mode.has_mode()) return paths;
  for (const ModeRule::Parameter& parameter : RuleOf(mode.mode()).parameters())
    paths.push_back(absl::StrCat(PathOf(mode), ".", parameter.field));
  return paths;
}

// "bsp, ssp:S (as in ssp:3), ... or auto is required, where S is at least 0,
// ...".
std::string ModeForms() {
  std::vector<std::string> forms;
  std::vector<std::string> bounds;
  for (const ModeRule* const rule : AllRules()) {
    if (rule->is_of_whole_job()) continue;
    std::string& form = forms.emplace_back(rule->name());
    const char* before = nullptr;
    for (const ModeRule::Parameter& parameter : rule->parameters()) {
      absl::StrAppend(&form, ":", parameter.sign);
      bounds.push_back(absl::StrCat(
          parameter.sign, " is at least ",
          before == nullptr ? absl::StrCat(parameter.least) : before));
      before = parameter.sign;
    }
    if (before != nullptr) {
      absl::StrAppend(&form, " (as in ", ModeText(*ModeFromText(rule->name())),
                      ")");
    }
  }
  return absl::StrCat(absl::StrJoin(forms, ", "),
                      " or auto is required, where ",
                      absl::StrJoin(bounds, ", "));
}

absl::Status AssignMode(absl::string_view text, config::ClusterConfig* config,
                        FieldOrigins* origins) {
  const std::string origin = absl::StrCat("--mode ", text);
  const absl::StatusOr<wire::SetMode> mode = ParseMode(text);
  if (!mode.ok()) return Annotate(mode.status(), origin);
  config::Sync* sync = config->mutable_sync();
  for (int i = 0; i < sync->phase_size(); ++i) {
    origins->Erase(absl::StrCat("sync.phase[", i, "]"));
  }
  sync->clear_phase();
  if (mode->has_mode()) {
    PutConfiguredMode(mode->mode(), sync);
  } else {
    sync->mutable_auto_();
  }
  origins->Set(PathOf(*mode), origin);
  for (const std::string& path : OptionPathsOf(*mode))
    origins->Set(path, origin);
  return absl::OkStatus();
}

// In place of the mode or the phases.
void AssignDelays(const std::string& given, config::ClusterConfig* config,
                  FieldOrigins* origins) {
  config::Sync* const sync = config->mutable_sync();
  for (int i = 0; i < sync->phase_size(); ++i) {
    origins->Erase(absl::StrCat("sync.phase[", i, "]"));
  }
  sync->clear_phase();
  sync->mutable_delays()->set_given(given);
  origins->Set("sync.delays.given", absl::StrCat("--delays ", given));
}

}  // namespace

absl::Status ApplyOverrides(const ConfigOverrides& overrides,
                            config::ClusterConfig* config,
                            FieldOrigins* origins) {
  // What each flag set. A later flag that replaces or removes it shows in
  // `origins`, and then the two contradict each other.
  std::vector<std::pair<std::string, std::string>> given;
  if (!overrides.mode.empty()) {
    SL_RETURN_IF_ERROR(AssignMode(overrides.mode, config, origins));
    const std::string origin = absl::StrCat("--mode ", overrides.mode);
    SL_ASSIGN_OR_RETURN(const wire::SetMode mode, ParseMode(overrides.mode));
    given.push_back({PathOf(mode), origin});
    for (const std::string& path : OptionPathsOf(mode))
      given.push_back({path, origin});
  }
  if (!overrides.delays.empty()) {
    const std::string origin = absl::StrCat("--delays ", overrides.delays);
    if (!overrides.mode.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": contradicts --mode ", overrides.mode,
                       "; a job with given delays has no other mode, keep one "
                       "of them"));
    }
    AssignDelays(overrides.delays, config, origins);
    given.push_back({"sync.delays.given", origin});
  }
  for (const std::string& assignment : overrides.sets) {
    SL_RETURN_IF_ERROR(AssignField(assignment, config, origins));
    given.push_back(
        {std::string(Split(assignment)->first), SetOrigin(assignment)});
  }
  if (!overrides.engine.empty())
    SL_RETURN_IF_ERROR(AssignEngine(overrides.engine, config, origins));
  for (const std::string& option : overrides.slurm_options)
    config->mutable_launch()->mutable_slurm()->add_option(option);
  if (!overrides.worker_command.empty()) {
    AssignCommand(overrides.worker_command, config, origins);
  }
  for (const auto& [path, origin] : given) {
    if (origins->At(path) == origin) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(origin,
                     ": contradicts a later --set, or the program "
                     "after --, that replaces ",
                     path, "; keep one of them"));
  }
  if (overrides.hosts.empty()) return absl::OkStatus();
  return PlaceOnHosts(overrides.hosts, overrides.hosts_origin, config, origins);
}

absl::StatusOr<wire::SetMode> ParseMode(absl::string_view text) {
  wire::SetMode set_mode;
  if (text == "auto") {
    set_mode.mutable_by_policy();
    return set_mode;
  }
  std::optional<sync::Mode> mode = ModeFromText(text);
  if (!mode.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no mode; ", ModeForms()));
  }
  *set_mode.mutable_mode() = *std::move(mode);
  return set_mode;
}

absl::Status SetField(absl::string_view assignment,
                      config::ClusterConfig* config) {
  FieldOrigins unused("");
  config::ClusterConfig changed = *config;
  SL_RETURN_IF_ERROR(AssignField(assignment, &changed, &unused));
  config->Swap(&changed);
  return absl::OkStatus();
}

absl::Status SetMode(absl::string_view text, config::ClusterConfig* config) {
  FieldOrigins unused("");
  config::ClusterConfig changed = *config;
  SL_RETURN_IF_ERROR(AssignMode(text, &changed, &unused));
  config->Swap(&changed);
  return absl::OkStatus();
}

}  // namespace slackline
