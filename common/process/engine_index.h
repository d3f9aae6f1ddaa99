// --index=auto: which process of its role this is, as the engine that has
// started it numbers its processes. A pure function: main() reads the
// environment and the name of the host.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace slackline {

inline constexpr char kAutoIndex[] = "auto";

// "auto": 0. "auto+4": 4, the index of the process whose number is 0, for an
// engine that numbers the processes of each group of the config by themselves.
// nullopt: it is neither.
std::optional<int> AutoIndexFrom(absl::string_view index);

// What an engine has told this process.
struct EngineFacts {
  // Of EngineVariables(), those that are set.
  std::map<std::string, std::string> environment;
  std::string host_name;
};
struct EngineIndex {
  int index = 0;
  std::string from;  // "SLURM_PROCID=3", for the log.
};

// The environment variables that EngineFactsHere() reads.
std::vector<std::string> EngineVariables();
// Of this process.
EngineFacts EngineFactsHere();

// The number of SLURM_PROCID, JOB_COMPLETION_INDEX (an indexed Job of
// Kubernetes), OMPI_COMM_WORLD_RANK or PMI_RANK. Without one of these, and in
// Kubernetes, the ordinal at the end of the host's name, as a StatefulSet gives
// it ("server-2"); elsewhere a host may be called so by chance. NotFound: there
// is none. InvalidArgument: one is no number, or two disagree. Each error names
// the variables and what to do. `from` is added: AutoIndexFrom().
absl::StatusOr<EngineIndex> IndexOfEngine(const EngineFacts& facts,
                                          int from = 0);

}  // namespace slackline
