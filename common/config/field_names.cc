#include "common/config/field_names.h"

#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/nearest_name.h"

namespace slackline {
namespace {

using google::protobuf::FieldDescriptor;

}  // namespace

std::string UnknownFieldText(const google::protobuf::Descriptor& message,
                             absl::string_view name) {
  std::vector<std::string> fields;
  for (int i = 0; i < message.field_count(); ++i)
    fields.push_back(std::string(message.field(i)->name()));
  const std::string nearest = NearestName(name, fields);
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
