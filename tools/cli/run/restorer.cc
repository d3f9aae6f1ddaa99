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

absl::StatusOr<std::optional<std::string>> Restorer::OnLost(const Lost& lost) {
  if (!options_.enabled || !policy_.IsLoss(lost.end)) return std::nullopt;
  if (lost.run != 0) {
    runs_.insert(lost.run);
    // What it was writing when it ended.
    RemovePartial(options_.checkpoint_root, lost.run,
                  std::numeric_limits<int32_t>::max());
  }
  std::vector<std::string> passed_over;
  const absl::StatusOr<std::unique_ptr<StoredCheckpoint>> newest =
      NewestCheckpoint(
          options_.checkpoint_root,
          [this](const checkpoint::Manifest& manifest) {
            return runs_.count(manifest.run()) > 0;
          },
          &passed_over);
  if (!newest.ok()) passed_over = {std::string(newest.status().message())};
  for (const std::string& why : passed_over)
    display_->Print(absl::StrCat("warning: passed over: ", why));
  const StoredCheckpoint* const found = newest.ok() ? newest->get() : nullptr;
  if (!policy_.MayGoOn(found == nullptr ? 0 : found->manifest().sequence())) {
    display_->Print(absl::StrCat(
        "the job was lost ", RestorePolicy::kLossesMax,
        " times in a row without a newer checkpoint than before, so it is "
        "given up; look at the logs for what ends its processes, or take "
        "checkpoints more often (checkpoint { ... })"));
    return std::nullopt;
  }
  SL_RETURN_IF_ERROR(KeepEarlier(options_.out_dir));
  const std::string folder =
      found == nullptr ? options_.began_with : found->folder();
  const int64_t from =
      found == nullptr ? options_.began_at : found->manifest().clock();
  const int64_t anew = std::max<int64_t>(0, lost.steps - from);
  ++restores_;
  steps_anew_ += anew;
  time_ += lost.since;
  display_->Print(absl::StrCat(
      "restoring the job: ", lost.why, "; it was at step ",
      std::max(lost.steps, from), ", and ",
      folder.empty() ? "begins anew, since it has no checkpoint yet"
                     : absl::StrCat("goes on from step ", from, " of ", folder),
      ": ", StepsText(anew), " done anew, ", SecondsText(lost.since),
      " after its last step"));
  return folder;
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
