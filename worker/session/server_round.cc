#include "worker/session/server_round.h"

#include "common/status.h"

namespace slackline {

absl::Status ServerRound::Add(Clock clock, TableId table,
                              const Payload& gradient,
                              const StepOptions& options) {
  SL_RETURN_IF_ERROR(
      loop_.Push(table, compressor_.Compress(table, clock, gradient), options));
  report_.time().Pushed(loop_.Now());
  return absl::OkStatus();
}

absl::Status ServerRound::Finish(const End& step) {
  counts_(step);
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnComputed(step.loss.value_or(0), now, effects);
      });
  return absl::OkStatus();
}

}  // namespace slackline
