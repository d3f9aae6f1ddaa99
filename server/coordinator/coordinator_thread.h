// CoordinatorThread: the driver of the CoordinatorCore. Owns the thread, the
// listener at the coordinator's address, the files of the run, the store of the
// coordinator's state, and the thread that completes checkpoints.
//
// What an event has brought is done in this order: its records are appended to
// the files of the run; what it has changed is kept, with the lengths of these
// files; and only then anybody is told. So a coordinator that goes on from the
// state knows all that anybody was told, and what the files have beyond it
// comes again and is cut off. Nothing is done by one that may not be the only
// one any more, as the store knows it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/net/poller.h"
#include "common/net/refusal_log.h"
#include "common/net/transport.h"
#include "common/time/time_source.h"
#include "common/timeline/recorder.h"
#include "server/coordinator/checkpoint_thread.h"
#include "server/coordinator/coordinator_core.h"
#include "server/coordinator/run_files.h"
#include "server/coordinator/state/state_store.h"

namespace slackline {

class CoordinatorThread {
 public:
  struct Options {
    CoordinatorCore::Options core;
    TimeSource time;
    std::string endpoint;  // "tcp://host:port".
    // The folder of the run's files; empty: none. If it has the records of the
    // run that took the checkpoint that the job goes on from, these are kept,
    // and come before this one's. Those of steps that are done anew are removed
    // when the job begins to run.
    std::string folder;
    uint64_t folder_token = 0;  // RunFiles::Origin::folder.
    // Gets how the job stands about once a second and when its state changes,
    // from the coordinator's thread, and nullptr when another coordinator goes
    // on with it. Empty: nobody wants it.
    std::function<void(std::shared_ptr<const wire::StatusReply>)> watch = {};
    // The track of this thread, which it outlives; nullptr: there is none.
    TimelineTrack* track = nullptr;
  };
  // Where the state is kept, and what the coordinator before has left there.
  struct Keeping {
    std::unique_ptr<StateStore> store;  // nullptr: it is not kept.
    // Not empty: the job goes on from it, with Options::core as KeptJobIn() has
    // it.
    CoordinatorState state;
    // Removes what the store holds, for good. So a job goes on where there is
    // no room for more; nobody goes on with what is not true any more. nullptr:
    // the coordinator ends.
    std::function<absl::Status()> forget;
  };
  // Binds, then starts the thread. Errors of a state name what is broken.
  static absl::StatusOr<std::unique_ptr<CoordinatorThread>> Start(
      Transport& transport, const Options& options, Keeping keeping = {});
  // Fails the job if it has not ended, waits until all members know, a lease at
  // most, until the disk of checkpoints has done what was asked of it, within
  // limits.save_timeout_ms, and until the summary is written. The server's own
  // control thread must have left its loop. Names the file and the cause if the
  // summary could not be written: of a job that has finished within that time,
  // of one that has failed at once. As failure() if there is one; then it waits
  // for nothing.
  absl::Status Finish();
  // Ends, and tells nobody anything: another one goes on with the job.
  void Abandon();
  // Any thread: why this coordinator has ended before the job, if it has. The
  // job is not ended by that: a coordinator that is started again goes on.
  absl::Status failure() const;
  // Any thread: how the job has ended, once this coordinator has told all whom
  // it could reach, and answers nobody any more; it may still wait for the
  // disk.
  std::optional<wire::JobEnd> over() const;
  // After Finish() without an error: how the job has ended.
  absl::Status JobEnd() const;
  // Any thread: whom it has refused.
  run::Refusals refused() const {
    const MutexLock lock(refused_mutex_);
    return refused_;
  }
  // Any thread: the summary is not tried again any more. If the disk of
  // checkpoints is being waited for, that ends, too.
  void StopSaving();
  ~CoordinatorThread();  // Calls Finish().

 private:
  CoordinatorThread(std::unique_ptr<Listener> listener,
                    std::unique_ptr<RunFiles> files, const Options& options,
                    Keeping keeping);
  // A summary that cannot be written is tried again for so long, and the disk
  // of checkpoints is waited for.
  absl::Duration SaveTimeout() const {
    return absl::Milliseconds(options_.core.config.limits().save_timeout_ms());
  }
  // Starts the core, or lets it recover.
  absl::Status Begin();
  void Run();
  void Lead();
  void TellWatch();
  // What the coordinator has said and done goes to the timeline.
  void Record(const CoordinatorCore::Effects& effects);
  void EndCheckpoints(Poller* poller);
  void WriteSummary(Poller* poller);
  // Whom the listener has refused by now.
  void CountRefusals();
  // False if this coordinator has ended by it, as failure() says.
  bool Perform(CoordinatorCore::Effects* effects);
  // The parts of Perform(), in the order that the head of this file says.
  void AppendRecords(const CoordinatorCore::Effects& effects);
  absl::Status AwaitLead();
  absl::Status Keep(std::vector<StateChange> changes);
  absl::Status GoOnWithoutState(const absl::Status& why);
  void TakeCheckpoints(CoordinatorCore::Effects* effects);

  const Options options_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<int> stops_saving_{0};
  absl::Status saved_;  // Written by the thread, read after it has ended.
  Waker waker_;
  std::unique_ptr<Listener> listener_;
  RefusalLog refusals_{"coordinator"};
  mutable Mutex refused_mutex_;
  run::Refusals refused_ ABSL_GUARDED_BY(refused_mutex_);
  std::unique_ptr<RunFiles> files_;
  Keeping keeping_;  // The state is taken out once it has begun.
  bool keeps_state_;
  std::string files_kept_;  // What the store has of the files.
  uint64_t recorded_view_ = 0;
  bool has_summary_ = false;  // The coordinator before has written it.
  CoordinatorCore core_;
  CoordinatorCore::Effects recovered_;  // To be performed first.
  absl::Status failure_;                // Written before failed_ is.
  absl::Time next_watch_ = absl::InfinitePast();
  // What `watch` was told last.
  wire::JobState watched_ = wire::JOB_STATE_UNSPECIFIED;
  std::atomic<bool> failed_{false};
  wire::JobEnd end_;  // Written before over_ is.
  std::atomic<bool> over_{false};
  std::unique_ptr<CheckpointThread> checkpoints_;  // nullptr: none can be.
  std::thread thread_;
};

}  // namespace slackline
