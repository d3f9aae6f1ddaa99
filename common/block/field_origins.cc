#include "common/block/field_origins.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace slackline {

void FieldOrigins::Erase(const std::string& path) {
  auto it = origins_.lower_bound(path);
  while (it != origins_.end() && absl::StartsWith(it->first, path)) {
    const char next = it->first[path.size()];  // '\0' at the end.
    const bool inside = next == '\0' || next == '.' || next == '[';
    it = inside ? origins_.erase(it) : std::next(it);
  }
}

std::string FieldOrigins::At(const std::string& path) const {
  const auto it = origins_.find(path);
  return it == origins_.end() ? "" : it->second;
}

std::string FieldOrigins::Nearest(absl::string_view path) const {
  while (true) {
    const std::string origin = At(std::string(path));
    if (!origin.empty()) return origin;
    const size_t end = path.find_last_of(".[");
    if (end == absl::string_view::npos) break;
    path = path.substr(0, end);
  }
  return absl::StrCat(file_name_, ":1:1");
}

}  // namespace slackline
