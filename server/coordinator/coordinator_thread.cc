#include "server/coordinator/coordinator_thread.h"

#include <spdlog/spdlog.h>

#include "absl/time/clock.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<CoordinatorThread>> CoordinatorThread::Start(
    NetContext& context, const Options& options) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<RouterSocket> router,
                      RouterSocket::Create(context));
  SL_RETURN_IF_ERROR(router->Bind(options.endpoint).status());
  std::unique_ptr<RunFiles> files;
  if (!options.folder.empty()) {
    SL_ASSIGN_OR_RETURN(files, RunFiles::Create(options.folder));
  }
  std::unique_ptr<CoordinatorThread> thread(
      new CoordinatorThread(std::move(router), std::move(files), options));
  thread->thread_ = std::thread(&CoordinatorThread::Run, thread.get());
  return thread;
}

CoordinatorThread::CoordinatorThread(std::unique_ptr<RouterSocket> router,
                                     std::unique_ptr<RunFiles> files,
                                     const Options& options)
    : options_(options),
      router_(std::move(router)),
      files_(std::move(files)),
      core_(options.core) {}

CoordinatorThread::~CoordinatorThread() {
  stopping_.store(true);
  waker_.Wake();
  thread_.join();
}

void CoordinatorThread::Run() {
  Poller poller(Poller::Options{.spin_max = absl::ZeroDuration()});
  poller.Add(*router_);
  poller.Add(waker_);
  core_.Start(absl::Now());
  while (!core_.Over(absl::Now())) {
    const absl::Status waited = poller.Wait(core_.NextWakeup() - absl::Now());
    if (!waited.ok()) {
      spdlog::error("coordinator: {}", std::string(waited.message()));
      break;
    }
    waker_.Drain();
    CoordinatorCore::Effects effects;
    while (true) {
      absl::StatusOr<std::optional<RouterSocket::Incoming>> incoming =
          router_->Receive();
      if (!incoming.ok() || !incoming->has_value()) break;
      core_.OnMessage((*incoming)->from, (*incoming)->message, absl::Now(),
                      &effects);
    }
    core_.OnTick(absl::Now(), &effects);
    if (stopping_.load())
      core_.Fail("server 0, which hosts the coordinator, stops", absl::Now(),
                 &effects);
    Perform(&effects);
  }
  poller.Remove(*router_);
  if (files_ != nullptr && core_.state() == wire::FINISHED) {
    run::Summary summary = core_.Summary();
    summary.set_mode(options_.mode);
    summary.set_seed(options_.seed);
    if (const absl::Status written = files_->WriteSummary(summary);
        !written.ok()) {
      spdlog::error("coordinator: {}", std::string(written.message()));
    }
  }
}

void CoordinatorThread::Perform(CoordinatorCore::Effects* effects) {
  for (const std::string& line : effects->log)
    spdlog::info("coordinator: {}", line);
  for (const Outgoing& outgoing : effects->sends) {
    // Who is not connected asks again, or loses its lease.
    (void)router_->Send(outgoing.to, outgoing.message);
  }
  if (files_ == nullptr) return;
  for (const run::MoveRecord& record : effects->moves) {
    if (const absl::Status written = files_->AppendMove(record);
        !written.ok()) {
      spdlog::error("coordinator: {}", std::string(written.message()));
    }
  }
  for (const run::ModeRecord& record : effects->modes) {
    if (const absl::Status written = files_->AppendMode(record);
        !written.ok()) {
      spdlog::error("coordinator: {}", std::string(written.message()));
    }
  }
  for (const run::MetricRecord& record : effects->records) {
    if (const absl::Status written = files_->AppendMetric(record);
        !written.ok()) {
      spdlog::error("coordinator: {}", std::string(written.message()));
    }
  }
}

}  // namespace slackline
