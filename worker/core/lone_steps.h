// LoneSteps: what a worker without a job does next: its steps and their
// examples, where its model is evaluated, and the end. In a job WorkerSteps and
// the coordinator decide it for all workers; the rules are the same ones
// (Evaluations, EndOfRange()), and so is what one worker then does.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <optional>
#include <variant>

#include "common/example_range.h"
#include "common/ids.h"
#include "worker/core/evaluations.h"

namespace slackline {

class LoneSteps {
 public:
  struct Options {
    Clock steps_total = 0;     // At least 1. Not used with `elastic`.
    Clock evaluate_every = 1;  // Steps from one evaluation to the next.
    // Each step has its examples of these, and the job ends with the last one.
    std::optional<ElasticSampling> elastic = {};
  };
  explicit LoneSteps(const Options& options)
      : options_(options), evaluations_(options.evaluate_every) {}

  // OnStep() follows, or the step comes again.
  struct Step {
    Clock clock = 0;  // Steps completed so far.
    std::optional<ExampleRange> examples = {};
  };
  // The model as it is now, beside what comes next.
  struct Evaluate {
    Clock clock = 0;
  };
  // The model is the trained one. Comes once, and nothing after it.
  struct Conclude {};
  using Task = std::variant<Step, Evaluate, Conclude>;
  // None after Conclude.
  std::optional<Task> Next();
  // The step that Next() gave last is not done yet.
  bool is_open() const { return is_open_; }
  // The step that Next() gave last is done.
  void OnStep();

  // Steps completed.
  Clock clock() const { return clock_; }

 private:
  bool IsAtEnd() const;

  const Options options_;
  Evaluations evaluations_;
  Clock clock_ = 0;
  int64_t position_ = 0;  // The next example, with elastic sampling.
  bool is_open_ = false;
  bool concludes_ = false;
};

}  // namespace slackline
