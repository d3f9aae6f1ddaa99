#include "tools/cli/run/restorer.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/status.h"
#include "tools/cli/run/out_folder.h"

namespace slackline {
namespace {

std::string StepsText(int64_t steps) {
  return steps == 1 ? "1 step is" : absl::StrCat(steps, " steps are");
}

std::string SecondsText(absl::Duration duration) {
  return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration));
}

}  // namespace

run::CheckpointRecord RecordOf(const StoredCheckpoint& stored) {
  run::CheckpointRecord record;
  record.set_folder(stored.folder());
  record.set_clock(stored.manifest().clock());
  record.set_bytes(stored.bytes());
  record.set_seconds(stored.manifest().seconds());
  return record;
}

absl::StatusOr<std::optional<Restorer::Restoration>> Restorer::OnLost(
    const Lost& lost) {
  if (!options_.enabled || !policy_.IsLoss(lost.end)) return std::nullopt;
  if (lost.run != 0) {
    runs_.insert(lost.run);
    // What it was writing when it ended.
    RemovePartial(options_.checkpoint_root, lost.run,
                  std::numeric_limits<int32_t>::max());
  }
  std::vector<std::string> passed_over;
  const auto of_job = [this](const checkpoint::Manifest& manifest) {
    return runs_.count(manifest.run()) > 0;
  };
  const absl::StatusOr<std::unique_ptr<StoredCheckpoint>> found =
      CheckpointToGoOnFrom(options_.checkpoint_root, of_job,
                           options_.began_with, &passed_over);
  if (!found.ok()) {
    return Annotate(found.status(),
                    absl::StrCat("the job was lost and cannot be restored (",
                                 lost.why, ")"));
  }
  for (const std::string& why : passed_over)
    display_->Print(absl::StrCat("warning: passed over: ", why));
  const StoredCheckpoint* const stored = found->get();
  const bool is_own = stored != nullptr && of_job(stored->manifest());
  if (!policy_.MayGoOn(is_own ? stored->manifest().sequence() : 0)) {
    display_->Print(absl::StrCat(
        "the job was lost ", RestorePolicy::kLossesMax,
        " times in a row without a newer checkpoint than before, so it is "
        "given up; look at the logs for what ends its processes, or take "
        "checkpoints more often (checkpoint { ... })"));
    return std::nullopt;
  }
  SL_RETURN_IF_ERROR(KeepEarlier(options_.out_dir));
  Restoration restoration;
  run::CheckpointRecord& from = restoration.from;
  if (stored != nullptr) from = RecordOf(*stored);
  const int64_t anew = std::max<int64_t>(0, lost.steps - from.clock());
  ++restores_;
  steps_anew_ += anew;
  time_ += lost.since;
  restoration.text = absl::StrCat(
      lost.why, "; it was at step ",
      std::max<int64_t>(lost.steps, from.clock()), ", and ",
      from.folder().empty() ? "begins anew, since it has no checkpoint yet"
                            : absl::StrCat("goes on from step ", from.clock(),
                                           " of ", from.folder()),
      ": ", StepsText(anew), " done anew, ", SecondsText(lost.since),
      " after its last step");
  return restoration;
}

std::string Restorer::Text() const {
  if (restores_ == 0) return "";
  return absl::StrCat(
      "the job was restored ",
      restores_ == 1 ? "once" : absl::StrCat(restores_, " times"), ": ",
      StepsText(steps_anew_), " done anew in all, and ", SecondsText(time_),
      " went by in between");
}

}  // namespace slackline
