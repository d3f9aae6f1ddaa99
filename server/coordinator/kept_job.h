// KeptJob: what a coordinator leaves to the next one of the job itself: what
// does not change, and how it has ended, if it has.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/view.pb.h"
#include "server/coordinator/state/kept_state.h"

namespace slackline {

// The fields are as in CoordinatorCore::Options, but for the last three.
struct KeptJob {
  std::string job;
  uint64_t run = 0;
  std::string config_hash;
  wire::Build build;
  int protocol = 0;
  // The checkpoint that it has gone on from.
  std::shared_ptr<const checkpoint::Manifest> resume;
  std::string resume_sha256;
  std::string resume_folder;

  bool formed = false;  // All had joined: it ran, and perhaps has ended.
  bool ended = false;
  wire::JobEnd end = {};  // Set if it has ended.
};

// What does not change. The end is in the view.
void KeepJob(const KeptJob& job, KeptState* kept);

// DataLoss names the key that is broken.
absl::StatusOr<KeptJob> KeptJobIn(const CoordinatorState& state);

}  // namespace slackline
