#include "worker/core/conclusion.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace slackline {

bool IsChief(const View& view, Incarnation self) {
  const wire::WorkerMember* const chief = ChiefOf(view);
  return chief != nullptr && chief->incarnation() == self;
}

bool AllAreDone(const View& view) {
  return std::all_of(view.workers().begin(), view.workers().end(),
                     [](const wire::WorkerMember& w) { return w.done(); });
}

bool Conclusion::IsDue(const View& view, Incarnation self) {
  return IsChief(view, self) && AllAreDone(view);
}

absl::Status Conclusion::OnSaveFailed(const absl::Status& why, absl::Time now,
                                      std::string* log) {
  if (give_up_saving_at_ == absl::InfiniteFuture()) {
    give_up_saving_at_ = now + options_.save_timeout;
    *log = absl::StrCat("the model cannot be written: ", why.message(),
                        "; the servers keep it, and it is tried again for ",
                        absl::FormatDuration(options_.save_timeout));
  }
  save_failure_ = std::string(why.message());
  if (now >= give_up_saving_at_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the final model could not be written within ",
        absl::FormatDuration(options_.save_timeout), " by worker ",
        static_cast<int32_t>(options_.rank), ": ", save_failure_,
        "; make room there, or raise limits { save_timeout_ms: ... }"));
  }
  save_again_at_ = std::min(now + options_.save_retry, give_up_saving_at_);
  return absl::OkStatus();
}

bool Conclusion::SavesAgain(absl::Time now) {
  if (now < save_again_at_) return false;
  save_again_at_ = absl::InfiniteFuture();
  return true;
}

}  // namespace slackline
