// The program around a Session: flags, config, log, signals, transports. What
// slackline_worker is, and what a program with a model of its own is.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/cluster_config.h"
#include "common/keys/key_watch.h"
#include "common/mutex.h"
#include "common/net/delayed/delayed_transport.h"
#include "common/net/process/process_transport.h"
#include "common/process/member_program.h"
#include "common/process/stop_signal.h"
#include "proto/cluster.pb.h"
#include "worker/session/session.h"

namespace slackline {

// A session with servers here and elsewhere, with all that it needs.
class ConnectedSession {
 public:
  // The link of worker { conditions } is between the session and the servers.
  // `transports` outlives it. Errors as of Session::Create().
  static absl::StatusOr<std::unique_ptr<ConnectedSession>> Create(
      const Session::Options& options, const WorkerProcess& self,
      ProcessTransport& transports, ParameterMemory* parameters);

  Session& session() { return *session_; }

 private:
  ConnectedSession() = default;

  std::optional<DelayedTransport> delayed_;
  std::unique_ptr<Session> session_;
};

// Warns if the config has this worker on another host.
void WarnOfAnotherHost(const WorkerProcess& self);

// This process's place in the job.
class WorkerPlace {
 public:
  // `keys`: nullopt with insecure: true.
  // `health` as in Session::Options.
  WorkerPlace(const MemberFlags& flags, const config::ClusterConfig& config,
              const TimeSource& time, HealthBoard* health,
              const std::optional<KeySource>& keys);

  const config::ClusterConfig& config() const { return config_; }
  const WorkerProcess& self() const { return workers_[index_]; }
  int workers() const { return static_cast<int>(workers_.size()); }
  const std::string& data_dir() const { return flags_.data_dir; }
  ProcessTransport& transports() { return transports_; }

  // Has `train` run a session with these parameters, and returns what it
  // returns. SIGINT and SIGTERM interrupt the session; those that came before
  // do it at once. In a job with checkpoints the first SIGTERM suspends it.
  struct Work {
    LearningRateSchedule::JobLength length;
    int64_t batch_size = 1;
    std::string data;
    // As in Session::Options.
    std::string data_hash = {};
    std::optional<ElasticSampling> elastic = {};
    bool step_by_table = false;
    bool keeps_state = false;
  };
  absl::Status Train(const Work& work, ParameterMemory* parameters,
                     const std::function<absl::Status(Session&)>& train);
  // Train() has opened a session: from then on it tells the coordinator what
  // goes wrong.
  bool joins() const { return joins_; }

 private:
  // The session that a signal is for.
  class Interruptible {
   public:
    void Set(Session* session);
    void Suspend(const std::string& reason);
    void Interrupt(const std::string& reason);

   private:
    Mutex mutex_;
    Session* session_ ABSL_GUARDED_BY(mutex_) = nullptr;
    std::string reason_ ABSL_GUARDED_BY(mutex_);
  };

  const MemberFlags& flags_;
  const config::ClusterConfig& config_;
  const TimeSource& time_;
  HealthBoard* const health_;
  ProcessTransport transports_;
  bool joins_ = false;
  const std::vector<WorkerProcess> workers_;
  const size_t index_;
  Interruptible interruptible_;
  SignalWishes wishes_;  // Of stop_signal_'s thread.
  const StopSignal stop_signal_;
};

struct WorkerProgram {
  std::string description;    // What --help begins with.
  std::string data_dir_help;  // Of --data-dir; empty: there is no such flag.
  std::function<absl::Status(WorkerPlace&)> run;
};

// The whole of main(), as RunMemberProgram().
int RunWorkerProgram(const WorkerProgram& program, int argc, char** argv);

}  // namespace slackline
