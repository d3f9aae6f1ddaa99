// What a process of a job says of its health, from what its threads say of
// themselves: for probes (/healthz, /readyz) and people. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace slackline {

// How far a process is in its job.
enum class HealthStage {
  kStarting,    // Before it has sent anything: it reads config and data.
  kJoining,     // The coordinator does not know it yet, or the job forms.
  kTakingPart,  // The job runs, and this process is in it.
  kEnding,      // The job is over for it.
};

struct HealthFacts {
  std::string role;  // "server" or "worker".
  int index = 0;
  HealthStage stage = HealthStage::kStarting;
  absl::Time stage_since = {};
  // When the thread that keeps the process in the job has last looked for
  // messages. It does so several times in a lease as long as it is not kEnding.
  // None: it does not run yet.
  std::optional<absl::Time> looked_at = {};
  // Steps that a worker has completed.
  std::optional<int64_t> clock = {};
  // What the process is at, "computing step 12"; completes "it is". May be
  // empty.
  std::string doing = {};
  // Since when its own work has come no further, where nobody else can hold it
  // up. None: it has no work, or waits for others.
  std::optional<absl::Time> still_since = {};
};

struct HealthBounds {
  // limits.stall_timeout_ms: as long as the coordinator has patience with a
  // worker that holds others up.
  absl::Duration stall;
};

struct HealthReport {
  bool ok = false;
  std::string json;  // One line, with its end.
};

// Whether the process' own threads get on. One that ends is left in peace.
HealthReport Healthz(const HealthFacts& facts, const HealthBounds& bounds,
                     absl::Time now);
// Whether the job runs with this process in it, and it is healthy.
HealthReport Readyz(const HealthFacts& facts, const HealthBounds& bounds,
                    absl::Time now);

}  // namespace slackline
