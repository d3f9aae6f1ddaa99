#include "tools/experiment/variant_names.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace slackline {
namespace {

// "worker[1].slowdown" gives "slowdown", "server[0]" gives "server".
absl::string_view LastPart(absl::string_view path) {
  const size_t dot = path.rfind('.');
  if (dot != absl::string_view::npos) path = path.substr(dot + 1);
  return path.substr(0, path.find('['));
}

bool IsBlock(absl::string_view value) {
  return !value.empty() && value[0] == '{';
}

// The first word of a block: "{adam{...}}" gives "adam".
absl::string_view FirstWord(absl::string_view block) {
  size_t begin = 0;
  while (begin < block.size() && !absl::ascii_isalnum(block[begin])) ++begin;
  size_t end = begin;
  while (end < block.size() &&
         (absl::ascii_isalnum(block[end]) || block[end] == '_')) {
    ++end;
  }
  return block.substr(begin, end - begin);
}

}  // namespace

std::string FileSafe(absl::string_view text) {
  std::string safe;
  for (const unsigned char c : text) {
    const bool keep = absl::ascii_isalnum(c) || c == '_' || c == '.';
    if (keep) {
      safe.push_back(static_cast<char>(c));
    } else if (!safe.empty() && safe.back() != '-') {
      safe.push_back('-');
    }
  }
  while (!safe.empty() && safe.back() == '-') safe.pop_back();
  return std::string(absl::StripPrefix(safe, "."));
}

std::string AssignmentName(absl::string_view assignment) {
  const size_t equals = assignment.find('=');
  const absl::string_view path =
      absl::StripAsciiWhitespace(assignment.substr(0, equals));
  absl::string_view value;
  if (equals != absl::string_view::npos) {
    value = absl::StripAsciiWhitespace(assignment.substr(equals + 1));
  }
  if (path == "sync.ssp.staleness") {
    return FileSafe(absl::StrCat("ssp-", value));
  }
  // A block that says something is named by that; an empty one by its field.
  if (IsBlock(value) && !FirstWord(value).empty()) return FileSafe(value);
  // The sign would be taken for one of the dashes between words.
  if (!value.empty() && value[0] == '-') {
    return FileSafe(absl::StrCat(LastPart(path), "-minus-", value.substr(1)));
  }
  return FileSafe(absl::StrCat(LastPart(path), "-", value));
}

std::vector<std::string> AxisValueNames(
    absl::string_view field, const std::vector<std::string>& values) {
  std::vector<std::string> names;
  std::set<absl::string_view> words;
  bool words_differ = true;
  for (const std::string& value : values) {
    words_differ =
        words_differ && IsBlock(value) && words.insert(FirstWord(value)).second;
  }
  for (const std::string& value : values) {
    if (field == "mode" || field == "replay" || field == "delays") {
      names.push_back(FileSafe(value));
    } else if (words_differ && !FirstWord(value).empty()) {
      names.push_back(FileSafe(FirstWord(value)));
    } else {
      names.push_back(AssignmentName(absl::StrCat(field, "=", value)));
    }
  }
  return names;
}

}  // namespace slackline
