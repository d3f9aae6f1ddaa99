#include "tools/cli/run/job_text.h"

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"

namespace slackline {

std::string OwnProgramsText(const config::ClusterConfig& config) {
  std::string text;
  std::string last;
  for (const config::WorkerGroup& group : config.worker()) {
    if (!group.has_command() || group.command() == last) continue;
    last = group.command();
    absl::StrAppend(&text, "\nprogram of workers: ", last);
  }
  return text;
}

std::string JobText(const config::ClusterConfig& config) {
  return absl::StrCat("job ", config.job(), ": mode ", ModeText(config),
                      ", seed ", config.train().seed(), ", ",
                      config.train().has_epochs()
                          ? absl::StrCat(config.train().epochs(), " epochs, ")
                          : "",
                      ServerProcesses(config).size(), " servers, ",
                      WorkerProcesses(config).size(), " workers");
}

}  // namespace slackline
