#include "tests/sim/sim_gathers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace slackline::sim {
namespace {

absl::string_view TextOf(const Payload& payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

}  // namespace

Payload SimGathers::Brought(Rank rank, uint64_t place) {
  const std::string text =
      absl::StrCat("of rank ", static_cast<int>(rank), " at ", place);
  return Payload::Copy(text.data(), text.size());
}

void SimGathers::OnAnswer(Rank rank, uint64_t place, bool founder,
                          const MemberCore::CallResult& answer) {
  ++answers_;
  const auto& told = answer.reply.gathered().rank();
  const std::vector<int32_t> ranks(told.begin(), told.end());
  const std::string who = absl::StrCat(
      "rank ", static_cast<int>(rank), " at place ", place, " got what ranks ",
      absl::StrJoin(ranks, ", "), " have brought");
  if (!std::is_sorted(ranks.begin(), ranks.end(), std::less_equal<>()) ||
      ranks.size() != answer.values.size()) {
    return report_(absl::StrCat(who, ", out of order, or not with ",
                                answer.values.size(), " payloads"));
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (TextOf(answer.values[i]) == TextOf(Brought(Rank{ranks[i]}, place)))
      continue;
    report_(absl::StrCat(who, "; that of rank ", ranks[i], " is '",
                         TextOf(answer.values[i]), "'"));
  }
  if (founder && !std::binary_search(ranks.begin(), ranks.end(),
                                     static_cast<int32_t>(rank))) {
    report_(absl::StrCat(who, ", without its own"));
  }
  const auto [first, is_first] = results_.try_emplace(place, ranks);
  if (!is_first && first->second != ranks) {
    report_(absl::StrCat(who, "; others got those of ranks ",
                         absl::StrJoin(first->second, ", ")));
  }
}

int64_t SimGathers::partial(int workers) const {
  return std::count_if(
      results_.begin(), results_.end(), [&](const auto& result) {
        return static_cast<int>(result.second.size()) < workers;
      });
}

}  // namespace slackline::sim
