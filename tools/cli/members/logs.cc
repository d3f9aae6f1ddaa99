#include "tools/cli/members/logs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/io/descriptor.h"

namespace slackline {
namespace {

// As CoordinatorCore logs it.
constexpr absl::string_view kJobFailed = "the job has failed: ";

// What follows the first `marker` in `line`, looked for without regard to case;
// empty if it does not occur or nothing follows.
absl::string_view After(absl::string_view line, absl::string_view marker) {
  const std::string lower = absl::AsciiStrToLower(line);
  const size_t at = lower.find(std::string(marker));
  if (at == std::string::npos) return "";
  return absl::StripAsciiWhitespace(line.substr(at + marker.size()));
}

}  // namespace

std::string ReadTail(const std::string& path, size_t bytes_max) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  const std::streamoff begin = std::max<std::streamoff>(
      0, size - static_cast<std::streamoff>(bytes_max));
  file.seekg(begin);
  std::string text(static_cast<size_t>(size - begin), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (begin > 0) {
    const size_t line_end = text.find('\n');
    text.erase(0, line_end == std::string::npos ? 0 : line_end + 1);
  }
  return text;
}

std::string OldLogOf(const std::string& log) {
  return absl::StrCat(absl::StripSuffix(log, ".log"), ".old.log");
}

std::string ReadLogTail(const std::string& path, size_t bytes_max) {
  std::string text = ReadTail(path, bytes_max);
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  // Else there was more, of whose line the end alone was read.
  if (!error && bytes < bytes_max)
    text.insert(0, ReadTail(OldLogOf(path), bytes_max - bytes));
  return text;
}

absl::Status PutLogAside(const std::string& path) {
  const std::string old = OldLogOf(path);
  const std::string partial = absl::StrCat(old, ".partial-old");
  const auto failed = [&](absl::string_view what) {
    const std::string why = std::strerror(errno);
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    return absl::UnavailableError(
        absl::StrCat(path, " has become long, and cannot be put aside: ", what,
                     " ", old, ": ", why));
  };
  const Descriptor from(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const Descriptor to(
      open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (from.get() < 0) return failed("open");
  if (to.get() < 0) return failed("create");
  // To the end of the log, for now.
  const auto copy = [&] {
    while (true) {
      const ssize_t copied =
          sendfile(to.get(), from.get(), nullptr, size_t{1} << 30);
      if (copied == 0) return true;
      if (copied < 0 && errno != EINTR) return false;
    }
  };
  if (!copy()) return failed("write");
  // Has its name before the log is cut off.
  if (rename(partial.c_str(), old.c_str()) != 0) return failed("rename to");
  // What was written meanwhile: giving a name may take a while.
  if (!copy()) return failed("write to the end of");
  if (ftruncate(from.get(), 0) != 0) return failed("cut off after the copy to");
  return absl::OkStatus();
}

std::vector<std::string> LastLines(absl::string_view text, int count) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    lines.emplace_back(absl::StripTrailingAsciiWhitespace(line));
  }
  if (lines.size() > static_cast<size_t>(count)) {
    lines.erase(lines.begin(), lines.end() - count);
  }
  return lines;
}

std::string ErrorLine(absl::string_view text) {
  std::string found;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view reason = After(line, kJobFailed);
    if (!reason.empty()) return std::string(reason);
    bool marked = false;
    for (const char* const marker :
         {"[error] ", "[critical] ", "error: ", "critical: "}) {
      const absl::string_view words = After(line, marker);
      if (words.empty()) continue;
      found = std::string(words);
      marked = true;
      break;
    }
    if (marked) continue;
    for (const char* const word :
         {"check failed", "terminate called", "can't open file",
          "Segmentation fault", "AddressSanitizer"}) {
      if (!absl::StrContains(line, word)) continue;
      found = std::string(absl::StripAsciiWhitespace(line));
      break;
    }
  }
  return found;
}

absl::Status MemberLogs::MakeFolder() const {
  const std::string logs = absl::StrCat(out_dir_, "/logs");
  std::error_code error;
  std::filesystem::create_directories(logs, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("folder ", logs, " cannot be made: ", error.message()));
}

void MemberLogs::Begin(const JobProcess& member) {
  std::error_code ignored;
  do {
    ++starts_[member];
  } while (std::filesystem::exists(PathOf(member), ignored));
}

std::string MemberLogs::NameOf(const JobProcess& member) const {
  const int starts = starts_.at(member);
  return absl::StrCat("logs/", member.worker ? "worker-" : "server-",
                      member.index,
                      starts == 1 ? "" : absl::StrCat(".", starts), ".log");
}

std::string MemberLogs::PathOf(const JobProcess& member) const {
  return absl::StrCat(out_dir_, "/", NameOf(member));
}

}  // namespace slackline
