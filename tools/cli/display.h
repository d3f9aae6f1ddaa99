// stderr for people: lines that stay, and below them, on a terminal, a few that
// are drawn anew all the time.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace slackline {

// How often a command that waits prints a line where there is no terminal.
inline constexpr absl::Duration kLineEvery = absl::Seconds(5);

// One at a time. The destructor removes the lines that do not stay.
class Display {
 public:
  // `first_line`: how long ShowState() prints nothing.
  explicit Display(absl::Duration first_line = kLineEvery);
  Display(const Display&) = delete;
  Display& operator=(const Display&) = delete;
  ~Display();

  bool terminal() const { return terminal_; }
  int width() const;  // In columns; of the terminal, or a usual value.

  // Writes `text`, which may have several lines, for good.
  void Print(absl::string_view text);
  // Replaces the lines at the bottom. Each fits into width(). Only on a
  // terminal; without effect elsewhere.
  void Redraw(const std::vector<std::string>& lines);
  // A command that waits says how that for which it waits stands. Replaces the
  // last line; where there is no terminal, it is printed every kLineEvery.
  void ShowState(const std::string& line);

 private:
  std::string EraseCode() const;
  void Write(absl::string_view text);

  const bool terminal_;
  std::vector<std::string> drawn_;
  absl::Time next_line_;  // Of ShowState().
};

}  // namespace slackline
