// Lists of names in sentences for people.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slackline {

// "worker 0, worker 1, worker 2": all of a few, and of many the first ones with
// how many there are: "worker 0, worker 1, worker 2 and 497 more".
inline std::string SomeNames(const std::vector<std::string>& names) {
  constexpr size_t kFew = 5;
  constexpr size_t kFirst = 3;
  if (names.size() <= kFew) return absl::StrJoin(names, ", ");
  return absl::StrCat(
      absl::StrJoin(names.begin(), names.begin() + kFirst, ", "), " and ",
      names.size() - kFirst, " more");
}

}  // namespace slackline
