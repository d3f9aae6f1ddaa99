// Goal: a command in one line is the words that a shell would make of it, or it
// is refused.
#include "common/config/shell_line.h"

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::shell_line_test {

using ::testing::HasSubstr;

using Words = std::vector<std::string>;

TEST(ShellLineTest, SplitsAsAShellDoes) {
  const struct {
    const char* line;
    Words words;
  } cases[] = {
      {"", {}},
      {" \t ", {}},
      {"python3 train.py --rate=0.1", {"python3", "train.py", "--rate=0.1"}},
      {"  a \t b  ", {"a", "b"}},
      {"sh -c 'exit 3; echo \"$x\"'", {"sh", "-c", "exit 3; echo \"$x\""}},
      {R"(a "b c" d)", {"a", "b c", "d"}},
      {R"("\"\\\$\`\n")", {R"("\$`\n)"}},
      {R"(one' 'wo"rd"\ here)", {"one word here"}},
      {R"('' "")", {"", ""}},
      {R"(\$HOME \*)", {"$HOME", "*"}},
      {"a{b}=c%,+@!", {"a{b}=c%,+@!"}},
  };
  for (const auto& c : cases) {
    const auto words = SplitShellLine(c.line);
    ASSERT_TRUE(words.ok()) << c.line << ": " << words.status();
    EXPECT_EQ(*words, c.words) << c.line;
  }
}

TEST(ShellLineTest, RefusesWhatOnlyAShellCanDo) {
  const struct {
    const char* line;
    const char* problem;
  } cases[] = {
      {"a > log", "act on the >"},
      {"a $HOME", "act on the $"},
      {"a \"$HOME\"", "act on the $"},
      {"a | b", "act on the |"},
      {"a; b", "act on the ;"},
      {"a &", "act on the &"},
      {"ls *.py", "act on the *"},
      {"~/train", "act on the ~"},
      {"a\nb", "act on a line break"},
      {"a # b", "act on the #"},
      {"`a`", "act on the `"},
      {"a 'b", "a ' has no closing one"},
      {"a \"b\\\"", "a \" has no closing"},
      {"a \\", "follows the last"},
  };
  for (const auto& c : cases) {
    const auto words = SplitShellLine(c.line);
    EXPECT_TRUE(absl::IsInvalidArgument(words.status())) << c.line;
    EXPECT_THAT(words.status().message(), HasSubstr(c.problem));
  }
}

TEST(ShellLineTest, ALineOfAnyWordsGivesTheseWords) {
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) {
    Words words(rng.Below(4));
    for (std::string& word : words) {
      for (uint64_t k = rng.Below(5); k > 0; --k) {
        word.push_back(static_cast<char>(1 + rng.Below(126)));
      }
    }
    const std::string line = ShellLine(words);
    const auto again = SplitShellLine(line);
    ASSERT_TRUE(again.ok()) << line << ": " << again.status();
    EXPECT_EQ(*again, words) << line;
  }
}

}  // namespace slackline::shell_line_test
