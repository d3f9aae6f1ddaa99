#include "tools/cli/display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

constexpr int kUsualWidth = 80;

}  // namespace

Display::Display(absl::Duration first_line)
    : terminal_(isatty(STDERR_FILENO) == 1),
      next_line_(TimeSource().Now() + first_line) {}

Display::~Display() { Redraw({}); }

int Display::width() const {
  winsize size = {};
  if (!terminal_ || ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 ||
      size.ws_col == 0) {
    return kUsualWidth;
  }
  // A full last column makes some terminals wrap.
  return size.ws_col - 1;
}

// The cursor stands behind the last drawn line.
std::string Display::EraseCode() const {
  std::string code;
  for (size_t i = 0; i < drawn_.size(); ++i) {
    absl::StrAppend(&code, i == 0 ? "\r\x1b[K" : "\x1b[A\r\x1b[K");
  }
  return code;
}

void Display::Write(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void Display::Print(absl::string_view text) {
  Write(absl::StrCat(EraseCode(), text, "\n", absl::StrJoin(drawn_, "\n")));
}

void Display::Redraw(const std::vector<std::string>& lines) {
  if (!terminal_ || lines == drawn_) return;
  const std::string erase = EraseCode();
  drawn_ = lines;
  Write(absl::StrCat(erase, absl::StrJoin(drawn_, "\n")));
}

void Display::ShowState(const std::string& line) {
  Redraw({line});
  const absl::Time now = TimeSource().Now();
  if (terminal_ || now < next_line_) return;
  Print(line);
  next_line_ = now + kLineEvery;
}

}  // namespace slackline
