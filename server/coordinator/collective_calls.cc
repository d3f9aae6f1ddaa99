#include "server/coordinator/collective_calls.h"

#include <utility>

#include "common/payload.h"

namespace slackline {
namespace {

Payload FirstPayload(const Message& message) {
  return message.payloads.empty() ? Payload() : message.payloads.front();
}

}  // namespace

bool CollectiveCalls::Takes(const wire::Call& call) {
  return call.has_gather() || call.has_goes_on() || call.has_store_put() ||
         call.has_store_get();
}

void CollectiveCalls::OnCall(const Member& worker, const Message& message,
                             CoordinatorEffects* effects) {
  const wire::Call& call = message.header.call();
  if (call.has_gather()) {
    news_ = true;
    return gathers_.Enter(worker, call, FirstPayload(message), effects);
  }
  if (call.has_goes_on()) {
    news_ = true;
    return gathers_.OnGoesOn(worker, call, effects);
  }
  const GroupStore::Caller caller{.peer = worker.peer,
                                  .call_id = call.call_id(),
                                  .incarnation = worker.incarnation};
  std::vector<GroupStore::Answer> answers;
  if (call.has_store_put()) {
    store_.Put(caller, call.store_put().group(), call.store_put().key(),
               FirstPayload(message), &answers);
  } else {
    store_.Get(caller, call.store_get().group(), call.store_get().key(),
               &answers);
  }
  Send(std::move(answers), effects);
}

void CollectiveCalls::OnCallBeforeStart(const PeerId& from,
                                        const Message& message,
                                        CoordinatorEffects* effects) {
  news_ = true;
  gathers_.EnterBeforeStart(from, message.header.call(), FirstPayload(message),
                            effects);
}

void CollectiveCalls::OnRunning(const Moment&, CoordinatorEffects* effects) {
  gathers_.Start(members_->workers(), effects);
}

void CollectiveCalls::OnGone(const GoneMember& gone, CoordinatorEffects*) {
  store_.Forget(gone.member.incarnation);
  gathers_.Forget(gone.member.incarnation);
  // Nobody is told the result of what the end has interrupted.
  if (!editor_->ended()) news_ = true;
}

void CollectiveCalls::AnswerCalls(CoordinatorEffects* effects) {
  const wire::View& view = editor_->view();
  if (view.group() == view.number()) {
    std::vector<GroupStore::Answer> answers;
    store_.BeginGroup(view.group(), &answers);
    Send(std::move(answers), effects);
  }
  if (std::exchange(news_, false)) gathers_.Complete(effects);
}

void CollectiveCalls::Keep(absl::Time, KeptState* kept) { gathers_.Keep(kept); }

absl::Status CollectiveCalls::Load(const StateReader& reader, const Moment&,
                                   CoordinatorEffects*) {
  return gathers_.Load(reader, [&](Incarnation incarnation) {
    return members_->Find(incarnation) != nullptr;
  });
}

void CollectiveCalls::Send(std::vector<GroupStore::Answer> answers,
                           CoordinatorEffects* effects) {
  for (GroupStore::Answer& answer : answers) {
    Outgoing out =
        AnswerTo(answer.to.peer, answer.to.call_id, answer.code, answer.error);
    if (answer.has_value)
      out.message.payloads.push_back(std::move(answer.value));
    effects->sends.push_back(std::move(out));
  }
}

}  // namespace slackline
