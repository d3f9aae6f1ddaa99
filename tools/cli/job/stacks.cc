#include "tools/cli/job/stacks.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<wire::MemberName> ParseMemberName(const std::string& text) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::ByAnyChar(" -"));
  wire::MemberName name;
  int32_t index = -1;
  if (parts.size() != 2 || (parts[0] != "worker" && parts[0] != "server") ||
      parts[1].empty() || !absl::ascii_isdigit(parts[1][0]) ||
      !absl::SimpleAtoi(parts[1], &index)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' names no member; write it as worker-2 or server-0, "
                     "after the job"));
  }
  name.set_worker(parts[0] == "worker");
  name.set_index(index);
  return name;
}

std::string MemberText(const wire::MemberName& name) {
  return absl::StrCat(name.worker() ? "worker " : "server ", name.index());
}

std::string StacksText(const wire::Inspected& inspected) {
  std::string text =
      absl::StrCat(MemberText(inspected.of()), " (", inspected.host(), ", pid ",
                   inspected.pid(), ")");
  if (!inspected.has_stacks()) {
    return absl::StrCat(text, ": its stacks are not known: ", inspected.error(),
                        "\n");
  }
  const wire::Stacks& stacks = inspected.stacks();
  absl::StrAppend(
      &text,
      stacks.where().empty() ? "" : absl::StrCat(", in ", stacks.where()),
      "\n");
  for (const absl::string_view line :
       absl::StrSplit(stacks.text(), '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, "  ", line, "\n");
  }
  return text;
}

nlohmann::ordered_json StacksJson(const wire::Inspected& inspected) {
  nlohmann::ordered_json json = {{"of", MemberText(inspected.of())},
                                 {"host", inspected.host()},
                                 {"pid", inspected.pid()},
                                 {"where", inspected.stacks().where()},
                                 {"text", inspected.stacks().text()},
                                 {"error", nullptr}};
  if (!inspected.has_stacks()) json["error"] = inspected.error();
  return json;
}

absl::StatusOr<StacksQuestion> StacksQuestion::Ask(
    CoordinatorClient* client, const std::vector<wire::MemberName>& of,
    absl::Duration wait_max) {
  wire::Inspect inspect;
  inspect.mutable_stacks();
  for (const wire::MemberName& name : of) *inspect.add_of() = name;
  StacksQuestion question(client, wait_max);
  SL_ASSIGN_OR_RETURN(const wire::InspectionState state,
                      client->BeginInspection(inspect, wait_max));
  question.number_ = state.number();
  question.Add(state);
  return question;
}

absl::StatusOr<std::optional<wire::Inspected>> StacksQuestion::Next() {
  SL_ASSIGN_OR_RETURN(CoordinatorClient::InspectionNews news,
                      client_->NextOfInspection(number_, received_, wait_max_));
  Add(news.state);
  if (!news.state.has_part()) return std::nullopt;
  ++received_;
  return std::move(*news.state.mutable_part());
}

void StacksQuestion::Add(const wire::InspectionState& state) {
  missing_.clear();
  for (const wire::MemberName& name : state.missing())
    missing_.push_back(MemberText(name));
  gone_.assign(state.gone().begin(), state.gone().end());
}

}  // namespace slackline
