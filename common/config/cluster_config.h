// The cluster config as the binaries see it: read from a text-format file,
// changed by the command line, completed with defaults, and checked.
//
// Everything here is a pure function of its arguments (and of the file that
// is read); any thread may call it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/block/config_problems.h"
#include "common/config/placement.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"

namespace slackline {

// A config of a thousand hosts has less than that. Somebody who names the wrong
// file should hear so, not wait for it.
inline constexpr int64_t kConfigFileBytesMax = 1 << 20;

// What the command line changes in the file. Flags that contradict each other
// are refused: two values for one field, or for two branches of one choice.
struct ConfigOverrides {
  std::string mode;               // As in ParseMode(); empty: the file's.
  std::vector<std::string> sets;  // As in SetField().
  // In place of the mode: as sync.delays.given has it; empty: none.
  std::string delays = {};
  // What stands after "--": program and arguments of all workers, in place of
  // worker[i].command. Empty: the file's.
  std::vector<std::string> worker_command = {};
  // The block of `launch` that says where processes are started: "ssh". Empty:
  // the file's.
  std::string engine = {};
  // Behind those of launch.slurm.option, for a job of Slurm.
  std::vector<std::string> slurm_options = {};
  // In place of the hosts in the file: PlaceOnHosts(). Empty: the file's.
  std::vector<HostSlots> hosts = {};
  std::string hosts_origin = {};  // Their flag.
};

// The blocks of the config belong to the parts of Slackline that they are for.
// job/job_config.h has them all.
struct ConfigParts {
  // Writes out defaults that the schema cannot say. All blocks that do not
  // stand for a choice are there.
  void (*fill_defaults)(config::ClusterConfig* config);
  // Adds what is wrong with the blocks.
  void (*check)(const config::ClusterConfig& config,
                const ConfigProblems& problems);
};

// A whole file of text. NotFound: it cannot be read. InvalidArgument: it has
// more than kConfigFileBytesMax. Both say `what` it was read for.
absl::StatusOr<std::string> ReadTextFile(absl::string_view what,
                                         const std::string& path);

// Reads and checks a config. In the result every default is written out: all
// scalar fields that have one, coordinator (with its host), schedule, sync
// (with its collective), train, limits, rebalance and checkpoint. Values are in
// the ranges that the schema's comments and the checks of the parts name;
// coordinator.port may be 0, which whoever starts the processes must replace.
//
// NotFound: the file cannot be read. InvalidArgument: all problems found, one
// in a line, as "file:line:column: field path: value; what is required". Lines
// and columns count from 1; a tab ends at the next multiple of 8. A value from
// the command line is shown as its flag instead of a place in the file. A
// field of a list has its index: "worker[1].slowdown".
absl::StatusOr<config::ClusterConfig> LoadClusterConfig(
    const std::string& path, const ConfigParts& parts,
    const ConfigOverrides& overrides = {});

// The same for text in memory; `file_name` is for messages only.
absl::StatusOr<config::ClusterConfig> ParseClusterConfig(
    const std::string& text, const std::string& file_name,
    const ConfigParts& parts, const ConfigOverrides& overrides = {});

// Changes one field, given as "path=value": "train.epochs=3",
// "worker[1].slowdown=3", "model.mlp.hidden=[256,128]", "sync.asp={}",
// "optimizer={sgd{learning_rate:0.1}}". Another branch of a choice replaces the
// present one. A list element must exist, but a block may be added behind the
// last one as a whole: "sync.stale[0]={scale{}}". On error `config` is
// unchanged. Checks the type of the value, not its range: parse ToText(config)
// for that.
absl::Status SetField(absl::string_view assignment,
                      config::ClusterConfig* config);

// A mode as people write it: "bsp", "ssp:S", "dssp:MIN:MAX", "asp", "backup:B",
// "allreduce", or "auto" for the policy; "ssp", "dssp" and "backup" have the
// schema's defaults. InvalidArgument lists these.
absl::StatusOr<wire::SetMode> ParseMode(absl::string_view text);

// Sets the mode, as in ParseMode(), in place of the present one or of phases.
// Keeps the other fields of sync, and the options of the mode if it stays the
// same.
absl::Status SetMode(absl::string_view text, config::ClusterConfig* config);

// The mode in the form that ParseMode() takes, "bsp" without a sync block; or
// the phases: "allreduce until epoch 1, ssp:4".
std::string ModeText(const config::ClusterConfig& config);

// Text format that parses to an equal config.
std::string ToText(const config::ClusterConfig& config);

// 16 hexadecimal digits, the same on every machine and in every build. Equal
// for equal configs, whatever files and flags they came from. Over everything,
// because each process derives every other's place from it; but for `track`,
// which is nothing to them.
std::string ConfigHash(const config::ClusterConfig& config);

// Only processes on this host reach it: 127.0.0.0/8 and its name.
bool IsLoopback(absl::string_view host);
// All interfaces of a machine: "0.0.0.0", "::", "*".
bool IsAnyAddress(absl::string_view host);
// Equal for two spellings of one machine, as far as the text tells.
std::string MachineOf(absl::string_view host);

// The host of process `index` of a group: `host` as the group has it, in which
// "{index}" stands for that number, as in "server-{index}.job.svc".
inline constexpr char kIndexInHost[] = "{index}";
std::string HostOfProcess(const std::string& host, int index);

// One process of a `server` group; its position in ServerProcesses() is its
// index.
struct ServerProcess {
  int index = 0;
  std::string host;
  std::string listen;  // Empty: host.
  int threads = 0;
  int first_port = 0;   // Thread t takes first_port + t. 0: any free ports.
  double slowdown = 1;  // At least 1.
};

// One process of a `worker` group; its position in WorkerProcesses() is its
// rank.
struct WorkerProcess {
  int rank = 0;
  std::string host;
  std::string listen;  // Empty: host.
  int port = 0;        // For all-reduce over tcp; 0: any free one.
  int threads = 0;
  double slowdown = 1;  // At least 1.
  int gpu = -1;         // Index of its CUDA device; -1: it trains on the CPU.
  config::Conditions conditions;
  std::string command;  // As in SplitShellLine(); empty: slackline_worker.
};

// For a config from the functions above.
std::vector<ServerProcess> ServerProcesses(const config::ClusterConfig& config);
std::vector<WorkerProcess> WorkerProcesses(const config::ClusterConfig& config);

// Whether any server goes on as the coordinator when the one before has died.
// Else only server 0 does.
bool AnyServerTakesOver(const config::ClusterConfig& config);
// Where the coordinator is if server `index` has it: that of server 0 at
// coordinator.host, others on their own hosts, all with coordinator.port.
// "tcp://HOST:PORT", with the host as in the config.
std::string CoordinatorEndpointAt(const config::ClusterConfig& config,
                                  int index);
// Where it may be, that of server 0 first; each once.
std::vector<std::string> CoordinatorEndpoints(
    const config::ClusterConfig& config);

}  // namespace slackline
