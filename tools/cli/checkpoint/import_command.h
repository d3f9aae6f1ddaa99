// `slackline import`: a checkpoint with the parameters of a model file, for a
// job to begin with.
#pragma once

#include <string>
#include <vector>

namespace slackline {

struct ImportOptions {
  std::string file;  // Safetensors. F16, BF16 and F64 become float32.
  std::string out;   // Is made; must be empty if it is there.
  // Only tensors whose names begin with one of these; empty: all.
  std::vector<std::string> only = {};
  std::vector<std::string> skip = {};  // Names of tensors that are left out.
  bool json = false;
};
// Returns its exit code. On failure there is no checkpoint.
int ImportCheckpoint(const ImportOptions& options);

}  // namespace slackline
