#include "common/process/engine_index.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/shortened.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr std::array kNumbers = {"SLURM_PROCID", "JOB_COMPLETION_INDEX",
                                 "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
// Kubernetes sets it in every container.
constexpr char kInKubernetes[] = "KUBERNETES_SERVICE_HOST";
constexpr char kByHand[] = "give --index a number, from 0";
constexpr size_t kValueBytesShown = 64;

// Digits alone: SimpleAtoi takes signs and spaces.
std::optional<int> NumberOf(absl::string_view text) {
  const bool digits =
      !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  int number = 0;
  if (!digits || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

// Of "server-2" "2"; empty: the name has none.
std::string OrdinalOf(absl::string_view host) {
  host = host.substr(0, host.find('.'));
  const size_t dash = host.rfind('-');
  return dash == host.npos ? "" : std::string(host.substr(dash + 1));
}

absl::StatusOr<EngineIndex> NumberOfEngine(const EngineFacts& facts) {
  std::optional<EngineIndex> found;
  for (const char* const name : kNumbers) {
    const auto variable = facts.environment.find(name);
    if (variable == facts.environment.end()) continue;
    const std::string said =
        absl::StrCat(name, "=", Shortened(variable->second, kValueBytesShown));
    const std::optional<int> number = NumberOf(variable->second);
    if (!number.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "auto: ", said, " is no number from 0 to 2147483647; ", kByHand));
    }
    if (found.has_value() && found->index != *number) {
      return absl::InvalidArgumentError(
          absl::StrCat("auto: ", found->from, " and ", said,
                       " disagree; unset one, or ", kByHand));
    }
    if (!found.has_value()) found = EngineIndex{*number, said};
  }
  if (found.has_value()) return *std::move(found);
  const std::string none =
      absl::StrCat("auto: none of ", absl::StrJoin(kNumbers, ", "), " is set");
  if (facts.environment.count(kInKubernetes) == 0) {
    return absl::NotFoundError(absl::StrCat(
        none,
        ", and this is no container of Kubernetes, where the name of a "
        "host has the ordinal of its StatefulSet; ",
        kByHand));
  }
  const std::string host = Shortened(facts.host_name, kValueBytesShown);
  const std::optional<int> ordinal = NumberOf(OrdinalOf(facts.host_name));
  if (!ordinal.has_value()) {
    return absl::NotFoundError(absl::StrCat(
        none, ", and the name of this host, '", host,
        "', does not end in the ordinal of a StatefulSet; ", kByHand));
  }
  return EngineIndex{*ordinal, absl::StrCat("the host's name, ", host)};
}

}  // namespace

std::vector<std::string> EngineVariables() {
  std::vector<std::string> names(kNumbers.begin(), kNumbers.end());
  names.emplace_back(kInKubernetes);
  return names;
}

EngineFacts EngineFactsHere() {
  EngineFacts facts;
  for (const std::string& name : EngineVariables()) {
    if (const char* const value = std::getenv(name.c_str()); value != nullptr)
      facts.environment[name] = value;
  }
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) == 0)
    facts.host_name = host.data();
  return facts;
}

std::optional<int> AutoIndexFrom(absl::string_view index) {
  if (!absl::ConsumePrefix(&index, kAutoIndex)) return std::nullopt;
  if (index.empty()) return 0;
  if (!absl::ConsumePrefix(&index, "+")) return std::nullopt;
  return NumberOf(index);
}

absl::StatusOr<EngineIndex> IndexOfEngine(const EngineFacts& facts, int from) {
  SL_ASSIGN_OR_RETURN(EngineIndex index, NumberOfEngine(facts));
  if (index.index > std::numeric_limits<int>::max() - from) {
    return absl::InvalidArgumentError(absl::StrCat(
        "auto+", from, ": ", index.from, " is too large; ", kByHand));
  }
  if (from > 0) absl::StrAppend(&index.from, " + ", from);
  index.index += from;
  return index;
}

}  // namespace slackline
