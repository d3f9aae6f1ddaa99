#include "common/config/stop_rules.h"

#include "absl/strings/str_cat.h"

namespace slackline {

void CheckStop(const config::Stop& stop, const ConfigProblems& problems) {
  if (stop.has_test_accuracy()) {
    const double accuracy = stop.test_accuracy();
    problems.Require(accuracy > 0 && accuracy <= 1, "test_accuracy", accuracy,
                     "above 0 and at most 1", "0.97 is 97 %");
  }
  if (stop.has_test_loss()) {
    problems.AboveZero("test_loss", stop.test_loss());
  }
  if (stop.has_wall_seconds()) {
    problems.AboveZero("wall_seconds", stop.wall_seconds());
  }
}

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
