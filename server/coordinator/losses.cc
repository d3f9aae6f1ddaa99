#include "server/coordinator/losses.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sync/modes/mode_rule.h"
#include "common/sync/modes/step_kind.h"
#include "common/sync/phases.h"
#include "server/coordinator/job_end.h"

namespace slackline {
namespace {

wire::JobEnd EndAbout(const GoneMember& gone, wire::JobEnd::Cause cause,
                      std::string reason) {
  wire::JobEnd end = JobEndOf(cause, std::move(reason));
  PutWho(gone.member, &end);
  return end;
}

}  // namespace

std::optional<wire::JobEnd> Losses::OfServer(const GoneMember& gone) const {
  const std::string why = copies_.WhyNotReplaceable(gone.member.index());
  if (why.empty()) return std::nullopt;
  return EndAbout(gone, wire::JobEnd::SERVER_LOST,
                  absl::StrCat(gone.sentence, why));
}

std::optional<wire::JobEnd> Losses::OfWorker(const GoneMember& gone) const {
  // Who was to begin at the end has all of its gradients in the checkpoint.
  const ModeRule& rule = modes_.configured();
  if (rule.is_of_whole_job() && !gone.member.trained &&
      gone.member.begins_at < EndOf(editor_.view())) {
    return EndAbout(
        gone, wire::JobEnd::WORKER_LOST,
        absl::StrCat(LostText(gone), "; the job's ", rule.whole_job().is,
                     ", and the others cannot go on without its gradients"));
  }
  if (!members_.workers().empty()) return std::nullopt;
  const std::vector<Membership::Knock> knocks = members_.RecentKnocks(gone.now);
  if (knocks.empty()) return OfLastWorker(gone);
  const wire::View& view = editor_.view();
  if (!WorkersHaveModel(FirstStepOf(view.phase(view.entered()))))
    return std::nullopt;
  return EndAbout(
      gone, wire::JobEnd::NO_WORKER_LEFT,
      absl::StrCat(
          LostText(gone),
          "; no worker is left, and the model is lost with it, because the "
          "workers hold it while they all-reduce; worker ",
          knocks.front().join.index(),
          ", which has been started again, cannot go on"));
}

wire::JobEnd Losses::OfLastWorker(const GoneMember& gone) const {
  return EndAbout(gone, wire::JobEnd::NO_WORKER_LEFT,
                  absl::StrCat(LostText(gone),
                               "; no worker is left, and none that has been "
                               "started again waits to join"));
}

}  // namespace slackline
