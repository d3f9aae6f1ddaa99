#include "worker/session/worker_program.h"

#include <spdlog/spdlog.h>

#include <optional>

#include "common/net/delayed/delayed_transport.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/status.h"
#include "job/job_config.h"

namespace slackline {

void WorkerPlace::Interruptible::Set(Session* session) {
  const MutexLock lock(mutex_);
  session_ = session;
  if (session_ != nullptr && !reason_.empty()) session_->Interrupt(reason_);
}

void WorkerPlace::Interruptible::Interrupt(const std::string& reason) {
  const MutexLock lock(mutex_);
  reason_ = reason;
  if (session_ != nullptr) session_->Interrupt(reason);
}

WorkerPlace::WorkerPlace(const MemberFlags& flags,
                         const config::ClusterConfig& config,
                         const TimeSource& time)
    : flags_(flags),
      config_(config),
      time_(time),
      workers_(WorkerProcesses(config)),
      index_(static_cast<size_t>(flags.index)),
      stop_signal_([this](int signal) {
        interruptible_.Interrupt(InterruptedBy("worker", flags_.index, signal));
      }) {}

absl::Status WorkerPlace::Train(
    const Work& work, ParameterMemory* parameters,
    const std::function<absl::Status(Session&)>& train) {
  ZmqTransport transport;
  const std::optional<LinkModel> link = LinkOf(self().conditions);
  std::optional<DelayedTransport> delayed;
  if (link.has_value()) {
    spdlog::info("traffic with the servers has to pass a link: {}",
                 self().conditions.link().ShortDebugString());
    delayed.emplace(transport, *link, time_);
  }
  SL_ASSIGN_OR_RETURN(
      const std::unique_ptr<Session> session,
      Session::Create({.config = config_,
                       .rank = Rank{self().rank},
                       .time = time_,
                       .out = flags_.out,
                       .length = work.length,
                       .batch_size = work.batch_size,
                       .data = work.data},
                      parameters, transport,
                      delayed ? static_cast<Transport&>(*delayed) : transport));
  interruptible_.Set(session.get());
  absl::Status trained = train(*session);
  interruptible_.Set(nullptr);
  return trained;
}

int RunWorkerProgram(const WorkerProgram& program, int argc, char** argv) {
  return RunMemberProgram(
      {.role = "worker",
       .description = program.description,
       .out_help = "Folder for the final model; none: not written",
       .data_dir_help = program.data_dir_help,
       .environment = true,
       .config_parts = kJobConfigParts,
       .count =
           [](const config::ClusterConfig& config) {
             return static_cast<int>(WorkerProcesses(config).size());
           },
       .run =
           [&](const MemberFlags& flags, const config::ClusterConfig& config,
               const TimeSource& time) {
             WorkerPlace place(flags, config, time);
             return program.run(place);
           }},
      argc, argv);
}

}  // namespace slackline
