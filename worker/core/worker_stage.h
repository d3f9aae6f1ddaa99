// Where a worker is between joining a job and leaving it.
#pragma once

namespace slackline {

// "Action" means that the worker's driver performs one, at whose end it goes
// on; in the other states it waits for a message, or for the time.
enum class WorkerStage {
  kJoining,           // Until a view in which the job runs.
  kInitializing,      // Action.
  kJoinPull,          // For the first parameters and the start clock.
  kPulling,           // For the next step's parameters.
  kComputing,         // Action.
  kReducing,          // Action: computes, then waits for the sum.
  kAwaitingExamples,  // For examples.
  kWaiting,           // For a newer view.
  kPushed,            // For acknowledgements, before it takes the state.
  kAskingState,       // For the state.
  kTakingState,       // Action.
  kConnecting,        // Action.
  kCatchingUp,        // Action.
  kReadingState,      // Action.
  kGiving,            // Until the servers have the state of all.
  kDraining,          // Until the last pushes are acknowledged.
  kTrained,           // Until the program asks what comes next.
  kDone,              // Has left; perhaps as the chief it waits for the others.
  kFinalPull,         // The chief reads the final model.
  kConcluding,        // Action.
  kSaving,            // Until it tries again to write the final model.
  kReported,          // The chief has sent the result.
  kLeaving,           // Has failed, and tells the coordinator.
  kEnded,
};

// What the driver cannot go on without.
enum class WorkerNeed { kNothing, kRoom, kParameters, kState };

// What a program may ask the servers for beside its steps. kValues: between two
// steps, with what this worker has pushed. kAll: with the optimizer's slots.
enum class StateParts { kValues, kAll };

}  // namespace slackline
