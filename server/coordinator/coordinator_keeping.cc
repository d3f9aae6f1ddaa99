#include "server/coordinator/coordinator_keeping.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/config/cluster_config.h"
#include "common/io/atomic_file.h"
#include "common/io/file_error.h"
#include "common/status.h"
#include "common/version.h"
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
  // etcd may make a lease longer, and has it anew when it is started again.
  store.wait_max = std::max(store.wait_max, 2 * lease);
  return store;
}

// A store, and what it held when it was opened.
struct Opened {
  std::unique_ptr<StateStore> store;
  CoordinatorState state;
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

absl::StatusOr<Opened> Open(const KeepingOptions& options) {
  if (UsesEtcd(options)) {
    absl::StatusOr<std::unique_ptr<EtcdStateStore>> store =
        EtcdStateStore::Open(EtcdOptions(options));
    if (!store.ok()) return EtcdProblem(store.status());
    CoordinatorState state = (*store)->state();
    return Opened{Leased(*std::move(store)), std::move(state)};
  }
  SL_ASSIGN_OR_RETURN(std::unique_ptr<FileStateStore> store,
                      FileStateStore::Open(KeepingPlace(options)));
  CoordinatorState state = store->state();
  return Opened{std::move(store), std::move(state)};
}

// Of the job whose place a new one takes.
void WarnOfUnfinished(const KeepingOptions& options,
                      const absl::StatusOr<CoordinatorState>& before) {
  if (!before.ok()) return;
  const absl::StatusOr<CoordinatorCore::Kept> job =
      CoordinatorCore::KeptIn(*before);
  if (!job.ok() || job->ended) return;
  spdlog::warn(
      "{} had a run of job {} that has not ended; this one begins anew, and "
      "takes its place there (--recover would have gone on with it)",
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
  if (store.ok()) return *std::move(store);
  // Nobody is to go on with a job that was there before.
  std::filesystem::remove(path, error);
  if (error) return store.status();
  spdlog::warn("{}; the job will not outlive server 0",
               std::string(store.status().message()));
  return nullptr;
}

// The job that was kept, if it is the one of the options.
absl::StatusOr<CoordinatorCore::Kept> JobIn(const KeepingOptions& options,
                                            const CoordinatorState& state) {
  const std::string place = KeepingPlace(options);
  absl::StatusOr<CoordinatorCore::Kept> job = CoordinatorCore::KeptIn(state);
  if (!job.ok()) return Annotate(job.status(), place);
  const auto other = [&](const std::string& what, const std::string& there,
                         const std::string& here) {
    return absl::FailedPreconditionError(absl::StrCat(
        place, " is of ", what, " ", there, ", and this is ", here,
        "; give the config",
        UsesEtcd(options) ? " and the flags that the job has"
                          : ", the flags and the --out that the job has"));
  };
  const config::ClusterConfig& config = options.config;
  if (job->job != config.job()) return other("job", job->job, config.job());
  if (job->config_hash != ConfigHash(config))
    return other("config", job->config_hash, ConfigHash(config));
  const std::string version = job->build.version();
  if (version != VersionNumber() || job->protocol != kProtocol)
    return other("version", version, VersionNumber());
  return job;
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

absl::StatusOr<RecoveredJob> RecoverJob(const KeepingOptions& options) {
  absl::StatusOr<Opened> opened = Open(options);
  if (absl::IsNotFound(opened.status()) ||
      (opened.ok() && opened->state.empty())) {
    spdlog::warn("--recover: begins anew: no job is in {}",
                 KeepingPlace(options));
    return RecoveredJob();
  }
  if (!opened.ok()) return Annotate(opened.status(), "--recover");
  absl::StatusOr<RecoveredJob> job = Recovered(options, *std::move(opened));
  if (!job.ok()) return Annotate(job.status(), "--recover");
  return job;
}

void GoOnWith(const CoordinatorCore::Kept& job,
              CoordinatorCore::Options* options) {
  options->run = job.run;
  options->resume = job.resume;
  options->resume_sha256 = job.resume_sha256;
  options->resume_folder = job.resume_folder;
}

absl::StatusOr<std::optional<RecoveredJob>> TakeOverJob(
    const KeepingOptions& options) {
  EtcdStateStore::Options etcd = EtcdOptions(options);
  etcd.etcd.timeout = kLookTimeout;
  SL_ASSIGN_OR_RETURN(const bool led, EtcdStateStore::IsLed(etcd));
  if (led) return std::nullopt;
  etcd = EtcdOptions(options);
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
      Recovered(options, {Leased(*std::move(store)), std::move(state)}));
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
  const absl::StatusOr<CoordinatorCore::Kept> job = JobIn(options, *state);
  if (!job.ok()) return Annotate(job.status(), "--recover");
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
