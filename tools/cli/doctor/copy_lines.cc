#include "tools/cli/doctor/copy_lines.h"

#include "absl/strings/str_cat.h"
#include "common/config/shell_line.h"

namespace slackline {

std::string CopyLine(const doctor::Job& job,
                     const std::vector<std::string>& flags,
                     const std::string& from, const std::string& host,
                     const std::string& to) {
  std::vector<std::string> words = {"rsync", "-a"};
  words.insert(words.end(), flags.begin(), flags.end());
  if (!job.ssh().empty()) words.insert(words.end(), {"-e", job.ssh()});
  words.push_back(absl::StrCat(from, "/"));
  words.push_back(absl::StrCat(job.ssh_user(), host, ":", to, "/"));
  return ShellLine(words);
}

std::string InstallText(const doctor::Job& job, const std::string& host,
                        bool is_there) {
  if (job.engine() == kEngineHere) {
    return "build all of Slackline anew, or name the right folder by --bin-dir";
  }
  // rsync makes the last folder of a path, and others if it is told to.
  std::vector<std::string> flags;
  if (!is_there) flags.emplace_back("--mkpath");
  return absl::StrCat(
      CopyLine(job, flags, job.bin_here(), host, job.bin_there()),
      ", or name the folder of the same version there by --set "
      "launch.bin_dir=DIR");
}

}  // namespace slackline
