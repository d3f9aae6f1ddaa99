// The flags of the subcommands for a running job, and of more than one folder.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/cli/invocation.h"
#include "tools/cli/job/job_connection.h"
#include "tools/cli/job/status_table.h"

namespace slackline {

inline constexpr char kModeHelp[] =
    "bsp (all workers in step), ssp:S (a worker leads by at most S steps), "
    "dssp:MIN:MAX (by MIN steps, or up to MAX as the measured speeds advise), "
    "asp (no bound), backup:B (as bsp without the B last gradients of a step), "
    "allreduce (the workers without the servers) or auto (the coordinator "
    "chooses between allreduce and ssp)";

inline constexpr char kDelaysHelp[] =
    "In place of a mode, the delays that the job has to meet: constant:S, "
    "uniform:S, geometric:S or straggler:S with the largest delay S in steps, "
    "or the folder of a run with train.trace=true, whose delays are repeated. "
    "The same delays and seed give the same bits";

// --seed and --epochs, which go to `*sets` as changes of the config. After the
// flag that fills it, --set. `*sets` must outlive the parsing.
void AddTrainFlags(CLI::App* command, std::vector<std::string>* sets);

// CONFIG, --key and --timeout-ms. `*options` must outlive the parsing.
void AddJobFlags(const Invocation& invocation, CLI::App* command,
                 JobOptions* options);

// How long a timeline is recorded: from kTimelineMin to kTimelineMax. `*time`
// must outlive the parsing.
CLI::Option* AddTimelineSeconds(CLI::App* command, const std::string& name,
                                absl::Duration* time, const std::string& help);

// --shards and --top.
void AddTableFlags(CLI::App* command, StatusTableOptions* options);

// status, top, trace, checkpoint, stop, mode, rebalance, move, drain and
// servers. When one of them has run, its exit code is in `*exit_code`.
void AddJobCommands(const Invocation& invocation, CLI::App* app,
                    int* exit_code);

}  // namespace slackline
