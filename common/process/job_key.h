// Where a process finds the key of its job.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/keys/key_holder.h"
#include "common/keys/key_watch.h"
#include "proto/cluster.pb.h"
#include "proto/keys.pb.h"

namespace slackline {

struct KeyPlace {
  std::string given = {};  // A file that a flag names; empty: none does.
  std::string own = {};    // The user's: UserKeyFileHere().

  const std::string& file() const { return given.empty() ? own : given; }
};

// In the folder of a run, while it runs: the key of its job, and
// "worker-3.key", what the worker of that rank holds of it.
inline constexpr char kJobKeyName[] = "job.key";
std::string WorkerKeyName(int rank);
// Whether a file is called so, or as a copy of job.key beside it: what is in it
// is a secret.
bool IsKeyName(absl::string_view name);
std::string JobKeyFileOf(const std::string& run_folder);
// Removes the keys of workers of this rank and above, which an earlier run in
// the folder has left and a run with fewer workers does not replace.
void RemoveKeysOfWorkersFrom(const std::string& run_folder, int rank);

// The keys of this process as `holder` in the job; nullopt with insecure: true.
// The user's key is made where there is none and all of the job is on this
// host. Errors as of ReadKeyFile() and KeyPlanFrom(); NotFound says how to get
// one.
absl::StatusOr<std::optional<KeySource>> KeysHere(
    const config::ClusterConfig& config, const KeyHolder& holder,
    const KeyPlace& place);

// The key that the processes of a run get.
struct KeyOfRun {
  keys::Key key;          // Of the job.
  std::string file = {};  // What it was made of; empty: of no file.
  std::string note = {};  // A sentence for the user; empty: there is none.
};
// Made of the user's. Where no user's can be kept, it is one of this run alone,
// which the note says. nullopt with insecure: true.
absl::StatusOr<std::optional<KeyOfRun>> MakeKeyOfRun(
    const config::ClusterConfig& config, const KeyPlace& place);

}  // namespace slackline
