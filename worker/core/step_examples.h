// StepExamples: where sampling is elastic, which examples the worker's next
// step has, and what it asks the coordinator for them. The worker's side of
// server/coordinator/grant_book.h; docs/manual/sampling.md.
//
// One question at a time. What the coordinator answers:
//
// | answer | then |
// | --- | --- |
// | a range of examples | the next step has it: examples() |
// | "none before clock c" | steps until c have none: TakeSkip() |
// | "none now" | no question until this worker's last gradients are there |
//
// Each question says how many ranges the worker has received, and of how many
// the gradients have arrived; the coordinator gives the others to somebody else
// when the worker dies. Without elastic sampling every step has its examples,
// and nothing is ever asked.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/example_range.h"
#include "common/ids.h"
#include "proto/control.pb.h"

namespace slackline {

class StepExamples {
 public:
  explicit StepExamples(bool elastic) : elastic_(elastic) {}

  // Where the worker is when it asks.
  struct Place {
    Clock clock = 0;
    Clock end = 0;                  // The job's.
    bool is_done_together = false;  // IsDoneTogether() of its step.
    // All its pushes are acknowledged.
    bool all_arrived = false;
  };
  // What to ask for the next step; nothing if there are examples, or the answer
  // is on its way, or asking is of no use. OnAsked() follows.
  std::optional<wire::Call> Ask(const Place& place);
  void OnAsked(uint64_t call) { call_ = call; }
  bool Awaits(uint64_t call) const { return call_ != 0 && call == call_; }
  // The answer to that call. InternalError: the coordinator gives none.
  absl::Status OnAnswer(const wire::CallReply& reply);
  // Nothing is left to be given: the call that nobody waits for any more, 0 if
  // there is none.
  uint64_t Close() { return std::exchange(call_, 0); }

  bool elastic() const { return elastic_; }

  // With elastic sampling, the examples of the next step, or of the one that is
  // done now.
  const std::optional<ExampleRange>& examples() const { return examples_; }
  // The next step has what it needs.
  bool HasForStep() const { return !elastic_ || examples_.has_value(); }
  // There are no examples before a clock after this one.
  bool HasSkip(Clock clock) const { return skip_to_ > clock; }
  // The clock before which there are no examples, if HasSkip(). What the
  // coordinator has said of it counts no more.
  std::optional<Clock> TakeSkip(Clock clock);
  void ForgetSkip() { skip_to_ = 0; }
  // What the coordinator has to know of the worker that has examples and is at
  // this clock, a later one than it asked for: for those who find none.
  std::optional<wire::Call> TellClock(Clock clock);

  // The parameters of the step have come. `with_last`: they have this worker's
  // last gradients.
  void OnParameters(bool with_last) {
    done_ = std::max(done_, given_ - examples_.has_value() - !with_last);
  }
  // The step is done. If all do it together they have the steps before it,
  // since nobody is at this step any more; it may itself be lost with those who
  // have it.
  void OnStep(bool is_done_together) {
    if (is_done_together) NoteArrived();
    examples_.reset();
  }
  // The others have the step that this worker has computed and not seen
  // reduced: they could not have got there without its examples.
  void OnStepWithOthers() {
    if (std::exchange(examples_, std::nullopt).has_value()) NoteArrived();
  }

 private:
  // Every gradient so far is where it has to be: so are the examples.
  void NoteArrived() { done_ = given_ - examples_.has_value(); }

  const bool elastic_;
  std::optional<ExampleRange> examples_;
  uint64_t call_ = 0;      // It is not answered yet; 0: there is none.
  Clock skip_to_ = 0;      // There are no examples before; 0: nobody said so.
  Clock asked_at_ = 0;     // The clock that the coordinator was told.
  bool none_now_ = false;  // None until this worker's gradients have arrived.
  int64_t given_ = 0;      // Ranges of examples that it got.
  int64_t done_ = 0;       // Ranges of which the gradients have arrived.
};

}  // namespace slackline
