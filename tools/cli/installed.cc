#include "tools/cli/installed.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace slackline {

absl::Status CheckInstalled(const std::string& bin_dir,
                            absl::string_view name) {
  const std::string path = absl::StrCat(bin_dir, "/", name);
  if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  if (name == "slackline_worker" || name == "slackline_replay") {
    return absl::NotFoundError(absl::StrCat(
        path, " is not there; ", name,
        " computes with LibTorch. In a build with LibTorch `cmake --build "
        "--preset release --target slackline_product` makes it; the Python "
        "package and a build with SLACKLINE_LIBTORCH=OFF do not have it: name "
        "the folder of another build by --bin-dir, or train a model of your "
        "own (leave out model and data in the config, and use slackline run "
        "CONFIG -- python3 train.py)"));
  }
  return absl::NotFoundError(
      absl::StrCat(path,
                   " is not there; `cmake --build --preset release --target "
                   "slackline_product` builds it, and it is installed together "
                   "with slackline; --bin-dir names another folder"));
}

}  // namespace slackline
