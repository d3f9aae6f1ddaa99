#include "common/process/user_key_file.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace slackline {

std::string UserKeyFileHere() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string config = variable("XDG_CONFIG_HOME");
  if (!config.empty() && config.front() == '/')
    return absl::StrCat(config, "/slackline/key");
  std::string home = variable("HOME");
  if (home.empty()) {
    const passwd* const user = getpwuid(geteuid());
    if (user != nullptr && user->pw_dir != nullptr) home = user->pw_dir;
  }
  if (home.empty() || home == "/") return "";
  return absl::StrCat(home, "/.config/slackline/key");
}

}  // namespace slackline
