#include "tools/cli/launch/slurm_hosts.h"

#include <sys/mman.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "tools/cli/file_descriptor.h"
#include "tools/cli/process.h"
#include "tools/cli/run/logs.h"

namespace slackline {
namespace {

std::string Contents(const FileDescriptor& file) {
  return ReadTail(absl::StrCat("/proc/self/fd/", file.get()), 1 << 20);
}

absl::Status NoAllocation(absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "--on slurm: the config names no hosts, and those of an allocation are "
      "not known here (",
      why,
      "); run it within one, as in salloc -N2 slackline run ..., or name "
      "hosts by --hosts"));
}

}  // namespace

absl::StatusOr<std::vector<HostSlots>> SlurmHosts() {
  const absl::StatusOr<std::string> program = FindProgram("scontrol");
  if (!program.ok()) return NoAllocation(program.status().message());
  const FileDescriptor output(memfd_create("output", MFD_CLOEXEC));
  const FileDescriptor errors(memfd_create("errors", MFD_CLOEXEC));
  SL_ASSIGN_OR_RETURN(
      ChildProcess scontrol,
      ChildProcess::Start({.command = {*program, "show", "hostnames"},
                           .log_path = {},
                           .standard_output = output.get(),
                           .standard_error = errors.get()}));
  if (!scontrol.Wait().ok()) {
    return NoAllocation(
        absl::StrCat("scontrol show hostnames: ",
                     absl::StrJoin(LastLines(Contents(errors), 2), "; ")));
  }
  absl::StatusOr<std::vector<HostSlots>> hosts =
      ParseHostFile(Contents(output));
  if (!hosts.ok()) return NoAllocation(hosts.status().message());
  for (HostSlots& host : *hosts) host.slots = 0;
  return hosts;
}

}  // namespace slackline
