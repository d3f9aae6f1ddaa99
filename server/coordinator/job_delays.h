// JobDelays: the delays of a job that has given ones: the plan that all of its
// servers follow, and from which checkpoints the job can go on.
//
// A checkpoint and the job that goes on from it have the same plan, so neither
// the manifest nor a part has more of it than which one it is.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/delays/delay_source.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/checkpoint.pb.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"

namespace slackline {

class JobDelays {
 public:
  struct Options {
    // nullptr: they are not given.
    std::shared_ptr<const DelaySource> source = nullptr;
    int workers = 1;
    uint64_t seed = 0;
    google::protobuf::RepeatedPtrField<config::StaleGradients> stale = {};
    // nullptr: the job begins anew.
    std::shared_ptr<const checkpoint::Manifest> resume = nullptr;
  };
  explicit JobDelays(Options options) : options_(std::move(options)) {}

  // The plan; nullptr: none are given. The view has the job's phases and
  // length, which do not change. Made at the first call, and as in
  // DelayPlan::Create().
  absl::StatusOr<const DelayPlan*> PlanOf(const wire::View& view);

  // What a manifest says of them.
  void Put(const wire::View& view, checkpoint::Manifest* manifest) const;
  // The job goes on from a checkpoint: empty, or why it cannot because of its
  // delays or of those there. Completes "the job cannot go on from checkpoint
  // F: ".
  std::string WhyNotResumed(const wire::View& view) const;
  // The job goes on from a checkpoint of one whose tables began with a worker's
  // values: its delays begin behind that step.
  bool BeganWithWorker() const {
    return options_.resume != nullptr && options_.resume->delays().first() > 0;
  }

 private:
  const Options options_;
  std::shared_ptr<const DelayPlan> plan_;
};

}  // namespace slackline
