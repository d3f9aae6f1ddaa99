#include "server/coordinator/coordinator_seat.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/metrics/refusals.h"
#include "common/process/join_request.h"
#include "common/status.h"
#include "common/thread_name.h"

namespace slackline {
namespace {

// Of who is to leave: so often nobody led, one look after the other. In that
// time every other server has looked, too.
constexpr int kLooksOfOthers = 4;

}  // namespace

CoordinatorSeat::CoordinatorSeat(Transport& transport, const Options& options)
    : transport_(transport), options_(options) {}

CoordinatorSeat::~CoordinatorSeat() { (void)Finish(); }

absl::Status CoordinatorSeat::Begin(CoordinatorThread::Keeping keeping) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<CoordinatorThread> coordinator,
                      CoordinatorThread::Start(transport_, options_.coordinator,
                                               std::move(keeping)));
  const MutexLock lock(mutex_);
  coordinator_ = std::move(coordinator);
  return absl::OkStatus();
}

void CoordinatorSeat::StandBy() {
  thread_ = std::thread(&CoordinatorSeat::Run, this);
}

bool CoordinatorSeat::Offer(const Server& server) {
  const MutexLock lock(mutex_);
  server_ = server;
  return coordinator_ != nullptr;
}

absl::Status CoordinatorSeat::failure() const {
  const MutexLock lock(mutex_);
  if (coordinator_ == nullptr || thread_.joinable()) return absl::OkStatus();
  return coordinator_->failure();
}

std::optional<wire::JobEnd> CoordinatorSeat::over() const {
  const MutexLock lock(mutex_);
  return coordinator_ == nullptr ? std::nullopt : coordinator_->over();
}

run::Refusals CoordinatorSeat::refused() const {
  const MutexLock lock(mutex_);
  run::Refusals refused = refused_;
  if (coordinator_ != nullptr) FoldRefusals(coordinator_->refused(), &refused);
  return refused;
}

void CoordinatorSeat::StopSaving() {
  const MutexLock lock(mutex_);
  if (coordinator_ != nullptr) coordinator_->StopSaving();
}

CoordinatorThread* CoordinatorSeat::EndStandingBy() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  const MutexLock lock(mutex_);
  return coordinator_.get();
}

void CoordinatorSeat::GiveUp() {
  const bool stands_by = thread_.joinable();
  CoordinatorThread* const coordinator = EndStandingBy();
  if (coordinator == nullptr) return;
  if (!stands_by) return (void)coordinator->Finish();
  spdlog::warn("this server leaves the coordinator to another one");
  coordinator->Abandon();
}

absl::Status CoordinatorSeat::Finish() {
  CoordinatorThread* const coordinator = EndStandingBy();
  // StopSaving() may still come.
  return coordinator == nullptr ? absl::OkStatus() : coordinator->Finish();
}

absl::Status CoordinatorSeat::JobEnd() const {
  const MutexLock lock(mutex_);
  return coordinator_->JobEnd();
}

void CoordinatorSeat::Run() {
  NameThisThread("stand-by");
  MutexLock lock(mutex_);
  while (!stopping_) {
    const bool is_over =
        coordinator_ != nullptr && !coordinator_->failure().ok();
    const bool may_come = coordinator_ == nullptr && server_.may_host;
    const Server server = server_;
    lock.Unlock();
    if (is_over) Leave();
    if (!may_come) free_looks_ = 0;
    if (may_come && IsItsTurn(server)) Say(TakeOver(server));
    lock.Lock();
    const auto next = SteadyDeadline(options_.look_every);
    while (!stopping_ && lock.WaitUntil(changed_, next)) {
    }
  }
}

bool CoordinatorSeat::IsItsTurn(const Server& server) {
  if (!server.leaves) return true;
  const absl::StatusOr<bool> led = IsLed(options_.keeping);
  free_looks_ = led.ok() && !*led ? free_looks_ + 1 : 0;
  return free_looks_ > kLooksOfOthers;
}

void CoordinatorSeat::Leave() {
  std::unique_ptr<CoordinatorThread> coordinator;
  {
    const MutexLock lock(mutex_);
    coordinator = std::move(coordinator_);
    FoldRefusals(coordinator->refused(), &refused_);
  }
  spdlog::warn(
      "coordinator: {}; it ends, this server goes on, and one that leads in "
      "etcd goes on with the job",
      std::string(coordinator->failure().message()));
}

absl::Status CoordinatorSeat::TakeOver(const Server& server) {
  SL_ASSIGN_OR_RETURN(std::optional<RecoveredJob> job,
                      TakeOverJob(options_.keeping));
  if (!job.has_value()) return absl::OkStatus();
  if (server.run != 0 && job->job->run != server.run) {
    return absl::FailedPreconditionError(
        "the job's state in etcd is of another run by now");
  }
  CoordinatorThread::Options options = options_.coordinator;
  GoOnWith(*job->job, &options.core);
  options.core.coordinator_may_return = true;
  options.core.host_has_joined = server.run != 0;
  options.folder_token = RandomToken();
  absl::StatusOr<std::unique_ptr<CoordinatorThread>> coordinator =
      CoordinatorThread::Start(transport_, options, std::move(job->keeping));
  if (!coordinator.ok()) {
    return Annotate(
        coordinator.status(),
        absl::StrCat("cannot go on as the coordinator at ", options.endpoint));
  }
  spdlog::warn(
      "no coordinator leads the job any more: server {} goes on in its place, "
      "at {}",
      options.core.host_server, options.endpoint);
  const MutexLock lock(mutex_);
  coordinator_ = *std::move(coordinator);
  return absl::OkStatus();
}

void CoordinatorSeat::Say(const absl::Status& problem) {
  const std::string text(problem.message());
  if (std::exchange(said_, text) == text || text.empty()) return;
  spdlog::warn("coordinator: {}; this is tried again", text);
}

}  // namespace slackline
