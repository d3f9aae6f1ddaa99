// WorkerLoop: the communication thread of a worker, and the way in which its
// trainer thread gets at the WorkerCore. Owns the channels and the clock, and
// decides nothing.
//
// The trainer thread performs one action after the other:
//   while (const auto action = loop->Next()) ...
// and says with Tell() how each has ended. The core runs under a mutex on
// whichever thread has an event, so an action that follows from the end of
// another one costs no hand-over between threads.
//
// Nor does a message where the trainer thread would only wait for it: the
// channels belong to whoever has the turn, and a thread that has something
// small to send, or waits and finds the turn free, takes it, sends, and looks
// for messages itself. The communication thread leaves the turn to the trainer
// thread for a moment whenever that was given something to do, and takes it if
// the trainer thread has not come back to wait by then. So with short steps no
// thread wakes another, and with long ones messages are seen to beside them.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/health/health_board.h"
#include "common/inspection/inspector.h"
#include "common/mutex.h"
#include "common/net/link_trial.h"
#include "common/net/peer_links.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "common/optim/step_options.h"
#include "common/time/time_source.h"
#include "common/timeline/recorder.h"
#include "proto/cluster.pb.h"
#include "worker/core/action_line.h"
#include "worker/core/worker_core.h"

namespace slackline {

class WorkerLoop {
 public:
  struct Options {
    WorkerCore::Options core;
    TimeSource time;
    config::Limits::Transport transport = config::Limits::AUTO;
    Poller::Options wait;
    // Is told how this worker is; nullptr: nobody asks. Outlives the loop.
    HealthBoard* health = nullptr;
    // What users may ask this process.
    Inspector::Sources inspection = {};
    // The messages' track; nullptr: there is none. Outlives the loop.
    TimelineTrack* track = nullptr;
  };

  // The coordinator is at one of core.member.coordinators. The transports,
  // which may be one, carry what goes to the coordinator and what goes to shard
  // threads; they outlive the loop. `door`: where others try to connect to
  // while the job forms, of to_coordinator; null: nowhere.
  static absl::StatusOr<std::unique_ptr<WorkerLoop>> Start(
      Transport& to_coordinator, Transport& to_shard_threads,
      const Options& options, std::unique_ptr<Listener> door = nullptr);
  ~WorkerLoop();

  // ---- Trainer thread -------------------------------------------------------

  // Waits for the next action. None when the worker has come to its end; then
  // ending() says which.
  std::unique_ptr<const WorkerCore::Action> Next();
  // What Next() gave last comes again.
  void PutBack(std::unique_ptr<const WorkerCore::Action> action);
  // What ActionLine says.
  void OnStepOver();
  ActionLine::AtGather NextAtGather();
  // An event of the core: event(core, now, effects).
  template <typename Event>
  void Tell(const Event& event) {
    const MutexLock lock(mutex_);
    Handle(event);
    if (HasNews()) SendSoon();
  }
  // WorkerCore::OnGradient(), once there is room for it. May return before it
  // is sent. ending() if the worker is to stop.
  absl::Status Push(TableId table, const CodedGradient& gradient,
                    const StepOptions& options);
  // WorkerCore::OnSkippedTable(). ending() if the worker is to stop.
  absl::Status SkipTable(TableId table);
  // The parameters of a table in a step that has begun without them; once for
  // each. Waits for them. ending() if the worker is to stop.
  absl::StatusOr<TableValues> WaitForTable(TableId table);
  // What the servers answer to WorkerCore::AskState(). Waits for it. ending()
  // if the worker is to stop.
  absl::StatusOr<WorkerCore::Parameters> AskState(StateParts what);
  // Returns after that time, or as soon as the worker is to stop, with
  // ending().
  absl::Status Sleep(absl::Duration time);

  // ---- Any thread -----------------------------------------------------------

  // Waits for the answer of the coordinator. DeadlineExceeded after `wait_max`;
  // FailedPrecondition if the coordinator refuses.
  absl::StatusOr<MemberCore::CallResult> Call(wire::Call call, Payload value,
                                              absl::Duration wait_max);
  // Call() in two steps; DeadlineExceeded allows to wait again.
  uint64_t StartCall(wire::Call call, Payload value);
  absl::StatusOr<MemberCore::CallResult> WaitCall(uint64_t call,
                                                  absl::Duration wait_max);
  // Nobody waits for the answer any more.
  void ForgetCall(uint64_t call);
  // As MemberCore::ObstacleOf().
  std::string ObstacleOf(uint64_t call) const;

  // The time by which the core lives. It is no time of day.
  absl::Time Now() const;
  // As WorkerCore::ending().
  absl::Status ending() const;
  std::shared_ptr<const View> view() const;
  // As WorkerCore::WhyGroupIsOver().
  absl::Status WhyGroupIsOver(uint64_t group) const;
  // As MemberCore::AddRecord(). One that may end the job is sent at once.
  void AddRecord(const run::MetricRecord& record, absl::Time made_at);
  // As WorkerCore::Suspend().
  void Suspend(const std::string& reason);
  // Leaves the job with this reason, and ends with Cancelled.
  void Interrupt(const std::string& reason);
  // Called when what is under way in the group has to fail, on any thread, and
  // at once if that is so already: WorkerCore::WhyGroupIsOver(). Replaces the
  // last one; nullptr clears it, and then no call is in progress. Must not call
  // this object.
  void SetAbort(uint64_t group, std::function<void(const absl::Status&)> abort);

