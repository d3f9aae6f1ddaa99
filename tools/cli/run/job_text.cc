#include "tools/cli/run/job_text.h"

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"

namespace slackline {
namespace {

// What slackline.launch() carries is longer than anybody reads.
constexpr size_t kProgramShownMax = 300;

}  // namespace

std::string OwnProgramsText(const config::ClusterConfig& config) {
  std::string text;
  std::string last;
  for (const config::WorkerGroup& group : config.worker()) {
    if (!group.has_command() || group.command() == last) continue;
    last = group.command();
    absl::StrAppend(&text,
                    "\nprogram of workers: ", last.substr(0, kProgramShownMax),
                    last.size() > kProgramShownMax ? "..." : "");
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
