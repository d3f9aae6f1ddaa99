#include "server/coordinator/coordinator_keeping.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/cluster_config.h"
#include "common/io/atomic_file.h"
#include "common/io/file_error.h"
#include "common/membership/end_status.h"
#include "common/status.h"
#include "common/version.h"
#include "server/coordinator/run_files.h"
#include "server/coordinator/state/etcd_state_store.h"
#include "server/coordinator/state/file_state_store.h"
#include "server/coordinator/state/leased_state_store.h"

namespace slackline {
namespace {

// Of a look into etcd that is repeated.
constexpr absl::Duration kLookTimeout = absl::Seconds(2);

bool UsesEtcd(const KeepingOptions& options) {
  return options.config.coordinator().has_etcd();
}

EtcdStateStore::Options EtcdOptions(const KeepingOptions& options) {
  const config::Etcd& etcd = options.config.coordinator().etcd();
  // Of a coordinator as of all members: silent for so long, it is dead. But its
  // process ends by a mistake about that, so it has time for a busy etcd.
  const absl::Duration lease =
      std::max(absl::Milliseconds(options.config.limits().lease_ms()),
               EtcdStateStore::Options().lease);
  EtcdStateStore::Options store = {.etcd = {},
                                   .prefix = etcd.prefix(),
                                   .endpoint = options.endpoint,
                                   .lease = lease};
  store.etcd.endpoints.assign(etcd.endpoint().begin(), etcd.endpoint().end());
  store.etcd.ca = etcd.ca();
  store.etcd.certificate = etcd.certificate();
  store.etcd.private_key = etcd.private_key();
  store.etcd.user = etcd.user();
  store.etcd.password_file = etcd.password_file();
  store.etcd.prefix = etcd.prefix();
  // etcd may make a lease longer, and has it anew when it is started again.
  store.wait_max = std::max(store.wait_max, 2 * lease);
  return store;
}

// A store, and what it held when it was opened.
struct Opened {
  std::unique_ptr<StateStore> store;
  CoordinatorState state;
  absl::Status damage;  // Why there is neither, though something is there.
};

std::unique_ptr<StateStore> Leased(std::unique_ptr<EtcdStateStore> store) {
  return std::make_unique<LeasedStateStore>(std::move(store),
                                            EtcdClient::Options().timeout);
}

// Of one who begins: what to do if etcd has not answered.
absl::Status EtcdProblem(const absl::Status& problem) {
  if (!absl::IsUnavailable(problem)) return problem;
  return absl::UnavailableError(absl::StrCat(
      problem.message(),
      "; see that etcd runs there, and that coordinator { etcd { endpoint } } "
      "has the addresses at which it listens for clients"));
}

void WarnWithoutLock(const KeepingOptions& options,
                     const FileStateStore& store) {
  if (store.has_lock()) return;
  spdlog::warn(
      "{}: the file system there has no locks, so nothing keeps a second "
      "server "
      "0 from beginning there while this one runs; see that there is one "
      "alone, "
      "or use coordinator {{ etcd }}",
      KeepingPlace(options));
}

absl::StatusOr<Opened> Open(const KeepingOptions& options) {
  if (UsesEtcd(options)) {
    absl::StatusOr<std::unique_ptr<EtcdStateStore>> store =
        EtcdStateStore::Open(EtcdOptions(options));
    if (!store.ok()) return EtcdProblem(store.status());
    CoordinatorState state = (*store)->state();
    return Opened{Leased(*std::move(store)), std::move(state), {}};
  }
  SL_ASSIGN_OR_RETURN(std::unique_ptr<FileStateStore> store,
                      FileStateStore::Open(KeepingPlace(options)));
  WarnWithoutLock(options, *store);
  CoordinatorState state = store->state();
  return Opened{std::move(store), std::move(state), {}};
}

// nullopt: no job has kept anything there.
absl::StatusOr<std::optional<Opened>> OpenIfThere(
    const KeepingOptions& options) {
  const bool in_etcd = UsesEtcd(options) && options.config.replicas() > 0;
  std::error_code error;
  if (!in_etcd && (UsesEtcd(options) || options.out.empty() ||
                   !std::filesystem::exists(KeepingPlace(options), error))) {
    return std::nullopt;
  }
  absl::StatusOr<Opened> opened = Open(options);
  if (absl::IsNotFound(opened.status())) return std::nullopt;
  if (absl::IsDataLoss(opened.status()))
    return Opened{nullptr, {}, opened.status()};
  if (!opened.ok()) return opened.status();
  if (opened->state.empty()) return std::nullopt;
  return *std::move(opened);
}

// Empty, or completes "the run in PLACE".
std::string OtherText(const std::string& what, const std::string& there,
                      const std::string& here) {
  return absl::StrCat("is of ", what, " ", there, ", and this is ", here);
}
std::string WhyOther(const KeepingOptions& options, const KeptJob& job) {
  const config::ClusterConfig& config = options.config;
  if (job.job != config.job()) return OtherText("job", job.job, config.job());
  if (job.config_hash != ConfigHash(config))
    return OtherText("config", job.config_hash, ConfigHash(config));
  const std::string version = job.build.version();
  // What has ended is read of it, and no more.
  if (!job.ended && (version != VersionNumber() || job.protocol != kProtocol))
    return OtherText("version", version, VersionNumber());
  return "";
}

// As its summary and its records say. `*end`: how it has ended, if it has.
FoundRun FoundInFolder(const KeepingOptions& options, absl::Status* end) {
  FoundRun found = {.place = options.out};
  if (options.out.empty()) return found;
  found.has_checkpoint =
      !options.checkpoint_root.empty() &&
      HasCheckpoint(options.checkpoint_root, [&](const auto& manifest) {
        return manifest.job() == options.config.job();
      });
  const bool has_records = HasRecords(options.out);
  const absl::StatusOr<RunEnd> summary = EndIn(options.out);
  if (!summary.ok()) {
    if (has_records) found.kind = FoundRun::Kind::kLost;
    if (has_records && !absl::IsNotFound(summary.status()))
      found.reason = std::string(summary.status().message());
    return found;
  }
  if (!summary->finished && !has_records && summary->steps == 0) return found;
  found.kind =
      summary->finished ? FoundRun::Kind::kFinished : FoundRun::Kind::kFailed;
  found.reason = summary->end.reason();
  const std::string hash = ConfigHash(options.config);
  if (summary->job != options.config.job()) {
    found.why_other = OtherText("job", summary->job, options.config.job());
  } else if (!summary->config_hash.empty() && summary->config_hash != hash) {
    found.why_other = OtherText("config", summary->config_hash, hash);
  }
  *end = summary->finished
             ? absl::OkStatus()
             : EndStatus(absl::StatusCode::kAborted, summary->end);
  return found;
}

// What a state says counts more than a summary, which others write, too.
void FoundInState(const KeepingOptions& options, const KeptJob& kept,
                  FoundRun* found, absl::Status* end) {
  const bool has_done_nothing =
      !kept.formed || (found->kind == FoundRun::Kind::kNone &&
                       !options.out.empty() && !UsesEtcd(options));
  found->place = KeepingPlace(options);
  found->why_other = WhyOther(options, kept);
  found->reason = kept.end.reason();
  *end = absl::OkStatus();
  if (!kept.ended) {
    found->kind = FoundRun::Kind::kLives;
  } else if (IsFinished(kept.end)) {
    found->kind = FoundRun::Kind::kFinished;
  } else {
    found->kind =
        has_done_nothing ? FoundRun::Kind::kNone : FoundRun::Kind::kFailed;
    *end = EndStatus(absl::StatusCode::kAborted, kept.end);
  }
}

// Of the job whose place a new one takes.
void WarnOfUnfinished(const KeepingOptions& options,
                      const absl::StatusOr<CoordinatorState>& before) {
  if (!before.ok()) return;
  const absl::StatusOr<KeptJob> job = KeptJobIn(*before);
  if (!job.ok() || job->ended) return;
  spdlog::warn(
      "{} had a run of job {} that has not ended; the new one takes its place "
      "there (--new-run)",
      KeepingPlace(options), job->job);
}

// A job does not end because there is no room for more on the disk. What etcd
// does not take it cannot be made to forget either: then the coordinator ends.
void LetForget(const KeepingOptions& options,
               CoordinatorThread::Keeping* keeping) {
  if (UsesEtcd(options)) return;
  keeping->forget = [path = KeepingPlace(options), out = options.out] {
    std::error_code error;
    std::filesystem::remove(path, error);
    return error ? FileError("remove", path, error.value()) : SyncFolder(out);
  };
}

absl::StatusOr<std::unique_ptr<StateStore>> CreateInEtcd(
    const KeepingOptions& options) {
  absl::StatusOr<CoordinatorState> before;
  {
    const absl::StatusOr<std::unique_ptr<EtcdStateStore>> store =
        EtcdStateStore::Open(EtcdOptions(options));
    // Somebody else leads, or etcd does not answer.
    if (!store.ok() && !absl::IsNotFound(store.status()) &&
        !absl::IsDataLoss(store.status())) {
      return EtcdProblem(store.status());
    }
    if (store.ok()) before = (*store)->state();
  }
  SL_ASSIGN_OR_RETURN(std::unique_ptr<EtcdStateStore> store,
                      EtcdStateStore::Create(EtcdOptions(options)));
  WarnOfUnfinished(options, before);
  return Leased(std::move(store));
}

absl::StatusOr<std::unique_ptr<StateStore>> CreateInFile(
    const KeepingOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  const std::string path = KeepingPlace(options);
  const absl::StatusOr<CoordinatorState> before = ReadStateFile(path);
  absl::StatusOr<std::unique_ptr<FileStateStore>> store =
      FileStateStore::Create(path);
  if (absl::IsFailedPrecondition(store.status())) return store.status();
  WarnOfUnfinished(options, before);
  if (store.ok()) {
    WarnWithoutLock(options, **store);
    return *std::move(store);
  }
  // Nobody is to go on with a job that was there before.
  std::filesystem::remove(path, error);
  if (error) return store.status();
  spdlog::warn("{}; the job will not outlive server 0",
               std::string(store.status().message()));
  return nullptr;
}

// The job that was kept, if it is the one of the options.
absl::StatusOr<KeptJob> JobIn(const KeepingOptions& options,
                              const CoordinatorState& state) {
  const std::string place = KeepingPlace(options);
  absl::StatusOr<KeptJob> job = KeptJobIn(state);
  if (!job.ok()) return Annotate(job.status(), place);
  const std::string why_other = WhyOther(options, *job);
  if (why_other.empty()) return job;
  return absl::FailedPreconditionError(
      absl::StrCat(place, " ", why_other,
                   "; give the config and the flags that the job has"));
}

absl::StatusOr<RecoveredJob> Recovered(const KeepingOptions& options,
                                       Opened opened) {
  RecoveredJob recovered;
  SL_ASSIGN_OR_RETURN(recovered.job, JobIn(options, opened.state));
  recovered.keeping.state = std::move(opened.state);
  recovered.keeping.store = std::move(opened.store);
  LetForget(options, &recovered.keeping);
  return recovered;
}

}  // namespace

std::string KeepingPlace(const KeepingOptions& options) {
  if (UsesEtcd(options)) {
    return absl::StrCat("etcd below ",
                        options.config.coordinator().etcd().prefix());
  }
  return absl::StrCat(options.out, "/coordinator.state");
}

absl::StatusOr<BegunJob> BeginJob(const KeepingOptions& options,
                                  const BeginningFlags& flags) {
  BegunJob begun;
  if (flags.new_run) return begun;
  SL_ASSIGN_OR_RETURN(std::optional<Opened> opened, OpenIfThere(options));
  FoundRun found = FoundInFolder(options, &begun.end);
  std::optional<KeptJob> kept;
  if (opened.has_value() && opened->damage.ok()) {
    SL_ASSIGN_OR_RETURN(kept, KeptJobIn(opened->state));
    FoundInState(options, *kept, &found, &begun.end);
  } else if (opened.has_value() && found.kind != FoundRun::Kind::kFinished) {
    found.kind = FoundRun::Kind::kLost;
    found.reason = std::string(opened->damage.message());
  }
  absl::StatusOr<Beginning> how = HowToBegin(found, flags);
  if (!how.ok()) return how.status();
  begun.how = *how;
  if (found.kind == FoundRun::Kind::kNone && options.config.replicas() > 0)
    spdlog::info("begins anew: no job is in {}", KeepingPlace(options));
  begun.instead = WhatGoesOn(found);
  if (begun.how == Beginning::kNewRun || !kept.has_value()) return begun;
  begun.recovered.job = *std::move(kept);
  begun.recovered.keeping.state = std::move(opened->state);
  begun.recovered.keeping.store = std::move(opened->store);
  LetForget(options, &begun.recovered.keeping);
  return begun;
}

void GoOnWith(const KeptJob& job, CoordinatorCore::Options* options) {
  options->run = job.run;
  options->resume = job.resume;
  options->resume_sha256 = job.resume_sha256;
  options->resume_folder = job.resume_folder;
}

absl::StatusOr<bool> IsLed(const KeepingOptions& options) {
  EtcdStateStore::Options etcd = EtcdOptions(options);
  etcd.etcd.timeout = kLookTimeout;
  return EtcdStateStore::IsLed(etcd);
}

absl::StatusOr<std::optional<RecoveredJob>> TakeOverJob(
    const KeepingOptions& options) {
  SL_ASSIGN_OR_RETURN(const bool led, IsLed(options));
  if (led) return std::nullopt;
  EtcdStateStore::Options etcd = EtcdOptions(options);
  etcd.wait_max = absl::ZeroDuration();
  absl::StatusOr<std::unique_ptr<EtcdStateStore>> store =
      EtcdStateStore::Open(etcd);
  // Somebody was faster.
  if (absl::IsFailedPrecondition(store.status()) ||
      absl::IsNotFound(store.status())) {
    return std::nullopt;
  }
  SL_RETURN_IF_ERROR(store.status());
  CoordinatorState state = (*store)->state();
  if (state.empty()) return std::nullopt;
  SL_ASSIGN_OR_RETURN(
      RecoveredJob job,
      Recovered(options, {Leased(*std::move(store)), std::move(state), {}}));
  return job;
}

absl::StatusOr<bool> JobIsLed(const KeepingOptions& options) {
  if (!AnyServerTakesOver(options.config)) return false;
  const EtcdStateStore::Options etcd = EtcdOptions(options);
  absl::StatusOr<bool> led = EtcdStateStore::IsLed(etcd);
  if (!led.ok()) return EtcdProblem(led.status());
  if (!*led) return false;
  const absl::StatusOr<CoordinatorState> state = EtcdStateStore::Read(etcd);
  if (absl::IsNotFound(state.status())) return false;
  if (!state.ok()) return EtcdProblem(state.status());
  if (state->empty()) return false;
  const absl::StatusOr<KeptJob> job = JobIn(options, *state);
  SL_RETURN_IF_ERROR(job.status());
  return job->formed && !job->ended;
}

absl::StatusOr<CoordinatorThread::Keeping> KeepNewJob(
    const KeepingOptions& options) {
  CoordinatorThread::Keeping keeping;
  // Those of server 0 are lost with it, and so is the job.
  if (options.config.replicas() == 0) {
    if (UsesEtcd(options)) {
      spdlog::warn(
          "coordinator { etcd }: nothing is kept there: without copies of "
          "shards the job ends with server 0 anyway (replicas: 1 makes them)");
    }
    return keeping;
  }
  if (!UsesEtcd(options) && options.out.empty()) return keeping;
  SL_ASSIGN_OR_RETURN(keeping.store, UsesEtcd(options) ? CreateInEtcd(options)
                                                       : CreateInFile(options));
  LetForget(options, &keeping);
  return keeping;
}

}  // namespace slackline
