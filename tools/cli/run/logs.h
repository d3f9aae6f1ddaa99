// What a process's log says about its end.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace slackline {

// The end of a file, at most `bytes_max`, from the start of a line on. Empty if
// it cannot be read.
std::string ReadTail(const std::string& path, size_t bytes_max = 64 << 10);

// The last `count` lines that are not blank, oldest first.
std::vector<std::string> LastLines(absl::string_view text, int count);

// The words of the last line that looks like an error, without what stands
// before them (time, level). A line in which a coordinator says why the job
// has failed wins over all others. Empty if there is none.
std::string ErrorLine(absl::string_view text);

}  // namespace slackline
