#include "server/coordinator/user_calls.h"

#include <string>

namespace slackline {
namespace {

constexpr size_t kKeptMax = 64;

}  // namespace

bool UserCalls::Takes(const wire::Call& call) {
  return call.has_rebalance() || call.has_move_shards() || call.has_drain() ||
         call.has_set_mode() || call.has_finish();
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
  const auto reject = [&](const absl::Status& status) {
    reply.set_code(absl::IsUnavailable(status) ? wire::BUSY : wire::REJECTED);
    reply.set_error(std::string(status.message()));
  };
  if (call.has_set_mode() || call.has_finish()) {
    absl::StatusOr<std::string> text =
        call.has_finish() ? modes_->OnFinish(call.finish(), effects)
                          : modes_->OnSetMode(call.set_mode(), effects);
    if (text.ok()) {
      reply.set_text(*std::move(text));
    } else {
      reject(text.status());
    }
  } else {
    absl::StatusOr<run::Plan> plan = placement_->OnCall(call, now, effects);
    if (plan.ok()) {
      *reply.mutable_plan() = *std::move(plan);
    } else {
      reject(plan.status());
    }
  }
  if (past_.size() == kKeptMax) past_.pop_front();
  past_.push_back({id, out});
  effects->sends.push_back(std::move(out));
}

}  // namespace slackline
