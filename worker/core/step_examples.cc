#include "worker/core/step_examples.h"

#include "absl/strings/str_cat.h"

namespace slackline {

std::optional<wire::Call> StepExamples::Ask(const Place& place) {
  if (HasForStep() || call_ != 0 || HasSkip(place.clock) ||
      place.clock >= place.end) {
    return std::nullopt;
  }
  if (!place.is_done_together) {
    if (place.all_arrived) NoteArrived();
    if (none_now_ && !place.all_arrived) return std::nullopt;
  }
  none_now_ = false;
  asked_at_ = place.clock;
  wire::Call call;
  wire::NextExamples& next = *call.mutable_next_examples();
  next.set_clock(place.clock);
  next.set_received(given_);
  next.set_done(done_);
  next.set_reduced(place.is_done_together);
  return call;
}

absl::Status StepExamples::OnAnswer(const wire::CallReply& reply) {
  call_ = 0;
  if (reply.code() != wire::OK) {
    return absl::InternalError(
        absl::StrCat("the coordinator gives no examples: ", reply.error()));
  }
  if (reply.granted().has_examples()) {
    const wire::Examples& examples = reply.granted().examples();
    examples_ = {.epoch = examples.epoch(),
                 .begin = examples.begin(),
                 .end = examples.end()};
    ++given_;
  } else if (!reply.granted().has_skip_to()) {
    none_now_ = true;
  } else {
    skip_to_ = std::min(reply.granted().skip_to(), kClockMax - 1);
  }
  return absl::OkStatus();
}

std::optional<Clock> StepExamples::TakeSkip(Clock clock) {
  const Clock wished = std::exchange(skip_to_, 0);
  if (wished <= clock) return std::nullopt;
  return wished;
}

std::optional<wire::Call> StepExamples::TellClock(Clock clock) {
  if (!examples_.has_value() || clock <= asked_at_) return std::nullopt;
  asked_at_ = clock;
  wire::Call call;
  call.mutable_has_examples()->set_clock(clock);
  return call;
}

}  // namespace slackline
