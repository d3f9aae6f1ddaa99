// StepKind: what a step of a worker is. A mode says it, ModeRule::StepOf().
//
// Whoever has to know more than the kind asks one of these questions. Each is a
// switch over all kinds, so a new kind is a line in each, and the compiler
// names the questions, and the other switches, that it has no line in.
#pragma once

namespace slackline {

enum class StepKind {
  // Pulls parameters from the servers and pushes gradients to them.
  kOverServers,
  // The workers sum their gradients among themselves, and each applies the
  // mean.
  kAllReduce,
};

// Before and after the step the workers have the model, all of them the same
// one. Else the servers have it.
constexpr bool WorkersHaveModel(StepKind step) {
  switch (step) {
    case StepKind::kOverServers:
      return false;
    case StepKind::kAllReduce:
      return true;
  }
  return false;
}

// All workers do it together, so all of them are at one clock.
constexpr bool IsDoneTogether(StepKind step) {
  switch (step) {
    case StepKind::kOverServers:
      return false;
    case StepKind::kAllReduce:
      return true;
  }
  return false;
}

// Workers connect to each other for it.
constexpr bool ConnectsWorkers(StepKind step) {
  switch (step) {
    case StepKind::kOverServers:
      return false;
    case StepKind::kAllReduce:
      return true;
  }
  return false;
}

// Shards get the gradients of each worker, look at them and apply them.
constexpr bool PushesGradients(StepKind step) {
  switch (step) {
    case StepKind::kOverServers:
      return true;
    case StepKind::kAllReduce:
      return false;
  }
  return false;
}

}  // namespace slackline
