#include "common/config/nearest_name.h"

#include <algorithm>
#include <numeric>

namespace slackline {
namespace {

// Names far longer than any of ours are not worth the quadratic comparison.
constexpr size_t kLengthMax = 64;

// Levenshtein distance: insertions, deletions and replacements, each at cost 1.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestName(absl::string_view wrong,
                        const std::vector<std::string>& names) {
  if (wrong.size() > kLengthMax) return "";
  std::string nearest;
  // Lets two letters of "cuont" be swapped.
  size_t nearest_distance = std::max<size_t>(1, (wrong.size() + 1) / 3) + 1;
  for (const std::string& name : names) {
    const size_t distance = EditDistance(wrong, name);
    if (distance >= nearest_distance) continue;
    nearest_distance = distance;
    nearest = name;
  }
  return nearest;
}

}  // namespace slackline
