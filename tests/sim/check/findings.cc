#include "tests/sim/check/findings.h"

namespace slackline::sim {

const char* InvariantName(Invariant invariant) {
  switch (invariant) {
    case Invariant::kStaleness:
      return "staleness";
    case Invariant::kExactlyOnce:
      return "exactly once";
    case Invariant::kLostPush:
      return "lost push";
    case Invariant::kOrder:
      return "order";
    case Invariant::kTornRead:
      return "torn read";
    case Invariant::kVersionOrder:
      return "version order";
    case Invariant::kExamples:
      return "every example once";
    case Invariant::kSyncSum:
      return "sync sum";
    case Invariant::kValue:
      return "value";
    case Invariant::kMode:
      return "mode";
    case Invariant::kReplica:
      return "replica";
    case Invariant::kOwnership:
      return "ownership";
    case Invariant::kCopies:
      return "copies";
    case Invariant::kSentAgain:
      return "sent again";
    case Invariant::kUnread:
      return "unread bytes";
    case Invariant::kView:
      return "view";
    case Invariant::kBoundedState:
      return "bounded state";
    case Invariant::kLiveness:
      return "liveness";
    case Invariant::kGaveUp:
      return "gave up";
    case Invariant::kGathers:
      return "gathers";
    case Invariant::kCheckpoint:
      return "checkpoint";
    case Invariant::kCoordinator:
      return "coordinator";
    case Invariant::kOutcome:
      return "outcome";
  }
  return "?";
}

}  // namespace slackline::sim
