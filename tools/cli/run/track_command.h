// `slackline track`, and --track or the config's `track` of run, compare and
// ablate: the records of a run, or of an experiment, go to experiment trackers.
// A Python program sends them, which reads the files in the folder.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/descriptor.h"
#include "proto/cluster.pb.h"
#include "tools/cli/display.h"
#include "tools/cli/process.h"

namespace slackline {

// What --to and --track say.
inline constexpr char kTrackersHelp[] =
    "mlflow, wandb or tensorboard, with :PLACE or without "
    "(docs/manual/tracking.md); may be repeated";

struct TrackOptions {
  std::string folder;           // Of the run or the experiment.
  std::string bin_dir;          // Of slackline_track.py.
  std::vector<std::string> to;  // As for --to.
  std::string project;          // Empty: the job or the experiment.
  bool model = false;
  bool follow = true;  // What goes on, until its end.
};

// Why --to and --track may not say that: the command is kept in the records, in
// messages and in batch scripts. Empty: they may.
std::string TrackerProblem(const std::string& to);

// Of the records in a folder. `flags`: those of --track, which take the place
// of the trackers of the config. No tracker: nothing is followed.
TrackOptions TrackOptionsOf(const config::Track& track,
                            const std::vector<std::string>& flags,
                            const std::string& folder,
                            const std::string& bin_dir);

// Returns the exit code.
int Track(const TrackOptions& options);

// kNames: there are such trackers, each once. kPackages: their packages are
// here, too, as the host that sends needs them.
enum class TrackersCheck { kNames, kPackages };
// kExitDone, or the exit code, once the reason is on stderr. No SignalWatch may
// live.
int CheckTrackers(const TrackOptions& options, TrackersCheck check);

// While it lives, sends what is written into a folder, from before the run
// begins. Its destructor, once the run is over, waits until all is sent, at
// most half a minute; what has not been sent is a warning, with the command for
// it.
class Tracking {
 public:
  // Null if there is no tracker in `options`. What trackers say goes into
  // logs/track.log in the folder. The error says why nothing is followed.
  static absl::StatusOr<std::unique_ptr<Tracking>> Start(
      const TrackOptions& options, Display* display);
  ~Tracking();
  Tracking(const Tracking&) = delete;
  Tracking& operator=(const Tracking&) = delete;

 private:
  Tracking(TrackOptions options, std::string log, Descriptor until,
           ChildProcess child, Display* display)
      : options_(std::move(options)),
        log_(std::move(log)),
        display_(display),
        until_(std::move(until)),
        child_(std::move(child)) {}
  const TrackOptions options_;
  const std::string log_;
  Display* const display_;
  // The program reads the other end of it, which ends when the run is over.
  Descriptor until_;
  ChildProcess child_;
};

}  // namespace slackline
