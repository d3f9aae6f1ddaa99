#include "worker/train/train_config.h"

#include "common/block/bounds.h"
#include "common/config/stop_rules.h"

namespace slackline {

void CheckTrain(const config::Train& train, const ConfigProblems& problems) {
  if (train.has_epochs()) problems.AboveZero("epochs", train.epochs());
  problems.Require(train.seed() >= 0, "seed", train.seed(), "at least 0");
  if (train.has_max_steps()) {
    problems.Range("max_steps", train.max_steps(), 1, kStepsMax,
                   "leave it out for no bound");
  }
  problems.AboveZero("eval_every_epochs", train.eval_every_epochs(),
                     "more than train.epochs evaluates at the end only");
  if (train.nonfinite() == config::Train::NONFINITE_UNSPECIFIED) {
    problems.Add("nonfinite",
                 "value is NONFINITE_UNSPECIFIED; STOP or SKIP is required");
  }
  CheckStop(train.stop(), problems.In("stop"));
}

}  // namespace slackline
