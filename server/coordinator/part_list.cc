#include "server/coordinator/part_list.h"

#include <algorithm>

#include "common/status.h"

namespace slackline {

void PartList::OnJoined(const Member& member, CoordinatorEffects* effects) {
  for (CoordinatorPart* const part : parts_) part->OnJoined(member, effects);
}

void PartList::OnStart(const JobStart& start, CoordinatorEffects* effects) {
  for (CoordinatorPart* const part : parts_) part->OnStart(start, effects);
}

void PartList::OnRunning(const Moment& moment, CoordinatorEffects* effects) {
  for (CoordinatorPart* const part : parts_) part->OnRunning(moment, effects);
}

void PartList::OnGone(const GoneMember& gone, CoordinatorEffects* effects) {
  for (CoordinatorPart* const part : parts_) part->OnGone(gone, effects);
}

void PartList::Advance(const Moment& moment, CoordinatorEffects* effects) {
  int news = 0;
  for (size_t i = 0; i < parts_.size();) {
    if (!parts_[i]->Advance(moment, effects)) {
      ++i;
      continue;
    }
    SL_CHECK(++news <= kNewsMax, "the parts of the coordinator find no end");
    OnNews();
    i = 0;
  }
}

void PartList::OnNews() {
  for (CoordinatorPart* const part : parts_) part->OnNews();
}

void PartList::OnEnded(const Moment& moment, CoordinatorEffects* effects) {
  for (CoordinatorPart* const part : parts_) part->OnEnded(moment, effects);
}

void PartList::AnswerCalls(CoordinatorEffects* effects) {
  for (CoordinatorPart* const part : parts_) part->AnswerCalls(effects);
}

void PartList::Keep(absl::Time now, KeptState* kept) {
  for (CoordinatorPart* const part : parts_) part->Keep(now, kept);
}

absl::Status PartList::Load(const StateReader& reader, const Moment& moment,
                            CoordinatorEffects* effects) {
  for (CoordinatorPart* const part : parts_)
    SL_RETURN_IF_ERROR(part->Load(reader, moment, effects));
  return absl::OkStatus();
}

WakeUp PartList::NextWakeUp() const {
  WakeUp next;
  for (const CoordinatorPart* const part : parts_) {
    const WakeUp own = part->NextWakeUp();
    next.at = std::min(next.at, own.at);
    next.awake = std::min(next.awake, own.awake);
  }
  return next;
}

void PartList::OnTime(const Moment& moment, CoordinatorEffects* effects) {
  for (CoordinatorPart* const part : parts_) part->OnTime(moment, effects);
}

void PartList::PutStatus(const StatusQuestion& question,
                         wire::StatusReply* status) const {
  for (const CoordinatorPart* const part : parts_)
    part->PutStatus(question, status);
}

void PartList::PutSummary(run::Summary* summary) const {
  for (const CoordinatorPart* const part : parts_) part->PutSummary(summary);
}

}  // namespace slackline
