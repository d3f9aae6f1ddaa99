#include "server/coordinator/coordinator_thread.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/checkpoint/checkpoint_folder.h"
#include "common/status.h"

namespace slackline {
namespace {

// The run goes on in the folder in which it was.
bool GoesOnThere(const CoordinatorCore::Options& options) {
  namespace fs = std::filesystem;
  if (options.resume == nullptr || options.checkpoint_root.empty())
    return false;
  std::error_code error;
  const fs::path folder = fs::canonical(options.resume_folder, error);
  return !error &&
         fs::equivalent(folder.parent_path(), options.checkpoint_root, error) &&
         !error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorThread>> CoordinatorThread::Start(
    Transport& transport, const Options& options) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, transport.Listen({}));
  SL_RETURN_IF_ERROR(listener->Bind(options.endpoint).status());
  std::unique_ptr<RunFiles> files;
  if (!options.folder.empty()) {
    const bool goes_on = GoesOnThere(options.core);
    if (goes_on) {
      SL_RETURN_IF_ERROR(
          DropRecordsAfter(options.folder, *options.core.resume));
    }
    SL_ASSIGN_OR_RETURN(
        files, RunFiles::Create(options.folder,
                                goes_on ? RunFiles::Earlier::kKept
                                        : RunFiles::Earlier::kDropped));
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
      core_(options.core) {
  if (options.core.checkpoint_root.empty()) return;
  checkpoints_ = std::make_unique<CheckpointThread>(
      CheckpointThread::Options{.root = options.core.checkpoint_root,
                                .run = options.core.run,
                                .keep = options.core.checkpoint.keep(),
                                .on_result = [this] { waker_.Wake(); }});
}

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
    TakeCheckpoints(&effects);
    core_.OnTick(options_.time.Now(), &effects);
    if (stopping_.load())
      core_.Fail("server 0, which hosts the coordinator, stops",
                 options_.time.Now(), &effects);
    Perform(&effects);
  }
  if (checkpoints_ != nullptr) {
    // What is on the disk by now becomes a checkpoint; the job has ended. Parts
    // of one that was given up may have come since then.
    checkpoints_->Finish();
    CoordinatorCore::Effects effects;
    TakeCheckpoints(&effects);
    Perform(&effects);
    RemovePartial(options_.core.checkpoint_root, options_.core.run,
                  core_.view().cut().number());
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

void CoordinatorThread::TakeCheckpoints(CoordinatorCore::Effects* effects) {
  if (checkpoints_ == nullptr) return;
  for (const CheckpointThread::Result& result : checkpoints_->TakeResults())
    core_.OnCheckpoint(result.cut, result.folder, options_.time.Now(), effects);
}

void CoordinatorThread::Perform(CoordinatorCore::Effects* effects) {
  // Without a folder for checkpoints the core begins none.
  if (checkpoints_ != nullptr && effects->give_up.has_value()) {
    checkpoints_->Remove(*effects->give_up);
  }
  if (checkpoints_ != nullptr && effects->complete.has_value()) {
    checkpoints_->Complete(effects->complete->cut,
                           std::move(effects->complete->manifest));
  }
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
