#include "server/coordinator/coordinator_thread.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/best_checkpoint.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/membership/end_status.h"
#include "common/status.h"
#include "common/thread_name.h"
#include "common/timeline/event_names.h"

namespace slackline {
namespace {

// Of the coordinator's state; its value is a coordinator::FilesState.
constexpr char kFilesKey[] = "files";
constexpr absl::Duration kWatchEvery = absl::Seconds(1);

// The files of the run, and which runs the folder has records of.
absl::StatusOr<std::unique_ptr<RunFiles>> OpenFiles(
    const CoordinatorThread::Options& options, const CoordinatorState& state) {
  const checkpoint::Manifest* const resume = options.core.resume.get();
  const RunFiles::Origin origin = {
      .run = options.core.run,
      .goes_on_from = resume == nullptr ? 0 : resume->run(),
      .folder = options.folder_token,
      .has_checkpoint = resume != nullptr};
  if (state.empty()) {
    absl::StatusOr<std::unique_ptr<RunFiles>> files =
        RunFiles::Create(options.folder, origin);
    if (files.ok() && !(*files)->replaced().empty()) {
      spdlog::warn("coordinator: what an earlier run had left in {} is in {}",
                   options.folder, (*files)->replaced());
    }
    return files;
  }
  coordinator::FilesState kept;
  const auto found = state.find(kFilesKey);
  if (found != state.end() && !kept.ParseFromString(found->second)) {
    return absl::DataLossError(
        absl::StrCat("the coordinator's state: key ", kFilesKey, " is broken"));
  }
  absl::StatusOr<std::unique_ptr<RunFiles>> files =
      RunFiles::GoOn(options.folder, origin, kept);
  if (!files.ok()) return files;
  if (const std::string missing = (*files)->WhatIsMissing(); !missing.empty())
    spdlog::warn("coordinator: {}", missing);
  return files;
}

// What earlier runs have left in the folder of the checkpoints: the best one,
// to be kept, or a reason to keep none.
void TakeBestCheckpoint(CoordinatorCore::Options* options) {
  if (!options->config.checkpoint().has_best_by() ||
      options->checkpoint_root.empty())
    return;
  absl::StatusOr<run::BestCheckpoint> best =
      ReadBestOf(options->checkpoint_root, CoordinatorCore::LineageOf(*options),
                 options->config.checkpoint().best_by());
  if (best.ok()) {
    options->best_checkpoint = *std::move(best);
  } else if (absl::IsFailedPrecondition(best.status())) {
    spdlog::warn("coordinator: {}; no best checkpoint is kept",
                 std::string(best.status().message()));
    options->keeps_best = false;
  } else if (!absl::IsNotFound(best.status())) {
    spdlog::warn("coordinator: {}; the best evaluation is sought anew",
                 std::string(best.status().message()));
  }
}

// What earlier runs were writing when they ended: the one that took the
// checkpoint, and those whose records are in the folder, which may have taken
// none.
void RemoveRemains(const CoordinatorThread::Options& options,
                   const std::vector<uint64_t>& runs_in_folder) {
  const CoordinatorCore::Options& core = options.core;
  if (core.checkpoint_root.empty()) return;
  std::vector<uint64_t> runs = runs_in_folder;
  if (core.resume != nullptr) runs.push_back(core.resume->run());
  for (const uint64_t run : runs) {
    if (run != core.run) {
      RemovePartial(core.checkpoint_root, run,
                    std::numeric_limits<int32_t>::max());
    }
  }
}

// Which steps of the run that took the checkpoint a job does not do anew that
// begins as its view says: each worker's own, where it goes on from them.
LastSteps LastStepsBefore(const checkpoint::Manifest& manifest,
                          const wire::View& view) {
  std::map<int32_t, Clock> beginnings;
  for (const wire::WorkerMember& worker : view.worker())
    beginnings[worker.rank()] = worker.begins_at();
  LastSteps last = {.all = manifest.clock()};
  for (const checkpoint::WorkerClock& worker : manifest.worker()) {
    const auto begins = beginnings.find(worker.rank());
    if (begins != beginnings.end() && begins->second == worker.clock())
      last.own[worker.rank()] = worker.clock();
  }
  return last;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorThread>> CoordinatorThread::Start(
    Transport& transport, const Options& given, Keeping keeping) {
  Options options = given;
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, transport.Listen({}));
  SL_RETURN_IF_ERROR(listener->Bind(options.endpoint).status());
  std::unique_ptr<RunFiles> files;
  std::vector<uint64_t> runs;
  if (!options.folder.empty()) {
    SL_ASSIGN_OR_RETURN(runs, RunsIn(options.folder));
    SL_ASSIGN_OR_RETURN(files, OpenFiles(options, keeping.state));
  }
  RemoveRemains(options, runs);
  TakeBestCheckpoint(&options.core);
  std::unique_ptr<CoordinatorThread> thread(new CoordinatorThread(
      std::move(listener), std::move(files), options, std::move(keeping)));
  SL_RETURN_IF_ERROR(thread->Begin());
  thread->thread_ = std::thread(&CoordinatorThread::Run, thread.get());
  return thread;
}

absl::Status CoordinatorThread::Begin() {
  const CoordinatorState state = std::exchange(keeping_.state, {});
  if (state.empty()) {
    core_.Start(options_.time.Now());
    return absl::OkStatus();
  }
  if (const auto files = state.find(kFilesKey); files != state.end())
    files_kept_ = files->second;
  SL_RETURN_IF_ERROR(
      Annotate(core_.Recover(state, options_.time.Now(), &recovered_),
               "the coordinator's state"));
  if (files_ == nullptr) return absl::OkStatus();
  // One of a job that runs is of somebody who has given it up.
  if (!core_.view().has_end()) files_->RemoveSummary();
  has_summary_ = files_->HasSummary();
  return absl::OkStatus();
}

CoordinatorThread::CoordinatorThread(std::unique_ptr<Listener> listener,
                                     std::unique_ptr<RunFiles> files,
                                     const Options& options, Keeping keeping)
    : options_(options),
      listener_(std::move(listener)),
      files_(std::move(files)),
      keeping_(std::move(keeping)),
      keeps_state_(keeping_.store != nullptr),
      core_(options.core) {
  if (options.core.checkpoint_root.empty()) return;
  checkpoints_ = std::make_unique<CheckpointThread>(CheckpointThread::Options{
      .root = options.core.checkpoint_root,
      .run = options.core.run,
      .keep = options.core.config.checkpoint().keep(),
      .lineage = CoordinatorCore::LineageOf(options.core),
      .best = options.core.best_checkpoint,
      .leads = keeping_.store == nullptr ? [] { return true; }
                                         : keeping_.store->LeadCheck(),
      .on_news = [this] { waker_.Wake(); }});
}

CoordinatorThread::~CoordinatorThread() { (void)Finish(); }

absl::Status CoordinatorThread::Finish() {
  stopping_.store(true);
  waker_.Wake();
  if (thread_.joinable()) thread_.join();
  return failure_.ok() ? saved_ : failure_;
}

void CoordinatorThread::Abandon() {
  abandoned_.store(true);
  (void)Finish();
}

absl::Status CoordinatorThread::failure() const {
  return failed_.load(std::memory_order_acquire) ? failure_ : absl::OkStatus();
}

std::optional<wire::JobEnd> CoordinatorThread::over() const {
  if (!over_.load(std::memory_order_acquire)) return std::nullopt;
  return end_;
}

absl::Status CoordinatorThread::JobEnd() const {
  return core_.state() == wire::FINISHED
             ? absl::OkStatus()
             : EndStatus(absl::StatusCode::kAborted, core_.view().end());
}

void CoordinatorThread::StopSaving() {
  stops_saving_.fetch_add(1);
  waker_.Wake();
}

void CoordinatorThread::Run() {
  NameThisThread("coordinator");
  Lead();
  if (!options_.watch) return;
  // Another one tells how a job stands that goes on.
  if (abandoned_.load() || failed_.load()) return options_.watch(nullptr);
  next_watch_ = absl::InfinitePast();
  TellWatch();
}

void CoordinatorThread::Lead() {
  Poller poller(Poller::Options{.spin_max = absl::ZeroDuration()});
  poller.Add(*listener_);
  poller.Add(waker_);
  if (!Perform(&recovered_)) return;
  while (!core_.Over(options_.time.Now())) {
    const absl::Status waited =
        poller.Wait(core_.NextWakeup() - options_.time.Now());
    if (!waited.ok()) {
      spdlog::error("coordinator: {}", std::string(waited.message()));
      break;
    }
    waker_.Drain();
    if (abandoned_.load()) return;
    CoordinatorCore::Effects effects;
    while (true) {
      absl::StatusOr<std::optional<Listener::Incoming>> incoming =
          listener_->Receive();
      if (!incoming.ok() || !incoming->has_value()) break;
      core_.OnMessage((*incoming)->from, (*incoming)->message,
                      options_.time.Now(), &effects);
    }
    CountRefusals();
    TakeCheckpoints(&effects);
    core_.OnTick(options_.time.Now(), &effects);
    if (stopping_.load())
      core_.Fail("server 0, which hosts the coordinator, stops",
                 options_.time.Now(), &effects);
    if (!Perform(&effects)) return;
    TellWatch();
  }
  if (core_.view().has_end()) {
    end_ = core_.view().end();
    over_.store(true, std::memory_order_release);
  }
  if (checkpoints_ != nullptr) EndCheckpoints(&poller);
  poller.Remove(*listener_);
  if (failed_.load() || files_ == nullptr || has_summary_) return;
  if (core_.view().has_end()) WriteSummary(&poller);
}

void CoordinatorThread::TellWatch() {
  const absl::Time now = options_.time.Now();
  if (!options_.watch || (now < next_watch_ && core_.state() == watched_))
    return;
  next_watch_ = now + kWatchEvery;
  watched_ = core_.state();
  options_.watch(std::make_shared<const wire::StatusReply>(core_.Status(now)));
}

void CoordinatorThread::Record(const CoordinatorCore::Effects& effects) {
  const absl::Time now = options_.time.Now();
  for (const std::string& line : effects.log)
    options_.track->AddSentence(line, now);
  for (const std::string& line : effects.warnings)
    options_.track->AddSentence(line, now);
  const uint64_t view = core_.view().number();
  if (std::exchange(recorded_view_, view) == view) return;
  options_.track->Add({.name = timeline_names::kView,
                       .begun = now,
                       .until = now,
                       .number = static_cast<int64_t>(view)});
}

void CoordinatorThread::CountRefusals() {
  const ChannelCounts counts = listener_->counts();
  refusals_.Look(counts, options_.time.Now());
  const MutexLock lock(refused_mutex_);
  refused_ = counts.refused;
}

// What is on the disk by now becomes a checkpoint, although the job has ended.
// A disk that hangs does not take the summary along.
void CoordinatorThread::EndCheckpoints(Poller* poller) {
  constexpr absl::Duration kWorthSaying = absl::Seconds(1);
  const int32_t cut = core_.view().cut().number();
  // Parts of one that was given up may have come since then.
  checkpoints_->Remove(cut);
  const int stops = stops_saving_.load();
  const absl::Time begin = options_.time.Now();
  const absl::Time give_up = begin + SaveTimeout();
  bool said = false;
  for (std::string doing; !(doing = checkpoints_->Doing()).empty();) {
    const absl::Time now = options_.time.Now();
    if (now >= give_up || stops_saving_.load() != stops) {
      const std::string why =
          absl::StrCat("the disk has not answered since the job ended, while ",
                       doing, "; what is there is left as it is");
      spdlog::error("coordinator: {}", why);
      CoordinatorCore::Effects effects;
      // What hangs may be another task than the checkpoint, which is there.
      TakeCheckpoints(&effects);
      core_.OnCheckpoint(cut, absl::DeadlineExceededError(why), now, &effects);
      Perform(&effects);
      break;
    }
    if (now >= begin + kWorthSaying && !std::exchange(said, true)) {
      spdlog::warn(
          "coordinator: the job has ended, and the disk of its checkpoints is "
          "waited for: {}; for at most {} (limits {{ save_timeout_ms: ... }}), "
          "or until server 0 is interrupted again",
          doing, absl::FormatDuration(SaveTimeout()));
    }
    const absl::Time next = said ? give_up : begin + kWorthSaying;
    if (!poller->Wait(std::min(next, give_up) - now).ok()) break;
    waker_.Drain();
  }
  CoordinatorCore::Effects effects;
  TakeCheckpoints(&effects);
  Perform(&effects);
}

// There may be room on the disk again.
void CoordinatorThread::WriteSummary(Poller* poller) {
  constexpr absl::Duration kTryEvery = absl::Seconds(1);
  // What has failed anyway is not kept from ending.
  const absl::Time give_up =
      options_.time.Now() +
      (core_.state() == wire::FINISHED ? SaveTimeout() : absl::ZeroDuration());
  for (int tries = 0;; ++tries) {
    run::Summary summary = core_.Summary();
    summary.set_mode(options_.core.mode);
    summary.set_seed(options_.core.config.train().seed());
    summary.set_files_incomplete(files_->WhatIsMissing());
    summary.set_ended_at(absl::FormatTime(
        absl::RFC3339_sec, options_.time.WallNow(), absl::UTCTimeZone()));
    const absl::Status written = files_->WriteSummary(
        summary, options_.core.config.checkpoint().on_server_loss());
    if (written.ok()) return;
    const absl::Time now = options_.time.Now();
    if (now >= give_up || stops_saving_.load() > 0) {
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
          std::string(written.message()), absl::FormatDuration(SaveTimeout()));
    }
    const absl::Time next = std::min(now + kTryEvery, give_up);
    while (stops_saving_.load() == 0 && options_.time.Now() < next) {
      if (!poller->Wait(next - options_.time.Now()).ok()) break;
      waker_.Drain();
    }
  }
}

void CoordinatorThread::TakeCheckpoints(CoordinatorCore::Effects* effects) {
  if (checkpoints_ == nullptr) return;
  CheckpointThread::News news = checkpoints_->TakeNews();
  const absl::Time now = options_.time.Now();
  for (const CheckpointThread::Result& result : news.results)
    core_.OnCheckpoint(result.cut, result.folder, now, effects);
  if (news.best.has_value()) core_.OnBestCheckpoint(*news.best, now, effects);
  std::move(news.warnings.begin(), news.warnings.end(),
            std::back_inserter(effects->warnings));
}

bool CoordinatorThread::Perform(CoordinatorCore::Effects* effects) {
  if (failed_.load()) return false;
  // The files may be another coordinator's by now.
  absl::Status kept = AwaitLead();
  if (kept.ok()) {
    if (files_ != nullptr) AppendRecords(*effects);
    kept = Keep(std::move(effects->state));
    if (absl::IsResourceExhausted(kept)) kept = GoOnWithoutState(kept);
  }
  if (kept.ok()) kept = AwaitLead();
  if (!kept.ok()) {
    failure_ = Annotate(
        kept,
        "this coordinator ends, since it cannot keep what it does; another one "
        "goes on with the job: start server 0 again, as the first time");
    failed_.store(true, std::memory_order_release);
    spdlog::error("coordinator: {}", std::string(failure_.message()));
    return false;
  }
  // Without a folder for checkpoints the core begins none.
  if (checkpoints_ != nullptr && effects->give_up.has_value()) {
    checkpoints_->Remove(*effects->give_up);
  }
  if (checkpoints_ != nullptr && effects->best.has_value())
    checkpoints_->KeepBest(*std::move(effects->best));
  if (checkpoints_ != nullptr && effects->complete.has_value()) {
    checkpoints_->Complete(effects->complete->cut,
                           std::move(effects->complete->manifest));
  }
  if (IsOn(options_.track)) Record(*effects);
  for (const std::string& line : effects->log)
    spdlog::info("coordinator: {}", line);
  for (const std::string& line : effects->warnings)
    spdlog::warn("coordinator: {}", line);
  for (const Outgoing& outgoing : effects->sends) {
    // Who is not connected asks again, or loses its lease.
    (void)listener_->Send(outgoing.to, outgoing.message);
  }
  return true;
}

void CoordinatorThread::AppendRecords(const CoordinatorCore::Effects& effects) {
  const auto say = [](const absl::Status& written) {
    if (!written.ok())
      spdlog::error("coordinator: {}", std::string(written.message()));
  };
  if (!files_->dropped() && core_.state() == wire::RUNNING &&
      options_.core.resume != nullptr) {
    say(files_->DropAfter(
        LastStepsBefore(*options_.core.resume, core_.view())));
  }
  for (const run::MoveRecord& record : effects.moves)
    say(files_->AppendMove(record));
  for (const run::ModeRecord& record : effects.modes)
    say(files_->AppendMode(record));
  for (const run::MetricRecord& record : effects.records)
    say(files_->AppendMetric(record));
}

absl::Status CoordinatorThread::AwaitLead() {
  return keeping_.store == nullptr ? absl::OkStatus()
                                   : keeping_.store->AwaitLead();
}

absl::Status CoordinatorThread::Keep(std::vector<StateChange> changes) {
  if (!keeps_state_) return absl::OkStatus();
  std::string files =
      files_ == nullptr ? "" : files_->Kept().SerializeAsString();
  // Without a job's state they are of no use to anybody.
  const bool of_a_job = !changes.empty() || !files_kept_.empty();
  if (files != files_kept_ && of_a_job)
    changes.push_back({.key = kFilesKey, .value = files});
  if (changes.empty()) return absl::OkStatus();
  SL_RETURN_IF_ERROR(keeping_.store->Commit(changes));
  files_kept_ = std::move(files);
  return absl::OkStatus();
}

absl::Status CoordinatorThread::GoOnWithoutState(const absl::Status& why) {
  if (keeping_.forget == nullptr) return why;
  if (const absl::Status forgotten = keeping_.forget(); !forgotten.ok())
    return Annotate(forgotten, why.message());
  // The store stays: nobody else is to begin in its place.
  keeps_state_ = false;
  spdlog::error(
      "coordinator: {}; the job goes on, but nothing more is kept of it, and "
      "no "
      "other coordinator can go on in place of this one",
      std::string(why.message()));
  return absl::OkStatus();
}

}  // namespace slackline
