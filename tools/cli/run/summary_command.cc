#include "tools/cli/run/summary_command.h"

#include <nlohmann/json.hpp>

#include "common/process/exit_code.h"
#include "common/status.h"
#include "tools/cli/command_output.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/json.h"

namespace slackline {
namespace {

absl::Status Add(const std::string& folder, std::vector<RunResult>* runs,
                 nlohmann::ordered_json* list) {
  SL_ASSIGN_OR_RETURN(RunResult run, ReadRunResult(folder));
  SL_ASSIGN_OR_RETURN(nlohmann::ordered_json json, ReadRunJson(folder));
  runs->push_back(std::move(run));
  list->push_back(std::move(json));
  return absl::OkStatus();
}

}  // namespace

int ShowSummaries(const SummaryOptions& options) {
  std::vector<RunResult> runs;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  int exit_code = kExitDone;
  for (const std::string& folder : options.folders) {
    const absl::Status added = Add(folder, &runs, &list);
    if (!added.ok()) exit_code = Fail("summary", added);
  }
  if (options.json) {
    PrintJson(list);
  } else if (!runs.empty()) {
    PrintResult(SummaryTable(runs));
  }
  return exit_code;
}

}  // namespace slackline
