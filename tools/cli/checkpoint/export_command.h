// `slackline export`: the parameters of a checkpoint as a model file.
#pragma once

#include <string>

namespace slackline {

struct ExportOptions {
  std::string checkpoint;  // As OpenCheckpoint() takes it.
  std::string file;        // Must not be there.
  bool json = false;
  bool best = false;  // Of those at `checkpoint`: FindBestCheckpoint().
};
// Returns its exit code. On failure there is no file.
int ExportCheckpoint(const ExportOptions& options);

}  // namespace slackline
