#include "common/block/table_pattern.h"

#include <fnmatch.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slackline {

bool FitsTablePattern(const std::string& pattern, const std::string& table) {
  return fnmatch(pattern.c_str(), table.c_str(), 0) == 0;
}

void CheckTablePattern(const std::string& pattern,
                       absl::Span<const std::string> tables,
                       const ConfigProblems& problems) {
  if (std::any_of(tables.begin(), tables.end(), [&](const std::string& table) {
        return FitsTablePattern(pattern, table);
      })) {
    return;
  }
  problems.Add("table", absl::StrCat("\"", pattern,
                                     "\" fits no table of the model; they are ",
                                     absl::StrJoin(tables, ", ")));
}

}  // namespace slackline
