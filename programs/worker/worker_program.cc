#include "programs/worker/worker_program.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/health/health_page.h"
#include "common/inspection/stack_taker.h"
#include "common/process/cannot_join.h"
#include "common/process/join_request.h"
#include "common/process/logging.h"
#include "common/status.h"
#include "job/job_config.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<ConnectedSession>> ConnectedSession::Create(
    const Session::Options& options, const WorkerProcess& self,
    ProcessTransport& transports, ParameterMemory* parameters) {
  std::unique_ptr<ConnectedSession> connected(new ConnectedSession());
  if (const auto link = LinkOf(self.conditions); link.has_value()) {
    spdlog::info("traffic with the servers has to pass a link: {}",
                 self.conditions.link().ShortDebugString());
    connected->delayed_.emplace(transports.all(), *link, options.time);
  }
  Transport& to_coordinator = transports.all();
  SL_ASSIGN_OR_RETURN(
      connected->session_,
      Session::Create(options, parameters, to_coordinator,
                      connected->delayed_.has_value()
                          ? static_cast<Transport&>(*connected->delayed_)
                          : to_coordinator));
  return connected;
}

void WarnOfAnotherHost(const WorkerProcess& self) {
  const std::string why = WhyOnAnotherHost(absl::StrCat("worker ", self.rank),
                                           self.host, self.listen);
  if (!why.empty()) spdlog::warn("{}", why);
}

void WorkerPlace::Interruptible::Set(Session* session) {
  const MutexLock lock(mutex_);
  session_ = session;
  if (session_ != nullptr && !reason_.empty()) session_->Interrupt(reason_);
}

void WorkerPlace::Interruptible::Suspend(const std::string& reason) {
  const MutexLock lock(mutex_);
  if (session_ != nullptr) return session_->Suspend(reason);
  reason_ = reason;
}

void WorkerPlace::Interruptible::Interrupt(const std::string& reason) {
  const MutexLock lock(mutex_);
  reason_ = reason;
  if (session_ != nullptr) session_->Interrupt(reason);
}

WorkerPlace::WorkerPlace(const MemberFlags& flags,
                         const config::ClusterConfig& config,
                         const TimeSource& time, HealthBoard* health,
                         const std::optional<KeySource>& keys)
    : flags_(flags),
      config_(config),
      time_(time),
      health_(health),
      transports_(keys, LogOfKeys()),
      workers_(WorkerProcesses(config)),
      index_(static_cast<size_t>(flags.index)),
      wishes_(WishesOfSignals(config)),
      stop_signal_([this](int signal) {
        const std::string reason =
            InterruptedBy("worker", flags_.index, signal);
        const SignalWish wish = wishes_.Of(signal, time_.Now());
        if (wish == SignalWish::kNothing) return;
        if (wish == SignalWish::kSuspend) return interruptible_.Suspend(reason);
        interruptible_.Interrupt(reason);
      }) {}

absl::Status WorkerPlace::Train(
    const Work& work, ParameterMemory* parameters,
    const std::function<absl::Status(Session&)>& train) {
  Inspector::Sources inspection;
  inspection.stacks = StacksBy(std::make_shared<StackTaker>(time_));
  SL_ASSIGN_OR_RETURN(
      const std::unique_ptr<ConnectedSession> connected,
      ConnectedSession::Create({.config = config_,
                                .rank = Rank{self().rank},
                                .time = time_,
                                .out = flags_.out,
                                .length = work.length,
                                .batch_size = work.batch_size,
                                .data = work.data,
                                .data_hash = work.data_hash,
                                .elastic = work.elastic,
                                .step_by_table = work.step_by_table,
                                .keeps_state = work.keeps_state,
                                .health = health_,
                                .inspection = inspection,
                                .ring = [this] { return transports_.ring(); }},
                               self(), transports_, parameters));
  joins_ = true;
  interruptible_.Set(&connected->session());
  absl::Status trained = train(connected->session());
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
       .run = [&](const MemberFlags& flags, const config::ClusterConfig& config,
                  const TimeSource& time) -> absl::Status {
         const absl::StatusOr<std::unique_ptr<HealthPage>> health =
             HealthPage::Start(config, {.is_server = false,
                                        .index = flags.index,
                                        .port_given = flags.health_port,
                                        .time = time});
         SL_ASSIGN_OR_RETURN(
             const std::optional<KeySource> keys,
             KeysHere(config, {Role::kWorker, Rank{flags.index}}, flags.key));
         WorkerPlace place(
             flags, config, time,
             health.ok() && *health != nullptr ? (*health)->board() : nullptr,
             keys);
         WarnOfAnotherHost(place.self());
         const absl::Status worked =
             health.ok() ? program.run(place) : health.status();
         // A worker that was interrupted ends at once.
         if (!worked.ok() && !absl::IsCancelled(worked) && !place.joins()) {
           TellCannotJoin(place.transports().network(),
                          wire::JoinRequest::WORKER, flags.index,
                          place.self().host, config, worked);
         }
         return worked;
       }},
      argc, argv);
}

}  // namespace slackline
