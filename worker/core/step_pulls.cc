#include "worker/core/step_pulls.h"

#include <algorithm>
#include <utility>

#include "common/sync/modes/mode.h"
#include "common/sync/phases.h"

namespace slackline {
void StepPulls::Join(const Client& client) {
  pull_id_ = client.core.JoinPull(client.now, client.effects);
}

void StepPulls::Ask(const Client& client, Clock clock, Clock own_clock) {
  pulled_own_ = own_clock;
  pull_id_ = client.core.Pull(clock, own_clock, client.now, client.effects);
}

void StepPulls::AskBehindPushes(ClientCore& client, Clock clock) {
  pulled_own_ = clock;
  pull_id_ = client.PullBehindPushes();
}

void StepPulls::AskToTakeState(const Client& client, Clock clock) {
  pull_id_ = client.core.PullState(clock, client.now, client.effects);
}

void StepPulls::AskModel(const Client& client, Clock clock) {
  pulled_own_ = clock;
  pull_id_ = client.core.PullModel(clock, client.now, client.effects);
}

bool StepPulls::MayMissLastStep(const View& view, Clock next) {
  const sync::Mode& mode = PhaseAt(view.proto(), next).mode();
  const PullNeeds needs = RuleOf(mode).NeedsOf(mode, next);
  return needs.of_all < next && needs.complete < next;
}

bool StepPulls::HasGivenTurn(const View& view, Clock next) {
  return NeedsAt(view.proto(), next).turn;
}

bool StepPulls::MayFollowPushes(const View& view, Clock next) {
  // A worker alone misses nobody's.
  return HasGivenTurn(view, next) || !MayMissLastStep(view, next) ||
         view.workers().size() <= 1;
}

bool StepPulls::AskStateIfFree(const Client& client, const View& view,
                               Clock clock) {
  if (!wants_state_.has_value() || is_open()) return false;
  const StateParts parts = *std::exchange(wants_state_, std::nullopt);
  if (parts == StateParts::kValues) {
    asked_state_ = client.core.PullModel(clock, client.now, client.effects);
    return true;
  }
  // What a pull may not be without, so this waits for nobody for whom that
  // would not.
  const PullNeeds needs =
      RuleAt(view.proto(), clock)
          .NeedsOf(PhaseAt(view.proto(), clock).mode(), clock);
  asked_state_ = client.core.PullState(std::max<Clock>(needs.of_all, 0),
                                       client.now, client.effects);
  return true;
}

bool StepPulls::ForgetForState(const Client& client, Clock clock) {
  if (!is_open() || pulled_own_ <= clock) return false;
  client.core.ForgetPull(std::exchange(pull_id_, 0), client.now,
                         client.effects);
  return true;
}

bool StepPulls::TakesState(const PullResult& result) {
  if (result.pull_id != asked_state_) return false;
  asked_state_ = 0;
  return true;
}

}  // namespace slackline
