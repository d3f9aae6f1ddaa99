#include "common/checkpoint/checkpoint_config.h"

#include "common/block/bounds.h"

namespace slackline {
namespace {

constexpr int kKeepMax = 1000;

}  // namespace

void CheckCheckpoint(const config::Checkpoint& checkpoint,
                     const CheckpointContext& context,
                     const ConfigProblems& problems) {
  const struct {
    const char* field;
    bool given;
  } intervals[] = {{"every_steps", checkpoint.has_every_steps()},
                   {"every_epochs", checkpoint.has_every_epochs()},
                   {"every_seconds", checkpoint.has_every_seconds()},
                   {"best_by", checkpoint.has_best_by()}};
  for (const auto& [field, given] : intervals) {
    if (given && context.elastic) {
      problems.Add(field,
                   "there are no checkpoints with data.sampling: ELASTIC, "
                   "where a checkpoint does not know which examples are "
                   "trained on; leave it out, or write sampling: STATIC");
    }
  }
  if (checkpoint.best_by() == config::Checkpoint::MEASURE_UNSPECIFIED &&
      checkpoint.has_best_by()) {
    problems.Add("best_by",
                 "value is MEASURE_UNSPECIFIED; ACCURACY or LOSS is required");
  } else if (checkpoint.has_best_by() && !context.evaluates) {
    problems.Add("best_by",
                 "the job evaluates its model at its end only, where no "
                 "checkpoint is taken; set train { eval_every_epochs: ... } to "
                 "less than train { epochs: ... }, or leave best_by out");
  }
  if (checkpoint.on_server_loss() == config::Checkpoint::LOSS_UNSPECIFIED) {
    problems.Add("on_server_loss",
                 "value is LOSS_UNSPECIFIED; FAIL or RESTORE is required");
  }
  if (checkpoint.on_server_loss() == config::Checkpoint::RESTORE &&
      context.elastic) {
    problems.Add("on_server_loss",
                 "there are no checkpoints with data.sampling: ELASTIC, so no "
                 "job can be restored from one; leave it out");
  }
  const char* const fix = "leave it out for none of these";
  if (checkpoint.has_every_steps()) {
    problems.Range("every_steps", checkpoint.every_steps(), 1, kStepsMax, fix);
  }
  if (checkpoint.has_every_epochs())
    problems.AboveZero("every_epochs", checkpoint.every_epochs(), fix);
  if (checkpoint.has_every_seconds())
    problems.AboveZero("every_seconds", checkpoint.every_seconds(), fix);
  problems.Range("keep", checkpoint.keep(), 1, kKeepMax);
  if (checkpoint.has_folder() && checkpoint.folder().empty()) {
    problems.Add("folder",
                 "is empty; name a folder, or leave it out for checkpoints, in "
                 "the folder of the run");
  }
}

}  // namespace slackline
