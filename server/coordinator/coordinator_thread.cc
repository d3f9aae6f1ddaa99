#include "server/coordinator/coordinator_thread.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/status.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<CoordinatorThread>> CoordinatorThread::Start(
    Transport& transport, const Options& options) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, transport.Listen({}));
  SL_RETURN_IF_ERROR(listener->Bind(options.endpoint).status());
  std::unique_ptr<RunFiles> files;
  if (!options.folder.empty()) {
    SL_ASSIGN_OR_RETURN(files, RunFiles::Create(options.folder));
  }
  std::unique_ptr<CoordinatorThread> thread(
      new CoordinatorThread(std::move(listener), std::move(files), options));
  thread->thread_ = std::thread(&CoordinatorThread::Run, thread.get());
  return thread;
}

CoordinatorThread::CoordinatorThread(std::unique_ptr<Listener> listener,
                                     std::unique_ptr<RunFiles> files,
                                     const Options& options)
    : options_(options),
      listener_(std::move(listener)),
      files_(std::move(files)),
      core_(options.core) {}

CoordinatorThread::~CoordinatorThread() { (void)Finish(); }

absl::Status CoordinatorThread::Finish() {
  stopping_.store(true);
  waker_.Wake();
  if (thread_.joinable()) thread_.join();
  return saved_;
}

void CoordinatorThread::StopSaving() {
  saving_.store(false);
  waker_.Wake();
}

void CoordinatorThread::Run() {
  Poller poller(Poller::Options{.spin_max = absl::ZeroDuration()});
  poller.Add(*listener_);
  poller.Add(waker_);
  core_.Start(options_.time.Now());
  while (!core_.Over(options_.time.Now())) {
    const absl::Status waited =
        poller.Wait(core_.NextWakeup() - options_.time.Now());
    if (!waited.ok()) {
      spdlog::error("coordinator: {}", std::string(waited.message()));
      break;
    }
    waker_.Drain();
    CoordinatorCore::Effects effects;
    while (true) {
      absl::StatusOr<std::optional<Listener::Incoming>> incoming =
          listener_->Receive();
      if (!incoming.ok() || !incoming->has_value()) break;
      core_.OnMessage((*incoming)->from, (*incoming)->message,
                      options_.time.Now(), &effects);
    }
    core_.OnTick(options_.time.Now(), &effects);
    if (stopping_.load())
      core_.Fail("server 0, which hosts the coordinator, stops",
                 options_.time.Now(), &effects);
    Perform(&effects);
  }
  poller.Remove(*listener_);
  if (files_ != nullptr && core_.view().has_end()) WriteSummary(&poller);
}

// There may be room on the disk again.
void CoordinatorThread::WriteSummary(Poller* poller) {
  constexpr absl::Duration kTryEvery = absl::Seconds(1);
  // What has failed anyway is not kept from ending.
  const absl::Time give_up =
      options_.time.Now() + (core_.state() == wire::FINISHED
                                 ? options_.save_timeout
                                 : absl::ZeroDuration());
  for (int tries = 0;; ++tries) {
    run::Summary summary = core_.Summary();
    summary.set_mode(options_.mode);
    summary.set_seed(options_.seed);
    summary.set_files_incomplete(files_->WhatIsMissing());
    const absl::Status written = files_->WriteSummary(summary);
    if (written.ok()) return;
    const absl::Time now = options_.time.Now();
    if (now >= give_up || !saving_.load()) {
      saved_ = Annotate(
          written, absl::StrCat("the job has ended, but its summary could not "
                                "be written in ",
                                tries + 1, tries == 0 ? " try" : " tries"));
      return;
    }
    if (tries == 0) {
      spdlog::error(
          "coordinator: {}; this is tried again for {} "
          "(limits {{ save_timeout_ms: ... }})",
          std::string(written.message()),
          absl::FormatDuration(options_.save_timeout));
    }
    const absl::Time next = std::min(now + kTryEvery, give_up);
    while (saving_.load() && options_.time.Now() < next) {
      if (!poller->Wait(next - options_.time.Now()).ok()) break;
      waker_.Drain();
    }
  }
}

void CoordinatorThread::Perform(CoordinatorCore::Effects* effects) {
  for (const std::string& line : effects->log)
    spdlog::info("coordinator: {}", line);
  for (const std::string& line : effects->warnings)
    spdlog::warn("coordinator: {}", line);
  for (const Outgoing& outgoing : effects->sends) {
    // Who is not connected asks again, or loses its lease.
    (void)listener_->Send(outgoing.to, outgoing.message);
  }
  if (files_ == nullptr) return;
  const auto say = [](const absl::Status& written) {
    if (!written.ok())
      spdlog::error("coordinator: {}", std::string(written.message()));
  };
  for (const run::MoveRecord& record : effects->moves)
    say(files_->AppendMove(record));
  for (const run::ModeRecord& record : effects->modes)
    say(files_->AppendMode(record));
  for (const run::MetricRecord& record : effects->records)
    say(files_->AppendMetric(record));
}

}  // namespace slackline
