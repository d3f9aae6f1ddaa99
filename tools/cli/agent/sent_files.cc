#include "tools/cli/agent/sent_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/io/descriptor.h"
#include "tools/cli/agent/changed_files.h"

namespace slackline {
namespace {

absl::Status WriteError(const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("writing ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status SentFiles::Add(const std::string& host,
                            const agent::FilePart& part) {
  if (!part.anew() && IsUseless(host, part.name())) return absl::OkStatus();
  const absl::Status written = Write(host, part);
  if (absl::IsInvalidArgument(written)) return written;
  MutexLock lock(mutex_);
  const std::pair<std::string, std::string> key(host, part.name());
  if (!written.ok()) {
    missing_[key] = {.why = std::string(written.message())};
  } else if (part.complete()) {
    missing_.erase(key);
  } else if (const auto found = missing_.find(key); found != missing_.end()) {
    found->second.comes = true;
  }
  return written;
}

std::vector<SentFiles::Missing> SentFiles::missing() const {
  MutexLock lock(mutex_);
  std::vector<Missing> all;
  for (const auto& [key, failed] : missing_) {
    all.push_back({.host = key.first, .name = key.second, .why = failed.why});
  }
  return all;
}

bool SentFiles::IsUseless(const std::string& host,
                          const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = missing_.find({host, name});
  return found != missing_.end() && !found->second.comes;
}

absl::Status SentFiles::Write(const std::string& host,
                              const agent::FilePart& part) {
  if (!IsSentName(part.name()) || part.data().size() > kFilePartBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a part of ", part.data().size(), " bytes of a file with a name of ",
        part.name().size(), " characters was sent; no agent does that"));
  }
  std::string path;
  {
    MutexLock lock(mutex_);
    const std::string& owner = hosts_.emplace(part.name(), host).first->second;
    path = absl::StrCat(folder_, owner == host ? "" : "/from-",
                        owner == host ? "" : host, "/", part.name());
  }
  std::error_code error;
  const std::string below = std::filesystem::path(path).parent_path().string();
  if (part.anew()) std::filesystem::create_directories(below, error);
  // In the folder of the run ".partial-" stands in no name that is sent.
  const std::string partial = absl::StrCat(path, ".partial-sent");
  // A file that goes on may not be complete yet, or may be.
  const bool in_partial =
      part.anew() || std::filesystem::exists(partial, error);
  const std::string& target = in_partial ? partial : path;
  const Descriptor file(open(
      target.c_str(),
      O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (part.anew() ? O_TRUNC : 0),
      0666));
  if (file.get() < 0) return WriteError(target);
  absl::string_view left = part.data();
  while (!left.empty()) {
    const ssize_t written = write(file.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const absl::Status failed = WriteError(target);
      if (in_partial) std::filesystem::remove(partial, error);
      return failed;
    }
    left.remove_prefix(static_cast<size_t>(written));
  }
  if (in_partial && part.complete() &&
      rename(partial.c_str(), path.c_str()) != 0) {
    return WriteError(path);
  }
  return absl::OkStatus();
}

}  // namespace slackline
