// ControlLoop: the driver of the ServerCore. Owns the control thread's channel
// to the coordinator, and the listener by which the shard threads tell it their
// statistics. What a shard thread tells costs it the same for any number of
// them. Decides nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/health/health_board.h"
#include "common/inspection/inspector.h"
#include "common/mutex.h"
#include "common/net/link_trial.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "common/time/time_source.h"
#include "proto/cluster.pb.h"
#include "server/control/server_core.h"
#include "server/io_load.h"

namespace slackline {

class ControlLoop {
 public:
  struct Options {
    ServerCore::Options core;  // Its `threads` are those below.
    TimeSource time;
    // How shard threads reach each other.
    config::Limits::Transport via = config::Limits::AUTO;
    int shard_threads = 1;  // Of this process, made with the same transport.
    // Gives a view to all shard threads: ShardThread::Follow().
    std::function<void(const std::shared_ptr<const View>&)> give_view;
    // The error with which a thread of this server has stopped; OK as long as
    // none has. Looked at whenever statistics are collected.
    std::function<absl::Status()> thread_failure;
    // Of the seat for a coordinator in this process; nullptr: there is none.
    // Why its coordinator has ended, and the process has to: OK as long as it
    // has not. Nobody is left then to be told that this server leaves: the loop
    // ends with that at once.
    std::function<absl::Status()> coordinator_failure;
    // How the job has ended, once the coordinator in this process has told it
    // and is over: ServerCore::OnCoordinatorOver().
    std::function<std::optional<wire::JobEnd>()> coordinator_over;
    // Told after each event whether a coordinator may come here. Returns
    // whether one is here.
    std::function<bool(const ServerCore::Candidacy& candidacy)> offer_seat;
    // Whom coordinators in this process have refused, since it began; nullptr:
    // none can be here.
    std::function<run::Refusals()> coordinator_refused;
    std::string trace_file;  // Empty: no trace.
    // Is told how this server is; nullptr: nobody asks. Outlives the loop.
    HealthBoard* health = nullptr;
    // What users may ask this process.
    Inspector::Sources inspection = {};
  };
  static absl::StatusOr<std::unique_ptr<ControlLoop>> Create(
      Transport& transport, const Options& options);

  // Runs until the server's part in the job has ended (ServerCore::End). OK if
  // the job FINISHED or the server has left it; else the sentence that says why
  // not.
  absl::Status Run();

  // After Run(): it has ended before the job, and with an error.
  bool gave_up() const {
    return !end_.has_value() || end_->kind == ServerCore::End::Kind::kGaveUp;
  }

  // Any thread: as of ServerCore.
  void Retire(const std::string& reason);
  // Any thread: the process is asked to end.
  void Interrupt(const std::string& reason);
  // Any thread: ServerCore::OnCutPart().
  void CutPartDone(wire::CutPart part);

 private:
  ControlLoop(Transport& transport, const Options& options,
              std::unique_ptr<Listener> shard_threads);
  absl::Status ConnectTo(const std::string& coordinator);
  // Waits, and hands the core everything that has arrived.
  absl::Status RunOnce();
  absl::Status ReceiveFromShardThreads();
  // Of a job that forms: whom this server can connect to.
  void TryLinks();
  void OfferSeat();
  void TellHealth();
  void AnswerInspections();
  void TakeCutParts();
  void TakeRetirement();
  absl::Status Perform();
  void SendToShardThreads(const Message& message);

  const Options options_;
  Transport& transport_;
  ServerCore core_;
  ServerCore::Effects effects_;  // Not performed yet.
  std::optional<ServerCore::End> end_;
  std::unique_ptr<Channel> coordinator_;
  std::unique_ptr<Listener> shard_threads_;
  Poller poller_;
  LinkTrial trial_;  // Uses poller_.
  Inspector inspector_;
  Waker waker_;
  std::ofstream trace_;
  IoLoad io_load_;
  // When each shard thread has last told its statistics, for which it is asked
  // all the time.
  std::vector<absl::Time> answered_at_;
  std::atomic<bool> interrupted_{false};
  std::string interrupt_reason_;  // Written before interrupted_, read after.
  Mutex retire_mutex_;
  // Why; the core has not been told yet.
  std::optional<std::string> retire_ ABSL_GUARDED_BY(retire_mutex_);
  Mutex cut_parts_mutex_;
  // The core has not been told yet.
  std::vector<wire::CutPart> cut_parts_ ABSL_GUARDED_BY(cut_parts_mutex_);
};

}  // namespace slackline
