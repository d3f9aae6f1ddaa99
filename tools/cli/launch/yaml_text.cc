#include "tools/cli/launch/yaml_text.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace slackline {
namespace {

using Json = nlohmann::ordered_json;

// What YAML 1.1 or 1.2 takes for something else than a text.
constexpr std::array kOtherThanTexts = {
    "true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"};

// Letters first, then also digits and what has no meaning within a word.
bool IsPlainWord(absl::string_view text) {
  if (text.empty() || !absl::ascii_isalpha(static_cast<unsigned char>(text[0])))
    return false;
  const bool plain = absl::c_all_of(text, [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' ||
           c == '/';
  });
  return plain &&
         !absl::c_linear_search(kOtherThanTexts, absl::AsciiStrToLower(text));
}

// Lines that mean themselves in a block, the last one with its end.
bool IsBlock(absl::string_view text) {
  if (text.size() < 2 || text.back() != '\n' || text[text.size() - 2] == '\n')
    return false;
  if (absl::ascii_isspace(static_cast<unsigned char>(text[0]))) return false;
  if (std::count(text.begin(), text.end(), '\n') < 2) return false;
  return absl::c_all_of(text, [](unsigned char c) {
    return c == '\n' || absl::ascii_isprint(c);
  });
}

// The number of a character, and how many bytes it takes. Of UTF-8.
uint32_t CharacterAt(absl::string_view text, size_t* bytes) {
  const auto first = static_cast<unsigned char>(text[0]);
  *bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  *bytes = std::min(*bytes, text.size());
  uint32_t number = *bytes == 1 ? first : first & (0xFFU >> (*bytes + 1));
  for (size_t i = 1; i < *bytes; ++i)
    number = number << 6 | (static_cast<unsigned char>(text[i]) & 0x3FU);
  return number;
}

std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    size_t bytes = 0;
    const uint32_t c = CharacterAt(text, &bytes);
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", text.substr(0, 1));
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (c < 0x20 || (c >= 0x7F && c < 0xA0)) {
      absl::StrAppendFormat(&quoted, "\\x%02x", c);
    } else if (c == 0x2028 || c == 0x2029 || c == 0xFEFF || c >= 0xFFFE) {
      // Line breaks of YAML 1.1, marks of byte order, and what is beyond the
      // 16 bits of some parsers.
      if (c > 0xFFFF) {
        absl::StrAppendFormat(&quoted, "\\U%08x", c);
      } else {
        absl::StrAppendFormat(&quoted, "\\u%04x", c);
      }
    } else {
      absl::StrAppend(&quoted, text.substr(0, bytes));
    }
    text.remove_prefix(bytes);
  }
  return absl::StrCat(quoted, "\"");
}

std::string Word(absl::string_view text) {
  return IsPlainWord(text) ? std::string(text) : Quoted(text);
}

// A list of words and numbers stands in one line.
bool IsShortList(const Json& value) {
  return value.is_array() && absl::c_all_of(value, [](const Json& element) {
           return element.is_number() ||
                  (element.is_string() &&
                   IsPlainWord(element.get<std::string>()));
         });
}

void Append(const Json& value, int indent, std::string* text);

// Behind "key:" or "-".
void AppendValue(const Json& value, int indent, std::string* text) {
  if (value.is_string()) {
    const std::string content = value.get<std::string>();
    if (!IsBlock(content)) {
      absl::StrAppend(text, " ", Word(content), "\n");
      return;
    }
    *text += " |\n";
    absl::string_view lines = content;
    lines.remove_suffix(1);
    for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
      if (!line.empty()) text->append(static_cast<size_t>(indent), ' ');
      absl::StrAppend(text, line, "\n");
    }
  } else if (IsShortList(value)) {
    *text += " [";
    for (size_t i = 0; i < value.size(); ++i) {
      absl::StrAppend(
          text, i == 0 ? "" : ", ",
          value[i].is_string() ? value[i].get<std::string>() : value[i].dump());
    }
    *text += "]\n";
  } else if (value.is_structured() && !value.empty()) {
    *text += "\n";
    Append(value, indent, text);
  } else {
    absl::StrAppend(text, " ", value.dump(), "\n");
  }
}

void Append(const Json& value, int indent, std::string* text) {
  if (value.is_object()) {
    for (const auto& [key, of_key] : value.items()) {
      text->append(static_cast<size_t>(indent), ' ');
      absl::StrAppend(text, Word(key), ":");
      AppendValue(of_key, indent + 2, text);
    }
    return;
  }
  for (const Json& element : value) {
    text->append(static_cast<size_t>(indent), ' ');
    *text += "-";
    if (!element.is_object() || element.empty()) {
      AppendValue(element, indent + 2, text);
      continue;
    }
    // Its first key stands behind the dash.
    std::string inner;
    Append(element, indent + 2, &inner);
    absl::StrAppend(
        text, " ",
        absl::string_view(inner).substr(static_cast<size_t>(indent) + 2));
  }
}

}  // namespace

std::string YamlText(const Json& value) {
  std::string text;
  if (value.is_structured() && !value.empty() && !IsShortList(value)) {
    Append(value, 0, &text);
  } else {
    AppendValue(value, 2, &text);
    text.erase(0, 1);
  }
  return text;
}

}  // namespace slackline
