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

}  // namespace

std::string KeepingPlace(const KeepingOptions& options) {
  if (UsesEtcd(options)) {
    return absl::StrCat("etcd below ",
                        options.config.coordinator().etcd().prefix());
  }
  return absl::StrCat(options.out, "/coordinator.state");
}

absl::StatusOr<RecoveredJob> RecoverJob(const KeepingOptions& options) {
  const std::string place = KeepingPlace(options);
  RecoveredJob recovered;
  absl::StatusOr<Opened> opened = Open(options);
  if (absl::IsNotFound(opened.status()) ||
      (opened.ok() && opened->state.empty())) {
    spdlog::warn("--recover: begins anew: no job is in {}", place);
    return recovered;
  }
  if (!opened.ok()) return Annotate(opened.status(), "--recover");
  absl::StatusOr<CoordinatorCore::Kept> job =
      CoordinatorCore::KeptIn(opened->state);
  if (!job.ok()) {
    return Annotate(job.status(), absl::StrCat("--recover: ", place));
  }
  const auto other = [&](const std::string& what, const std::string& there,
                         const std::string& here) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--recover: ", place, " is of ", what, " ", there, ", and this is ",
        here, "; give the config",
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
  recovered.job = *std::move(job);
  recovered.keeping.state = std::move(opened->state);
  recovered.keeping.store = std::move(opened->store);
  LetForget(options, &recovered.keeping);
  return recovered;
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
