#include "common/config/shell_line.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/status.h"

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

// What a shell acts upon unless it is quoted: with quotes around it, only the
// first two.
constexpr absl::string_view kShellSigns = "$`|&;<>()*?[~#\n";
constexpr size_t kSignsInQuotes = 2;

absl::Status SignProblem(char sign) {
  return absl::InvalidArgumentError(absl::StrCat(
      "no shell is started that would act on ",
      sign == '\n' ? "a line break"
                   : absl::StrCat("the ", std::string(1, sign)),
      "; put it into single quotes, or start a shell: sh -c '...'"));
}

absl::Status OpenQuote(char quote) {
  return absl::InvalidArgumentError(
      absl::StrCat("a ", std::string(1, quote), " has no closing one"));
}

// Takes the characters up to the closing double quote, and it, from `*rest`.
absl::Status TakeDoubleQuoted(absl::string_view* rest, std::string* word) {
  while (!rest->empty()) {
    char c = rest->front();
    rest->remove_prefix(1);
    if (c == '"') return absl::OkStatus();
    if (absl::StrContains(kShellSigns.substr(0, kSignsInQuotes), c)) {
      return SignProblem(c);
    }
    const bool escaped = c == '\\' && !rest->empty() &&
                         absl::StrContains("\"\\$`", rest->substr(0, 1));
    if (escaped) {
      c = rest->front();
      rest->remove_prefix(1);
    }
    word->push_back(c);
  }
  return OpenQuote('"');
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

absl::StatusOr<std::vector<std::string>> SplitShellLine(
    absl::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  const auto end_word = [&] {
    if (in_word) words.push_back(std::move(word));
    word.clear();
    in_word = false;
  };
  while (!line.empty()) {
    const char c = line.front();
    line.remove_prefix(1);
    if (c == ' ' || c == '\t') {
      end_word();
      continue;
    }
    in_word = true;
    if (c == '\'') {
      const size_t end = line.find('\'');
      if (end == absl::string_view::npos) return OpenQuote(c);
      absl::StrAppend(&word, line.substr(0, end));
      line.remove_prefix(end + 1);
    } else if (c == '"') {
      SL_RETURN_IF_ERROR(TakeDoubleQuoted(&line, &word));
    } else if (c == '\\') {
      if (line.empty()) {
        return absl::InvalidArgumentError("nothing follows the last \\");
      }
      word.push_back(line.front());
      line.remove_prefix(1);
    } else if (absl::StrContains(kShellSigns, c)) {
      return SignProblem(c);
    } else {
      word.push_back(c);
    }
  }
  end_word();
  return words;
}

}  // namespace slackline
