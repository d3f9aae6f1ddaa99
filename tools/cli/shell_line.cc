#include "tools/cli/shell_line.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace slackline {
namespace {

bool IsPlain(absl::string_view word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) ||
                  absl::string_view("-_./:=,+@%").find(static_cast<char>(c)) !=
                      absl::string_view::npos;
         });
}

}  // namespace

std::string ShellLine(const std::vector<std::string>& words) {
  return absl::StrJoin(
      words, " ", [](std::string* text, const std::string& word) {
        if (IsPlain(word)) {
          absl::StrAppend(text, word);
        } else {
          absl::StrAppend(text, "'",
                          absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
        }
      });
}

}  // namespace slackline
