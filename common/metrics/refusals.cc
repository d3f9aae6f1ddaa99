#include "common/metrics/refusals.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slackline {

void FoldRefusals(const run::Refusals& from, run::Refusals* to) {
  to->set_no_key(to->no_key() + from.no_key());
  to->set_other_key(to->other_key() + from.other_key());
  to->set_foreign(to->foreign() + from.foreign());
  to->set_other_user(to->other_user() + from.other_user());
  to->set_not_allowed(to->not_allowed() + from.not_allowed());
  to->set_silent(to->silent() + from.silent());
}

uint64_t RefusedCount(const run::Refusals& refusals) {
  return refusals.no_key() + refusals.other_key() + refusals.foreign() +
         refusals.other_user() + refusals.not_allowed();
}

std::string RefusalsText(const run::Refusals& refusals) {
  std::vector<std::string> parts;
  const auto add = [&](uint64_t count, const char* what, const char* rest) {
    if (count == 0) return;
    parts.push_back(
        absl::StrCat(count, " ", what, count == 1 ? "" : "s", " ", rest));
  };
  add(refusals.no_key(), "connection", "without a key");
  add(refusals.other_key(), "connection", "with another key");
  add(refusals.foreign(), "connection", "of other programs");
  add(refusals.other_user(), "connection", "of other users of the host");
  add(refusals.not_allowed(), "message",
      "that the key of the sender does not allow");
  add(refusals.silent(), "connection", "that ended in silence");
  return absl::StrJoin(parts, ", ");
}

}  // namespace slackline
