#include "server/coordinator/suspension.h"

#include "absl/strings/str_cat.h"
#include "common/some_names.h"
#include "common/status.h"
#include "server/coordinator/job_end.h"

namespace slackline {
namespace {

// Whom the Checkpointer answers: no peer.
const Checkpointer::Caller kSelf = {};

bool Passes(const absl::Status& why) {
  // The job ends by itself, or too many users wait for the checkpoint before,
  // or the checkpoint was lost with a server.
  return absl::IsOutOfRange(why) || absl::IsResourceExhausted(why) ||
         absl::IsUnavailable(why);
}

}  // namespace

void Suspension::Ask(const std::string& reason, absl::Time awake_now,
                     CoordinatorEffects* effects) {
  if (editor_->ended() || reason_.has_value()) return;
  reason_ = reason;
  gives_up_at_ = awake_now + options_.timeout;
  effects->log.push_back(
      absl::StrCat("a checkpoint is to be taken, then the job ends: ", reason));
}

std::vector<std::string> Suspension::AtWork() const {
  std::vector<std::string> names;
  if (!members_->AllTrained()) return names;
  for (const auto& [rank, worker] : members_->workers()) {
    if (!worker->done) names.push_back(absl::StrCat("worker ", rank));
  }
  return names;
}

std::string Suspension::WhyLate() const {
  const int64_t seconds = absl::ToInt64Seconds(options_.timeout);
  const std::vector<std::string> at_work = AtWork();
  if (at_work.empty()) {
    return absl::StrCat("it was not there within ", seconds,
                        " s; raise limits { save_timeout_ms: ... }");
  }
  return absl::StrCat(
      "none is taken after the last step, and the job has not ended within ",
      seconds, " s, because the programs of ", SomeNames(at_work),
      " were still at work after it");
}

bool Suspension::Advance(const Moment& moment, CoordinatorEffects* effects) {
  if (reason_.has_value()) AskOrEnd(moment.awake, effects);
  return false;  // The Checkpointer's turn comes after this one.
}

void Suspension::AskOrEnd(absl::Time awake_now, CoordinatorEffects* effects) {
  const std::optional<absl::StatusOr<std::string>> answer =
      checkpointer_->TakeAnswerTo(kSelf);
  if (editor_->ended()) return;
  if (answer.has_value()) OnAnswer(*answer);
  if (editor_->ended()) return;
  if (awake_now >= gives_up_at_) return StopBecause(WhyLate());
  if (asked_) return;
  const absl::Status asked = checkpointer_->Ask(kSelf);
  asked_ = asked.ok();
  if (!asked.ok() && !Passes(asked)) return StopBecause(asked.message());
  if (asked_ || said_at_work_) return;
  const std::vector<std::string> at_work = AtWork();
  if (at_work.empty()) return;
  said_at_work_ = true;
  effects->log.push_back(absl::StrCat(
      "no checkpoint is taken after the last step: the job ends when the "
      "programs of ",
      SomeNames(at_work), ", which are still at work after it, come to their ",
      "end, or in ", absl::ToInt64Seconds(gives_up_at_ - awake_now), " s"));
}

void Suspension::OnAnswer(const absl::StatusOr<std::string>& text) {
  asked_ = false;
  if (!text.ok()) {
    if (!Passes(text.status())) StopBecause(text.status().message());
    return;
  }
  const run::CheckpointRecord& last = *checkpointer_->last();
  wire::JobEnd end =
      JobEndOf(wire::JobEnd::SUSPENDED,
               absl::StrCat(*reason_, "; ", *text, "; --resume=", last.folder(),
                            " goes on from there, of `slackline run CONFIG` "
                            "or, by hand, of every server"));
  end.set_clock(last.clock());
  editor_->End(std::move(end));
}

WakeUp Suspension::NextWakeUp() const {
  if (!reason_.has_value() || !editor_->running()) return {};
  return {.awake = gives_up_at_};
}

void Suspension::Keep(absl::Time, KeptState* kept) {
  if (!reason_.has_value()) return;
  coordinator::SuspensionState state;
  state.set_reason(*reason_);
  kept->Put("suspension", state);
}

absl::Status Suspension::Load(const StateReader& reader, const Moment& moment,
                              CoordinatorEffects*) {
  if (!reader.Has("suspension")) return absl::OkStatus();
  coordinator::SuspensionState state;
  SL_RETURN_IF_ERROR(reader.Read("suspension", &state));
  reason_ = state.reason();
  gives_up_at_ = moment.awake + options_.timeout;
  return absl::OkStatus();
}

void Suspension::StopBecause(absl::string_view why) {
  const run::CheckpointRecord* last = checkpointer_->last();
  if (last == nullptr && !options_.resumed_from.folder().empty())
    last = &options_.resumed_from;
  editor_->End(JobEndOf(
      wire::JobEnd::STOPPED,
      absl::StrCat(*reason_, "; without a checkpoint: ", why,
                   last == nullptr ? "; there is no earlier one"
                                   : absl::StrCat("; the last one is of step ",
                                                  last->clock(), ", in ",
                                                  last->folder()))));
}

}  // namespace slackline