  const WorkerCore::Options& options() const { return options_.core; }

 private:
  // What is to be sent, in this order.
  struct Outbox {
    std::optional<size_t> look_at;  // The coordinator to be connected with.
    std::vector<Message> to_coordinator;
    std::shared_ptr<const View> view;  // To be followed.
    std::vector<ClientSend> to_shards;
  };

  WorkerLoop(Transport& to_coordinator, Transport& to_shard_threads,
             const Options& options);
  absl::Status ConnectTo(const std::string& coordinator);
  template <typename Event>
  void Handle(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    WorkerCore::Effects effects;
    event(core_, Now(), &effects);
    Take(&effects);
  }
  // Whoever has the turn calls this, and sends what comes of it.
  template <typename Event>
  void HandleInTurn(const Event& event) {
    const MutexLock lock(mutex_);
    Handle(event);
  }
  void Take(WorkerCore::Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerInspections() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return outbox_.look_at.has_value() || !outbox_.to_coordinator.empty() ||
           !outbox_.to_shards.empty() || outbox_.view != nullptr;
  }
  void AbortIfGroupIsOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The trainer thread needs something to go on, until `there`.
  template <typename There>
  void WaitUntil(MutexLock& lock, WorkerCore::Need need, const There& there)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!core_.ending().ok() || there()) return;
    core_.SetNeed(need, Now());
    need_ = need;
    while (core_.ending().ok() && !there()) WaitForChange(lock);
    EndWait();
    need_ = WorkerCore::Need::kNothing;
    core_.SetNeed(need_, Now());
  }

  // ---- The turn

  // Who drives the channels. The communication thread waits here until it may.
  struct Turn {
    bool IsFree() const { return driver == std::thread::id(); }
    bool IsOurs() const { return driver == std::this_thread::get_id(); }
    void Take() {
      driver = std::this_thread::get_id();
      comm_wanted = false;  // Whoever drives sends everything.
    }
    void GiveBack() {
      driver = std::thread::id();
      if (comm_rests || comm_wanted) changed.notify_one();
    }

    std::thread::id driver;     // Nobody: no thread.
    int64_t trainer_turns = 0;  // Turns in which the trainer thread waited.
    // The communication thread is to take the turn at once.
    bool comm_wanted = false;
    // The communication thread does nothing until the turn is free.
    bool comm_rests = false;
    bool told_news = false;  // Something has come for another thread.
    std::condition_variable changed;
  };
  // Sends what there is to be sent, here or on another thread. Lets go of the
  // mutex meanwhile.
  void SendSoon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The trainer thread waits until something may have changed, in a loop, with
  // EndWait() behind it. Lets go of the mutex meanwhile.
  void WaitForChange(MutexLock& lock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Communication thread.
  void Run();

  // Whoever has the turn calls these. Drive() returns when messages came, or it
  // is time for something, or another thread wants it to. False: it is of no
  // use any more.
  bool Drive();
  void SendAll();
  void ReceiveFromCoordinator();
  void ReceiveFromShardThreads();
  // What is to be tried comes with a message of the coordinator.
  void BeginTrial();
  void LookAtTrial();
  void TellHealth();
  void FollowServers(std::shared_ptr<const View> view);
  void Fail(const absl::Status& why);

  const Options options_;

  // Whoever has the turn uses these.
  absl::Time next_health_ = absl::InfinitePast();
  Incarnation incarnation_ = 0;  // As shard threads know this worker.
  Transport& to_coordinator_transport_;
  std::unique_ptr<Channel> coordinator_;
  Poller poller_;
  PeerLinks shard_threads_;  // Uses poller_.
  LinkTrial trial_;          // Uses poller_, while the job forms.

  Waker waker_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  WorkerCore core_ ABSL_GUARDED_BY(mutex_);
  ActionLine actions_ ABSL_GUARDED_BY(mutex_);
  Outbox outbox_ ABSL_GUARDED_BY(mutex_);
  std::optional<wire::TryLinks> try_links_ ABSL_GUARDED_BY(mutex_);
  Inspector inspector_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::optional<MemberCore::CallResult>> calls_
      ABSL_GUARDED_BY(mutex_);
  uint64_t abort_group_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void(const absl::Status&)> abort_ ABSL_GUARDED_BY(mutex_);
  // The tables of the trainer's step that it has not waited for yet.
  std::map<TableId, TableValues> tables_ ABSL_GUARDED_BY(mutex_);
  // What was answered to AskState().
  WorkerCore::Parameters state_ ABSL_GUARDED_BY(mutex_);
  // What the trainer thread waits for.
  WorkerCore::Need need_ ABSL_GUARDED_BY(mutex_) = WorkerCore::Need::kNothing;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  Turn turn_ ABSL_GUARDED_BY(mutex_);
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // Nobody can wait any more.

  std::thread thread_;
};

}  // namespace slackline
