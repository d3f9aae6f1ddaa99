// `slackline import`: a checkpoint with the parameters of a model file, for a
// job to begin with.
#pragma once

#include <string>

namespace slackline {

struct ImportOptions {
  std::string file;  // As ReadSafetensors() takes it.
  std::string out;   // Is made; must be empty if it is there.
  bool json = false;
};
// Returns its exit code. On failure there is no checkpoint.
int ImportCheckpoint(const ImportOptions& options);

}  // namespace slackline
