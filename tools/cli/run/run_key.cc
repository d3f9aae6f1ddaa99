#include "tools/cli/run/run_key.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/config/cluster_config.h"
#include "common/status.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr char kTheKey[] = "the key of the job";

// The key of a run in that folder; nullopt with insecure: true.
absl::StatusOr<std::optional<KeyOfRun>> KeyFor(
    const config::ClusterConfig& config, const KeyPlace& place,
    const std::string& out_dir) {
  std::error_code error;
  const fs::path given = place.given;
  if (given.filename() == kJobKeyName &&
      fs::equivalent(fs::absolute(given).parent_path(), out_dir, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--key: ", place.given, " is a file of the run in ", out_dir,
        " itself, which is replaced when it begins and removed when it ends; "
        "name the file that it was made of, or keep a copy elsewhere"));
  }
  return MakeKeyOfRun(config, place);
}

}  // namespace

absl::Status RunKey::Check(const config::ClusterConfig& config,
                           const KeyPlace& place, const std::string& out_dir) {
  return KeyFor(config, place, out_dir).status();
}

absl::StatusOr<std::unique_ptr<RunKey>> RunKey::Make(
    const config::ClusterConfig& config, const KeyPlace& place,
    const std::string& out_dir) {
  std::unique_ptr<RunKey> made(new RunKey());
  // Before it is read: what changes then is seen.
  made->mark_ = KeyFileMark(place.file());
  SL_ASSIGN_OR_RETURN(const std::optional<KeyOfRun> key,
                      KeyFor(config, place, out_dir));
  if (!key.has_value()) return made;
  made->job_ = config.job();
  made->workers_ = static_cast<int>(WorkerProcesses(config).size());
  made->note_ = key->note;
  made->folder_ = fs::absolute(out_dir).lexically_normal().string();
  made->made_of_ = key->file;
  RemoveKeysOfWorkersFrom(made->folder_, made->workers_);
  SL_RETURN_IF_ERROR(made->Write(key->key));
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
  SL_ASSIGN_OR_RETURN(KeyPlan plan,
                      KeyPlanFrom(key, job_, Role::kOperator, kTheKey));
  for (int rank = 0; rank < workers_; ++rank) {
    SL_ASSIGN_OR_RETURN(
        const keys::Key worker,
        RoleKeyOf(key, job_, {Role::kWorker, Rank{rank}}, kTheKey));
    SL_RETURN_IF_ERROR(write(WorkerKeyName(rank), worker));
  }
  SL_RETURN_IF_ERROR(write(kJobKeyName, key));
  held_ = key;
  source_ = KeySource{.file = absl::StrCat(folder_, "/", kJobKeyName),
                      .job = job_,
                      .holder = Role::kOperator,
                      .plan = std::move(plan)};
  return absl::OkStatus();
}

absl::StatusOr<std::string> RunKey::Follow() {
  if (made_of_.empty()) return "";
  const std::string mark = KeyFileMark(made_of_);
  if (mark.empty() || mark == mark_) return "";
  const absl::StatusOr<keys::Key> key = ReadKeyFile(made_of_);
  if (absl::IsInvalidArgument(key.status()) &&
      std::exchange(broken_, mark) != mark) {
    return "";
  }
  const std::string name = absl::StrCat("key file ", made_of_);
  const auto taken = [&]() -> absl::StatusOr<keys::Key> {
    SL_RETURN_IF_ERROR(key.status());
    SL_ASSIGN_OR_RETURN(keys::Key job, JobKeyOf(*key, job_, name));
    const absl::Time next_from = absl::FromUnixSeconds(held_.next_from());
    const bool is_next =
        held_.has_next() && job.secret() == held_.next().secret();
    if (is_next || KeyText(job) == KeyText(held_)) return job;
    if (job.secret() == held_.secret()) {
      if (!held_.has_next() || absl::Now() < next_from) return job;
      return absl::FailedPreconditionError(absl::StrCat(
          name, " has the key that the job had until ",
          absl::FormatTime("%H:%M:%S", next_from, absl::LocalTimeZone()),
          ", perhaps from a backup; the job keeps the one that it has been "
          "exchanged for: put that one back, with which `slackline keys "
          "rotate` has replaced it"));
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
  const bool follows = job.secret() != held_.secret();
  // What begins now would hold the next key before all others do. It is looked
  // at again.
  if (follows && absl::Now() < absl::FromUnixSeconds(held_.next_from()))
    return "";
  if (KeyText(job) == KeyText(held_)) {
    mark_ = mark;
    return "";
  }
  // What fails is tried again, when it is looked at next.
  SL_RETURN_IF_ERROR(Write(job));
  mark_ = mark;
  if (!job.has_next()) {
    return follows ? "the key of the job has been exchanged"
                   : "the key of the job is not exchanged any more";
  }
  return absl::StrCat(
      "the key of the job is exchanged at ",
      absl::FormatTime("%H:%M:%S", absl::FromUnixSeconds(job.next_from()),
                       absl::LocalTimeZone()),
      "; its processes have the new one");
}

}  // namespace slackline
