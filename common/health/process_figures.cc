#include "common/health/process_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_split.h"

namespace slackline {

std::optional<ProcessFigures> ReadProcessFigures() {
  // "PID (NAME) STATE ...": a name may have blanks and brackets.
  std::ifstream file("/proc/self/stat");
  std::string stat;
  if (!std::getline(file, stat)) return std::nullopt;
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos) return std::nullopt;
  // The state is the third field of proc(5).
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(name_end + 2), ' ');
  const auto field = [&fields](size_t number) {
    return fields.size() > number - 3
               ? std::strtod(fields[number - 3].c_str(), nullptr)
               : 0;
  };
  ProcessFigures figures;
  figures.cpu_seconds =
      (field(14) + field(15)) / static_cast<double>(sysconf(_SC_CLK_TCK));
  figures.threads = field(20);
  figures.virtual_bytes = field(23);
  figures.resident_bytes =
      field(24) * static_cast<double>(sysconf(_SC_PAGESIZE));
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
       !error && entry != end; entry.increment(error)) {
    ++figures.open_files;
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    figures.open_files_max = limit.rlim_cur == RLIM_INFINITY
                                 ? std::numeric_limits<double>::infinity()
                                 : static_cast<double>(limit.rlim_cur);
  }
  return figures;
}

}  // namespace slackline
