// StepKind: what a step of a worker is. A mode says it, ModeRule::StepOf().
//
// A new kind is a case of TraitsOf(), with an answer to each question; the
// compiler names that and the other switches, and an answer that is missing.
#pragma once

namespace slackline {

enum class StepKind {
  // Pulls parameters from the servers and pushes gradients to them.
  kOverServers,
  // The workers sum their gradients among themselves, and each applies the
  // mean.
  kAllReduce,
};

// What is true of a step, for those who have to know more than the kind.
struct StepTraits {
  // Before and after the step the workers have the model, all of them the same
  // one. Else the servers have it.
  bool workers_have_model;
  // All workers do it together, so all of them are at one clock.
  bool is_done_together;
  // Workers connect to each other for it.
  bool connects_workers;
  // Shards get the gradients of each worker, look at them and apply them.
  bool pushes_gradients;
};

constexpr StepTraits TraitsOf(StepKind step) {
  switch (step) {
    case StepKind::kOverServers:
      return {.workers_have_model = false,
              .is_done_together = false,
              .connects_workers = false,
              .pushes_gradients = true};
    case StepKind::kAllReduce:
      return {.workers_have_model = true,
              .is_done_together = true,
              .connects_workers = true,
              .pushes_gradients = false};
  }
  return {};
}

constexpr bool WorkersHaveModel(StepKind step) {
  return TraitsOf(step).workers_have_model;
}
constexpr bool IsDoneTogether(StepKind step) {
  return TraitsOf(step).is_done_together;
}
constexpr bool ConnectsWorkers(StepKind step) {
  return TraitsOf(step).connects_workers;
}
constexpr bool PushesGradients(StepKind step) {
  return TraitsOf(step).pushes_gradients;
}

}  // namespace slackline
