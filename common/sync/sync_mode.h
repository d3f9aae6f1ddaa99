// How workers keep in step: a mode with its parameters, as people write it and
// as views and calls carry it.
#pragma once

#include <cstdint>
#include <string>

#include "proto/wire.pb.h"

namespace slackline {

struct SyncMode {
  wire::Mode mode = wire::MODE_UNSPECIFIED;
  int64_t staleness = 0;      // SSP: the bound. DSSP: the smallest bound.
  int64_t staleness_max = 0;  // DSSP: the largest bound.
  int32_t backups = 0;        // BACKUP: workers that a clock can do without.

  bool operator==(const SyncMode& other) const = default;
};

// The same without parameters that the mode does not have.
SyncMode OwnParameters(const SyncMode& mode);

// Of a wire::Phase, wire::ModeChange or wire::SetMode.
template <typename Proto>
SyncMode SyncModeOf(const Proto& message) {
  return OwnParameters({.mode = message.mode(),
                        .staleness = message.staleness(),
                        .staleness_max = message.staleness_max(),
                        .backups = message.backups()});
}
template <typename Proto>
void PutSyncMode(const SyncMode& mode, Proto* message) {
  message->set_mode(mode.mode);
  message->set_staleness(mode.staleness);
  message->set_staleness_max(mode.staleness_max);
  message->set_backups(mode.backups);
}

// Of a config::Sync or config::Phase; BSP if it has none of the modes.
template <typename Config>
SyncMode ConfiguredMode(const Config& config) {
  if (config.has_ssp())
    return {.mode = wire::SSP, .staleness = config.ssp().staleness()};
  if (config.has_dssp()) {
    return {.mode = wire::DSSP,
            .staleness = config.dssp().min_staleness(),
            .staleness_max = config.dssp().max_staleness()};
  }
  if (config.has_backup())
    return {.mode = wire::BACKUP, .backups = config.backup().workers()};
  if (config.has_asp()) return {.mode = wire::ASP};
  return {.mode = config.has_allreduce() ? wire::ALLREDUCE : wire::BSP};
}

// "bsp", "ssp:3", "dssp:3:15", "asp", "backup:1", "allreduce": as --mode has
// it.
std::string ModeText(const SyncMode& mode);
inline std::string ModeText(const wire::Phase& phase) {
  return ModeText(SyncModeOf(phase));
}
inline std::string ModeText(const wire::ModeChange& change) {
  return ModeText(SyncModeOf(change));
}

}  // namespace slackline
