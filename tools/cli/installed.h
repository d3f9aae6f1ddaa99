// Whether the other programs lie where slackline looks for them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace slackline {

// NotFound if the program or script `name` is not in the folder, saying where
// to get it: some are left out of builds without LibTorch.
absl::Status CheckInstalled(const std::string& bin_dir, absl::string_view name);

}  // namespace slackline
