#include "common/config/stop_rules.h"

#include "absl/strings/str_cat.h"

namespace slackline {

std::string StopRuleMet(const config::Stop& stop, double loss,
                        double accuracy) {
  if (stop.has_test_accuracy() && accuracy >= stop.test_accuracy()) {
    return absl::StrCat("test accuracy ", accuracy, " reached ",
                        stop.test_accuracy());
  }
  if (stop.has_test_loss() && loss <= stop.test_loss()) {
    return absl::StrCat("test loss ", loss, " reached ", stop.test_loss());
  }
  return "";
}

}  // namespace slackline
