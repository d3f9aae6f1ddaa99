#include "tools/cli/run/run_key.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/config/cluster_config.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr char kTheKey[] = "the key of the job";

}  // namespace

absl::StatusOr<std::unique_ptr<RunKey>> RunKey::Make(
    const config::ClusterConfig& config, const KeyPlace& place,
    const std::string& out_dir) {
  std::unique_ptr<RunKey> made(new RunKey());
  // Before it is read: what changes then is seen.
  made->mark_ = KeyFileMark(place.file());
  SL_ASSIGN_OR_RETURN(const std::optional<KeyOfRun> key,
                      MakeKeyOfRun(config, place));
  if (!key.has_value()) return made;
  made->job_ = config.job();
  made->workers_ = static_cast<int>(WorkerProcesses(config).size());
  made->note_ = key->note;
  made->folder_ =
      std::filesystem::absolute(out_dir).lexically_normal().string();
  made->made_of_ = key->file;
  SL_RETURN_IF_ERROR(made->Write(key->key));
  SL_ASSIGN_OR_RETURN(KeyPlan plan, KeyPlanFrom(key->key, made->job_,
                                                Role::kOperator, kTheKey));
  made->source_ =
      KeySource{.file = absl::StrCat(made->folder_, "/", kJobKeyName),
                .job = made->job_,
                .holder = Role::kOperator,
                .plan = std::move(plan)};
  return made;
}

absl::Status RunKey::Write(const keys::Key& key) {
  // Those before them are replaced, and removed by nobody.
  const auto write = [&](const std::string& name,
                         const keys::Key& part) -> absl::Status {
    SL_ASSIGN_OR_RETURN(
        TemporaryKeyFile file,
        TemporaryKeyFile::Write(absl::StrCat(folder_, "/", name), part));
    files_.push_back(std::move(file));
    return absl::OkStatus();
  };
  SL_RETURN_IF_ERROR(write(kJobKeyName, key));
  for (int rank = 0; rank < workers_; ++rank) {
    SL_ASSIGN_OR_RETURN(
        const keys::Key worker,
        RoleKeyOf(key, job_, {Role::kWorker, Rank{rank}}, kTheKey));
    SL_RETURN_IF_ERROR(write(WorkerKeyName(rank), worker));
  }
  held_ = key;
  return absl::OkStatus();
}

absl::StatusOr<std::string> RunKey::Follow() {
  if (made_of_.empty()) return "";
  const std::string mark = KeyFileMark(made_of_);
  if (mark.empty() || mark == mark_) return "";
  const absl::StatusOr<keys::Key> key = ReadKeyFile(made_of_);
  // It may be in the midst of being written.
  if (absl::IsInvalidArgument(key.status())) return "";
  const std::string name = absl::StrCat("key file ", made_of_);
  const auto taken = [&]() -> absl::StatusOr<keys::Key> {
    SL_RETURN_IF_ERROR(key.status());
    SL_ASSIGN_OR_RETURN(keys::Key job, JobKeyOf(*key, job_, name));
    // As LiveKeys::Take() does, in the processes.
    if (job.secret() == held_.secret() ||
        (held_.has_next() && job.secret() == held_.next().secret())) {
      return job;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        name,
        " has another key, which does not say from when on it counts "
        "(`slackline keys rotate` exchanges the key of jobs that run)"));
  }();
  if (!taken.ok()) {
    mark_ = mark;  // Said once.
    return taken.status();
  }
  const keys::Key& job = *taken;
  if (KeyText(job) == KeyText(held_)) {
    mark_ = mark;
    return "";
  }
  // What fails is tried again, when it is looked at next.
  SL_RETURN_IF_ERROR(Write(job));
  mark_ = mark;
  if (!job.has_next()) return "the key of the job is not exchanged any more";
  return absl::StrCat(
      "the key of the job is exchanged at ",
      absl::FormatTime("%H:%M:%S", absl::FromUnixSeconds(job.next_from()),
                       absl::LocalTimeZone()),
      "; its processes have the new one");
}

}  // namespace slackline
