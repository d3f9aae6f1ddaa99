// ServerProgram: what one process of a server is made of, from the config to
// the end of its part in the job: shard threads, the control loop, and the seat
// for a coordinator.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "common/config/cluster_config.h"
#include "common/health/health_page.h"
#include "common/net/transport.h"
#include "common/process/member_program.h"
#include "common/process/stop_signal.h"
#include "common/time/time_source.h"
#include "common/timeline/recorder.h"
#include "proto/cluster.pb.h"
#include "server/control_loop.h"
#include "server/coordinator/coordinator_keeping.h"
#include "server/coordinator/coordinator_seat.h"
#include "server/coordinator/coordinator_thread.h"
#include "server/cut_parts.h"
#include "server/shard/shard_thread.h"

namespace slackline {

// The process of the config that the flags name; with --add the newcomer, which
// is like the last one of the config but for what the flags say.
ServerProcess SelfOf(const MemberFlags& flags,
                     const config::ClusterConfig& config);

// Names that the server listens at, and in server 0 the coordinator.
std::vector<std::string> OwnNames(const MemberFlags& flags,
                                  const config::ClusterConfig& config);

class ServerProgram {
 public:
  // All arguments outlive it. `transport` may be used by several threads.
  ServerProgram(const MemberFlags& flags, const config::ClusterConfig& config,
                const TimeSource& time, Transport& transport);
  ServerProgram(const ServerProgram&) = delete;
  ServerProgram& operator=(const ServerProgram&) = delete;

  // Until the server's part in the job has ended, and that of a coordinator
  // here; stop signals end it, too. Everything that can be wrong at the start
  // is found before the first message. Call once.
  absl::Status Run();
  // The server tells the coordinator itself what goes wrong: whatever Run()
  // returns, nobody else need tell.
  bool joins() const { return joins_; }

 private:
  // The steps of Run(), in their order.
  absl::Status ShowHealth();
  absl::Status FindAddresses();
  absl::Status LoadDelays();
  absl::Status LookForJob();
  absl::Status OpenCheckpoint();
  absl::Status TakeSeat();
  void SayHowItGoesOn() const;
  absl::Status StartShardThreads();
  absl::Status StartControlLoop();
  absl::Status RunUntilEnd();

  // Whether the coordinator of a job that begins is here.
  bool begins_job() const { return flags_.index == 0 && !is_led_; }
  // The job that server 0 has found was over before this process came.
  bool is_over() const { return begun_.how == Beginning::kOver; }
  absl::StatusOr<CoordinatorThread::Options> CoordinatorHere();
  ShardThread::Options ShardThreadOptions(int thread, const StaleRules& stale);
  wire::JoinRequest Join() const;
  ControlLoop::Options ControlOptions();
  void ConnectSeat(ControlLoop::Options* control);
  absl::Status ShardThreadFailure() const;
  void OnSignal(SignalWish wish, const std::string& reason);

  const MemberFlags& flags_;
  const config::ClusterConfig& config_;
  const TimeSource& time_;
  Transport& transport_;
  const ServerProcess self_;
  bool joins_ = false;

  // What is found at the start. Members below use those above, and end first.
  std::unique_ptr<HealthPage> health_;  // nullptr: there is none.
  std::string address_;                 // Of this server.
  KeepingOptions keeping_;
  std::shared_ptr<const DelaySource> delays_;  // nullptr: none are given.
  TimelineRecorder timeline_;                  // Of all threads below.
  bool is_led_ = false;                        // A job that is there already.
  BegunJob begun_;                             // Of server 0 alone.
  // The checkpoint that the job begins with; nullptr: none.
  std::shared_ptr<const StoredCheckpoint> stored_;

  std::unique_ptr<CoordinatorSeat> seat_;  // nullptr: none can be here.
  // Shard threads give parts of cuts to be written, and the loop is told of
  // them: so the threads end first, and the loop last. It is there by then,
  // since it gives the views that have cuts.
  std::unique_ptr<ControlLoop> loop_;
  CutParts cut_parts_;
  std::vector<std::unique_ptr<ShardThread>> shard_threads_;
};

}  // namespace slackline
