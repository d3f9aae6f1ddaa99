// StepRound: where the gradients of a session's step go, and how the step ends.
// There is at least one class for each StepKind
// (common/sync/modes/step_kind.h); nothing else in the session asks which kind
// a step is.
//
// A step calls Add() or Skip() once for each table, then Finish(). The trainer
// thread is the only one.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/optim/step_options.h"
#include "common/payload.h"
#include "common/sync/modes/step_kind.h"

namespace slackline {

class StepRound {
 public:
  // A step whose gradients are all there.
  struct End {
    Clock clock = 0;
    int64_t examples = 0;
    std::optional<double> loss = {};
  };

  virtual ~StepRound() = default;

  virtual StepKind kind() const = 0;
  // Gradients stay on the worker's GPU; else they come to the host.
  virtual bool on_device() const { return false; }
  // Whether gradients that are all there are best handed over last table first.
  // Over servers the first table is first: forward needs its new values first.
  virtual bool last_table_first() const { return false; }

  // The whole gradient of a table, as of Session::Gradient(), which has looked
  // at it. InvalidArgument: the options do not fit the table's optimizer, and
  // nothing happened. Others: the step is lost.
  virtual absl::Status Add(Clock clock, TableId table, const Payload& gradient,
                           const StepOptions& options) = 0;
  // The table keeps what it has. Errors as of Add().
  virtual absl::Status Skip(TableId table) = 0;
  // Tells the core how the step ends, and before that the session, if it
  // counts. Not OK: the worker cannot go on.
  virtual absl::Status Finish(const End& step) = 0;
};

}  // namespace slackline
