// CoordinatorSeat: the place for a coordinator in the process of a server.
// Server 0 begins with one. With etcd any server may get it later: when nobody
// leads any more, the first one whose seat leads goes on with the job, at its
// own address. A coordinator that does not lead any more leaves its seat, and
// the server stays.
//
// A seat looks into etcd while its server hears no coordinator, and only then.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/net/transport.h"
#include "server/coordinator/coordinator_keeping.h"
#include "server/coordinator/coordinator_thread.h"

namespace slackline {

class CoordinatorSeat {
 public:
  struct Options {
    // What the coordinator has, if it begins here. One that takes over has the
    // run and the checkpoint of the job that it goes on with.
    CoordinatorThread::Options coordinator;
    KeepingOptions keeping;
    // How often etcd is looked into.
    absl::Duration look_every = absl::Milliseconds(500);
  };
  // `transport` outlives it, and may be used by several threads.
  CoordinatorSeat(Transport& transport, const Options& options);
  ~CoordinatorSeat();  // Calls Finish().
  CoordinatorSeat(const CoordinatorSeat&) = delete;
  CoordinatorSeat& operator=(const CoordinatorSeat&) = delete;

  // A coordinator begins here: that of Options, with what it goes on from.
  absl::Status Begin(CoordinatorThread::Keeping keeping);
  // From now on a coordinator may come here. Called at most once.
  void StandBy();

  // What the server says of itself.
  struct Server {
    // It hears no coordinator, and may have one.
    bool may_host = false;
    // It is to leave the job: one comes here only if, for a while in which
    // other servers have looked, nobody leads.
    bool leaves = false;
    uint64_t run = 0;  // The run that it has joined; 0: none yet.
  };
  // Any thread. Returns whether a coordinator is here.
  bool Offer(const Server& server);
  // Any thread: why the process has to end: its coordinator has, before the
  // job, and none can come here.
  absl::Status failure() const;
  // Any thread: as CoordinatorThread::over() of the coordinator that is here.
  std::optional<wire::JobEnd> over() const;
  // Any thread: whom all coordinators that were here have refused.
  run::Refusals refused() const;
  // Any thread: CoordinatorThread::StopSaving() of the one that is here.
  void StopSaving();
  // The server gives up: none comes here any more, and the one that is here
  // leaves the job to another one, if any server takes over; else as Finish().
  void GiveUp();
  // None comes here any more. As CoordinatorThread::Finish() of the one that is
  // here.
  absl::Status Finish();
  // After Finish(), and Begin() before: how the job has ended.
  absl::Status JobEnd() const;

 private:
  void Run();
  // Returns the coordinator that is here, which nobody replaces any more.
  CoordinatorThread* EndStandingBy();
  // A coordinator that does not lead any more goes.
  void Leave();
  absl::Status TakeOver(const Server& server);
  // Whether others had their turn. An error of etcd: they may have it yet.
  bool IsItsTurn(const Server& server);
  // What has kept a coordinator from coming here, each time that it is another
  // one.
  void Say(const absl::Status& problem);

  Transport& transport_;
  const Options options_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Server server_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<CoordinatorThread> coordinator_ ABSL_GUARDED_BY(mutex_);
  // Whom coordinators have refused that have left.
  run::Refusals refused_ ABSL_GUARDED_BY(mutex_);
  std::string said_;    // What the thread has said last.
  int free_looks_ = 0;  // Looks of the thread in a row: nobody led.
  std::thread thread_;  // It runs from StandBy() on.
};

}  // namespace slackline
