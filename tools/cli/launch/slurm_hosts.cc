#include "tools/cli/launch/slurm_hosts.h"

#include "absl/strings/str_cat.h"
#include "tools/cli/launch/slurm_tools.h"

namespace slackline {

absl::StatusOr<std::vector<HostSlots>> SlurmHosts() {
  const absl::StatusOr<std::string> output =
      RunSlurmTool({"scontrol", "show", "hostnames"});
  absl::StatusOr<std::vector<HostSlots>> hosts =
      output.ok() ? ParseHostFile(*output) : output.status();
  if (!hosts.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--on slurm: the config names no hosts, and those of the allocation "
        "are not known here (",
        hosts.status().message(), "); name hosts by --hosts"));
  }
  for (HostSlots& host : *hosts) host.slots = 0;
  return hosts;
}

}  // namespace slackline
