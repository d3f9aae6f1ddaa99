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
  Display();
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

 private:
  std::string EraseCode() const;
  void Write(absl::string_view text);

  const bool terminal_;
  std::vector<std::string> drawn_;
};

}  // namespace slackline
