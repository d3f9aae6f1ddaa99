#include "server/coordinator/user_calls.h"

#include <string>
#include <utility>

#include "common/status.h"
#include "server/coordinator/state/kept_state.h"

namespace slackline {
namespace {

constexpr size_t kKeptMax = 64;

// BUSY: it may be asked for again.
void Refuse(const absl::Status& why, wire::CallReply* reply) {
  const bool passes =
      absl::IsUnavailable(why) || absl::IsResourceExhausted(why);
  reply->set_code(passes ? wire::BUSY : wire::REJECTED);
  reply->set_error(std::string(why.message()));
}

}  // namespace

bool UserCalls::Takes(const wire::Call& call) {
  return call.has_rebalance() || call.has_move_shards() || call.has_drain() ||
         call.has_set_mode() || call.has_finish() || call.has_checkpoint();
}

void UserCalls::OnCall(const PeerId& from, const wire::Call& call,
                       absl::Time now, CoordinatorEffects* effects) {
  const std::pair<PeerId, uint64_t> id{from, call.call_id()};
  for (const auto& [past, answer] : past_) {
    if (past != id) continue;
    effects->sends.push_back(answer);  // Repeated: it was done already.
    return;
  }
  Outgoing out = AnswerTo(from, call.call_id(), wire::OK);
  wire::CallReply& reply = *out.message.header.mutable_call_reply();
  if (call.has_checkpoint()) {
    const absl::Status asked =
        checkpointer_->Ask({.peer = from, .call_id = call.call_id()});
    if (asked.ok()) return;  // Answered later.
    Refuse(asked, &reply);
  } else if (call.has_set_mode() || call.has_finish()) {
    absl::StatusOr<std::string> text =
        call.has_finish() ? modes_->OnFinish(call.finish(), effects)
                          : modes_->OnSetMode(call.set_mode(), effects);
    if (text.ok()) {
      reply.set_text(*std::move(text));
    } else {
      Refuse(text.status(), &reply);
    }
  } else {
    absl::StatusOr<run::Plan> plan = placement_->OnCall(call, now, effects);
    if (plan.ok()) {
      *reply.mutable_plan() = *std::move(plan);
    } else {
      Refuse(plan.status(), &reply);
    }
  }
  Answer(std::move(out), effects);
}

void UserCalls::AnswerCalls(CoordinatorEffects* effects) {
  for (const Checkpointer::Answer& answer : checkpointer_->TakeAnswers()) {
    Outgoing out = AnswerTo(answer.to.peer, answer.to.call_id, wire::OK);
    wire::CallReply& reply = *out.message.header.mutable_call_reply();
    if (answer.text.ok()) {
      reply.set_text(*answer.text);
    } else {
      Refuse(answer.text.status(), &reply);
    }
    Answer(std::move(out), effects);
  }
}

void UserCalls::Answer(Outgoing answer, CoordinatorEffects* effects) {
  news_ = true;
  if (past_.size() == kKeptMax) past_.pop_front();
  past_.push_back(
      {{answer.to, answer.message.header.call_reply().call_id()}, answer});
  effects->sends.push_back(std::move(answer));
}

void UserCalls::Keep(absl::Time, KeptState* kept) {
  if (!std::exchange(news_, false)) return;
  coordinator::CallsState state;
  for (const auto& [id, answer] : past_) {
    coordinator::CallsState::Call& call = *state.add_call();
    *call.mutable_peer() = PeerState(id.first);
    *call.mutable_reply() = answer.message.header.call_reply();
  }
  kept->Put("calls", state);
}

absl::Status UserCalls::Load(const StateReader& reader, const Moment&,
                             CoordinatorEffects*) {
  coordinator::CallsState state;
  SL_RETURN_IF_ERROR(reader.Read("calls", &state));
  for (const coordinator::CallsState::Call& call : state.call()) {
    SL_ASSIGN_OR_RETURN(const PeerId peer, PeerOf(call.peer()));
    Outgoing answer = AnswerTo(peer, call.reply().call_id(), wire::OK);
    *answer.message.header.mutable_call_reply() = call.reply();
    past_.emplace_back(std::pair(peer, call.reply().call_id()),
                       std::move(answer));
  }
  return absl::OkStatus();
}

}  // namespace slackline
