#include "common/config/field_names.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slackline {
namespace {

using google::protobuf::FieldDescriptor;

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

std::string UnknownFieldText(const google::protobuf::Descriptor& message,
                             absl::string_view name) {
  std::vector<std::string> fields;
  std::string nearest;
  // About a third of the letters may differ, which lets two letters of "cuont"
  // be swapped; beyond that a suggestion misleads.
  // Names far longer than any field are not worth the quadratic comparison.
  size_t nearest_distance = std::max<size_t>(1, (name.size() + 1) / 3) + 1;
  for (int i = 0; i < message.field_count(); ++i) {
    fields.push_back(std::string(message.field(i)->name()));
    if (name.size() > 64) continue;
    const size_t distance = EditDistance(name, fields.back());
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = fields.back();
    }
  }
  std::string text = absl::StrCat("unknown field '", name.substr(0, 64), "'");
  if (!nearest.empty()) {
    absl::StrAppend(&text, "; did you mean '", nearest, "'?");
  }
  if (fields.empty()) return absl::StrCat(text, " (no fields here)");
  return absl::StrCat(text, " (fields here: ", absl::StrJoin(fields, ", "),
                      ")");
}

std::string ExpectedValueText(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat("a whole number of at most ",
                          std::numeric_limits<int32_t>::max());
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat("a whole number of at most ",
                          std::numeric_limits<int64_t>::max());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "a string in double quotes";
    case FieldDescriptor::CPPTYPE_ENUM: {
      std::vector<std::string> names;
      for (int i = 0; i < field.enum_type()->value_count(); ++i) {
        const std::string name(field.enum_type()->value(i)->name());
        if (!absl::EndsWith(name, "_UNSPECIFIED")) names.push_back(name);
      }
      return absl::StrCat(names.size() > 1 ? "one of " : "",
                          absl::StrJoin(names, ", "));
    }
    default:
      return "a block in braces";
  }
}

std::string FieldPath(absl::string_view parent, const FieldDescriptor& field,
                      int index) {
  const bool element = field.is_repeated() && index >= 0;
  return absl::StrCat(parent, parent.empty() ? "" : ".", field.name(),
                      element ? absl::StrCat("[", index, "]") : "");
}

}  // namespace slackline
