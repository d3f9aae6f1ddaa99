#include "common/block/config_difference.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/shortened.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"

namespace slackline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

constexpr size_t kValueBytesMax = 80;

// Of a field that is there, or of element `index` of it (-1: it has none).
std::string ValueText(const Message& of, const FieldDescriptor* field,
                      int index) {
  std::string text;
  TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.PrintFieldValueToString(of, field, index, &text);
  absl::StripTrailingAsciiWhitespace(&text);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE)
    text = absl::StrCat("{ ", text, text.empty() ? "}" : " }");
  return Shortened(text, kValueBytesMax);
}

// Of a choice: which branch it is, and its value.
std::string BranchText(const Message& of,
                       const google::protobuf::OneofDescriptor* choice) {
  const FieldDescriptor* const branch =
      of.GetReflection()->GetOneofFieldDescriptor(of, choice);
  if (branch == nullptr) return "absent";
  return absl::StrCat(branch->name(), " ", ValueText(of, branch, -1));
}

std::string Sentence(const std::string& path, const std::string& own,
                     absl::string_view whose, const std::string& theirs) {
  return absl::StrCat(path, ": its value is ", own, ", ", whose, " is ",
                      theirs);
}

std::string DifferenceIn(const Message& own, const Message& other,
                         absl::string_view whose, const std::string& prefix);

// Of element `index` (-1: of a field that is no list), which both have.
std::string ElementDifference(const Message& own, const Message& other,
                              absl::string_view whose,
                              const FieldDescriptor* field, int index,
                              const std::string& path) {
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    const auto sub = [&](const Message& of) -> const Message& {
      const auto* const reflection = of.GetReflection();
      return index < 0 ? reflection->GetMessage(of, field)
                       : reflection->GetRepeatedMessage(of, field, index);
    };
    return DifferenceIn(sub(own), sub(other), whose, absl::StrCat(path, "."));
  }
  // Whole values are compared, and only then shortened.
  std::string a;
  std::string b;
  TextFormat::PrintFieldValueToString(own, field, index, &a);
  TextFormat::PrintFieldValueToString(other, field, index, &b);
  if (a == b) return "";
  return Sentence(path, ValueText(own, field, index), whose,
                  ValueText(other, field, index));
}

std::string DifferenceIn(const Message& own, const Message& other,
                         absl::string_view whose, const std::string& prefix) {
  const auto* const type = own.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    const std::string path = absl::StrCat(prefix, field->name());
    if (!field->is_repeated()) {
      const bool has = own.GetReflection()->HasField(own, field);
      const bool theirs = other.GetReflection()->HasField(other, field);
      // A scalar without presence has its default where it is not written.
      if (has == theirs || !field->has_presence()) {
        if (!has && !theirs) continue;
        std::string found =
            ElementDifference(own, other, whose, field, -1, path);
        if (!found.empty()) return found;
        continue;
      }
      if (const auto* const choice = field->real_containing_oneof();
          choice != nullptr) {
        return Sentence(absl::StrCat(prefix, choice->name()),
                        BranchText(own, choice), whose,
                        BranchText(other, choice));
      }
      return Sentence(path, has ? ValueText(own, field, -1) : "absent", whose,
                      theirs ? ValueText(other, field, -1) : "absent");
    }
    const int own_count = own.GetReflection()->FieldSize(own, field);
    const int their_count = other.GetReflection()->FieldSize(other, field);
    for (int k = 0; k < std::min(own_count, their_count); ++k) {
      std::string found = ElementDifference(own, other, whose, field, k,
                                            absl::StrCat(path, "[", k, "]"));
      if (!found.empty()) return found;
    }
    if (own_count == their_count) continue;
    const int first = std::min(own_count, their_count);
    return Sentence(
        absl::StrCat(path, "[", first, "]"),
        own_count > first ? ValueText(own, field, first) : "absent", whose,
        their_count > first ? ValueText(other, field, first) : "absent");
  }
  return "";
}

}  // namespace

std::string FirstDifference(const config::ClusterConfig& own,
                            const config::ClusterConfig& other,
                            absl::string_view whose) {
  return DifferenceIn(own, other, whose, "");
}

}  // namespace slackline
