// Patience: how long a worker has come no further, when it gives up waiting for
// others, and when its log says for whom it waits.
//
// A wait ends `wait_timeout` after the last sign of progress: the worker came
// further itself, a newer view came, bytes moved, or the worker that it waits
// for was seen at a later clock. Time in which this worker's own process did
// not run is no time in which it waited. Whether it waits at all is the
// caller's to know.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/time/awake_clock.h"
#include "proto/run.pb.h"
#include "worker/client/client_core.h"

namespace slackline {

class Patience {
 public:
  // `wait_timeout` is for others, without any sign of progress.
  explicit Patience(absl::Duration wait_timeout);

  // The worker begins.
  void Start(absl::Time now);
  // A tick begins: returns the time in which the worker did not run. Deadlines
  // that others keep are to be moved by it.
  absl::Duration Wake(absl::Time now);
  // Wake() is to be called by then.
  absl::Time NextWake() const { return awake_.NextRun(); }

  // The worker came further itself.
  void CameFurther(absl::Time now) { progress_at_ = now; }
  // Something has changed that it may have waited for.
  void HeardNews(absl::Time now) { view_at_ = now; }
  // Bytes that were pulled, and that are not acknowledged: another number than
  // last time is progress, and so is a pull that was answered.
  void SawBytes(uint64_t bytes, bool has_pulled, absl::Time now);
  // What this worker waits for. The same other worker at a later clock is
  // progress.
  void SawOthers(const ClientWaiting& waiting, absl::Time now);
  // What it waits for has come nearer so long ago, and perhaps later than this
  // worker came further.
  void CameNearer(absl::Duration since_progress, absl::Time now);

  // When the worker came further last.
  absl::Time progress_at() const { return progress_at_; }
  // When it gives up waiting for others, if it does wait.
  absl::Time Deadline() const;

  // Whether Sentence() may have something to say. A lease of zero: not yet.
  bool IsToTell(absl::Time now, absl::Duration lease) const;
  // What the log is to say of this wait, if it has lasted for some leases; a
  // wait that goes on is said more and more rarely.
  std::optional<std::string> Sentence(const run::WorkerProgress& progress,
                                      absl::Time now, absl::Duration lease);

 private:
  const absl::Duration wait_timeout_;
  AwakeClock awake_;
  absl::Time progress_at_;
  absl::Time view_at_;
  uint64_t bytes_ = 0;  // What SawBytes() was told last.
  // For whom a shard said last that it waits, and that one's clock.
  std::pair<std::optional<Rank>, Clock> waited_for_;
  // When it looks next whether it waits for long.
  absl::Time tell_at_ = absl::InfinitePast();
  absl::Duration tell_after_;  // How long the wait has to be to be said.
  // The wait that was said last had begun then.
  absl::Time told_since_ = absl::InfinitePast();
};

}  // namespace slackline
