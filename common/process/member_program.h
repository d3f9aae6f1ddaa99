// What slackline_server and slackline_worker have in common: flags, the config
// with its checks, the log's first lines and the exit code.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/cluster_config.h"
#include "common/process/job_key.h"
#include "common/time/time_source.h"
#include "proto/cluster.pb.h"

namespace slackline {

struct MemberFlags {
  std::string cluster;
  int index = -1;
  // Of --index=auto: what the engine has said, "SLURM_PROCID=3"; else empty.
  std::string index_from = {};
  std::string data_dir;
  std::string out;
  ConfigOverrides overrides;
  KeyPlace key = {};
  // Where this process shows its health, in place of what the config says.
  std::optional<int> health_port = {};
  // Servers that join a running job.
  bool add = false;
  std::string host;  // Empty: as the last server of the config.
  int threads = 0;   // 0: as the last server of the config.
  // Servers: the checkpoint from which the job goes on; empty: it begins anew.
  // Or a folder of checkpoints, or of a run.
  std::string resume;
  // Servers: from the newest one in the job's own folder, if there is one.
  bool restore = false;
  // Server 0 begins a new run, whatever one has left in `out`, or in etcd.
  bool new_run = false;
  // Servers but server 0, which does it anyway: the job goes on whose
  // coordinator's state is in etcd.
  bool recover = false;
};

struct MemberProgram {
  std::string role;           // "server" or "worker".
  std::string description;    // What --help begins with.
  std::string out_help;       // Of --out.
  std::string data_dir_help;  // Of --data-dir; empty: there is no such flag.
  bool may_be_added = false;  // There is --add, and what goes with it.
  bool may_resume =
      false;  // There are --resume, --restore, --new-run, --recover.
  // The environment has defaults for --cluster, --index, --out, --data-dir and
  // --key (member_environment.h).
  bool environment = false;
  // What completes and checks the config.
  ConfigParts config_parts;
  // Names that the process needs before it can begin, beside the coordinator's:
  // where it listens. Empty: none.
  std::function<std::vector<std::string>(const MemberFlags&,
                                         const config::ClusterConfig&)>
      own_names = {};
  // How many processes of this role the config has.
  std::function<int(const config::ClusterConfig&)> count;
  // Does the work, until the job has ended.
  std::function<absl::Status(const MemberFlags&, const config::ClusterConfig&,
                             const TimeSource&)>
      run;
};

// The config of flags.cluster with the overrides, completed and checked, and
// flags.index against it. InvalidArgument or NotFound says what to write into
// which file or flag; count and config_parts alone are read of `program`.
absl::StatusOr<config::ClusterConfig> LoadMemberConfig(
    const MemberProgram& program, const MemberFlags& flags);

// What a process does first that is a member of a job: the log on stderr, which
// begins with the flags and the hash of the config, limits and memory. `name`
// is the program's. Call once.
void BeginMember(const std::string& name, const std::string& role,
                 const MemberFlags& flags, const config::ClusterConfig& config,
                 const TimeSource& time);

// Leaves the config, with all of its defaults, in one place:
// OUT/cluster.textproto, or the log if there is no folder, or a file there that
// is not of this program, or if it was started with that file and changes to
// it. For server 0, once the job is its own.
void KeepConfig(const MemberFlags& flags, const config::ClusterConfig& config);

// The whole of main(): returns its exit code, 0 done, 1 failed, 2 wrong usage
// or config, kExitSuspended (end_status.h). Stop signals are blocked when `run`
// is called: it makes a StopSignal.
int RunMemberProgram(const MemberProgram& program, int argc, char** argv);

// "SECONDS@AFTER_SECONDS", for example "-3600@5": what --wall-clock-step takes.
absl::StatusOr<TimeSource::WallClockStep> ParseWallClockStep(
    const std::string& text);

// "worker 2 was interrupted by SIGINT".
std::string InterruptedBy(const std::string& role, int index, int signal);

}  // namespace slackline
