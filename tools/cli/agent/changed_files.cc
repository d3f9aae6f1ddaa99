#include "tools/cli/agent/changed_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/io/descriptor.h"
#include "common/process/job_key.h"
#include "common/utf8.h"

namespace slackline {
namespace {

constexpr size_t kNameLengthMax = 255;
constexpr char kLogsFolder[] = "logs/";

int64_t ChangedNs(const struct stat& about) {
  return int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec;
}

int64_t BornNs(int file) {
  struct statx about;
  if (statx(file, "", AT_EMPTY_PATH, STATX_BTIME, &about) != 0 ||
      (about.stx_mask & STATX_BTIME) == 0) {
    return 0;
  }
  return int64_t{about.stx_btime.tv_sec} * 1'000'000'000 +
         about.stx_btime.tv_nsec;
}

}  // namespace

bool IsSentName(const std::string& name) {
  absl::string_view last = name;
  absl::ConsumePrefix(&last, kLogsFolder);
  return !last.empty() && last.size() <= kNameLengthMax && last[0] != '.' &&
         last.find('/') == absl::string_view::npos &&
         last.find('\0') == absl::string_view::npos && IsUtf8(last) &&
         !absl::StrContains(last, ".partial-") &&
         !absl::StartsWith(last, "coordinator.state") &&
         name != "cluster.textproto" && !IsKeyName(last);
}

ChangedFiles::ChangedFiles(std::string folder, bool all)
    : folder_(std::move(folder)), all_(all) {
  for (const std::string& name : Names()) {
    struct stat about;
    if (stat(absl::StrCat(folder_, "/", name).c_str(), &about) != 0) continue;
    files_[name] = {.inode = about.st_ino,
                    .size = about.st_size,
                    .changed_ns = ChangedNs(about),
                    .sent = -1,
                    .is_old = true};
  }
}

std::vector<std::string> ChangedFiles::Names() {
  std::vector<std::string> names(logs_.begin(), logs_.end());
  std::error_code error;
  std::filesystem::directory_iterator entry;
  if (all_) entry = std::filesystem::directory_iterator(folder_, error);
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (!entry->is_regular_file(ignored) || entry->is_symlink(ignored))
      continue;
    if (!IsUtf8(name)) {
      if (said_unsent_.insert(name).second) unsent_.insert(std::move(name));
    } else if (IsSentName(name)) {
      names.push_back(std::move(name));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> ChangedFiles::TakeUnsent() {
  const std::set<std::string> taken = std::exchange(unsent_, {});
  return {taken.begin(), taken.end()};
}

void ChangedFiles::SendAgain(const std::string& name) {
  const auto file = files_.find(name);
  if (file == files_.end()) return;
  file->second.sent = -1;
  file->second.is_old = false;
}

bool ChangedFiles::Look(size_t bytes_max, std::vector<agent::FilePart>* parts) {
  const std::vector<std::string> names = Names();
  // One that is gone and comes again is another one.
  for (auto file = files_.begin(); file != files_.end();) {
    const bool there =
        std::binary_search(names.begin(), names.end(), file->first);
    file = there ? std::next(file) : files_.erase(file);
  }
  size_t bytes_left = bytes_max;
  bool all = true;
  for (const std::string& name : names)
    all = Send(name, &bytes_left, parts) && all;
  return all;
}

bool ChangedFiles::Send(const std::string& name, size_t* bytes_left,
                        std::vector<agent::FilePart>* parts) {
  const Descriptor file(open(absl::StrCat(folder_, "/", name).c_str(),
                             O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat about;
  if (file.get() < 0 || fstat(file.get(), &about) != 0 ||
      !S_ISREG(about.st_mode)) {
    return true;  // It has gone meanwhile.
  }
  File& known = files_[name];
  const int64_t changed_ns = ChangedNs(about);
  const bool same = known.inode == about.st_ino &&
                    known.size == about.st_size &&
                    known.changed_ns == changed_ns;
  if (same && (known.is_old || known.sent == about.st_size)) return true;
  // A file that has only grown goes on; else it is another one. While it has
  // the size that it had, it was written anew.
  const int64_t born_ns = BornNs(file.get());
  if (known.inode != about.st_ino || known.born_ns != born_ns ||
      about.st_size < known.size ||
      (about.st_size == known.size && known.changed_ns != changed_ns) ||
      known.is_old) {
    known.sent = -1;
  }
  known.is_old = false;
  known.inode = about.st_ino;
  known.born_ns = born_ns;
  known.size = about.st_size;
  known.changed_ns = changed_ns;
  while (known.sent < about.st_size) {
    if (*bytes_left == 0) return false;
    agent::FilePart& part = parts->emplace_back();
    part.set_name(name);
    part.set_anew(known.sent < 0);
    const int64_t from = std::max<int64_t>(known.sent, 0);
    std::string& data = *part.mutable_data();
    data.resize(static_cast<size_t>(
        std::min<int64_t>(kFilePartBytesMax, about.st_size - from)));
    const ssize_t received = pread(file.get(), data.data(), data.size(), from);
    data.resize(static_cast<size_t>(std::max<ssize_t>(received, 0)));
    known.sent = from + static_cast<int64_t>(data.size());
    part.set_complete(known.sent == about.st_size);
    *bytes_left -= std::min(*bytes_left, data.size() + 1);
    // It has become shorter meanwhile: the next look sends it anew.
    if (received <= 0 && about.st_size > 0) return false;
    if (about.st_size == 0) break;
  }
  return true;
}

}  // namespace slackline
