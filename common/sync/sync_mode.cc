#include "common/sync/sync_mode.h"

#include "absl/strings/str_cat.h"

namespace slackline {

SyncMode OwnParameters(const SyncMode& mode) {
  SyncMode own{.mode = mode.mode};
  if (mode.mode == wire::SSP || mode.mode == wire::DSSP)
    own.staleness = mode.staleness;
  if (mode.mode == wire::DSSP) own.staleness_max = mode.staleness_max;
  if (mode.mode == wire::BACKUP) own.backups = mode.backups;
  return own;
}

std::string ModeText(const SyncMode& mode) {
  switch (mode.mode) {
    case wire::BSP:
      return "bsp";
    case wire::SSP:
      return absl::StrCat("ssp:", mode.staleness);
    case wire::ASP:
      return "asp";
    case wire::ALLREDUCE:
      return "allreduce";
    case wire::DSSP:
      return absl::StrCat("dssp:", mode.staleness, ":", mode.staleness_max);
    case wire::BACKUP:
      return absl::StrCat("backup:", mode.backups);
    default:
      return "unknown";
  }
}

}  // namespace slackline
