#include "worker/collective/collective_config.h"

#include "common/block/bounds.h"

namespace slackline {
namespace {

// As the schema says.
constexpr int kNcclBucketKib = 25600;
constexpr int kHostBucketKib = 4096;

}  // namespace

void FillCollective(bool nccl, config::Collective* collective) {
  if (collective->has_bucket_kib()) return;
  collective->set_bucket_kib(nccl ? kNcclBucketKib : kHostBucketKib);
}

void CheckCollective(const config::Collective& collective, bool nccl,
                     const ConfigProblems& problems) {
  problems.Range("bucket_kib", collective.bucket_kib(), 1, kKibMax);
  for (int i = 0; i < collective.lane_size(); ++i) {
    const ConfigProblems of_lane = problems.In("lane", i);
    switch (collective.lane(i).way_case()) {
      case config::Lane::WAY_NOT_SET:
        of_lane.Add("",
                    "has no way; one of ranks, servers, measured is required");
        break;
      case config::Lane::kRanks:
        break;
      default:
        if (!nccl) break;
        of_lane.Add("",
                    "needs workers on CPUs, and all of them have device: CUDA; "
                    "leave it out");
    }
  }
  const config::Collective::Algorithm algorithm = collective.algorithm();
  if (algorithm == config::Collective::ALGORITHM_UNSPECIFIED) {
    problems.Add("algorithm",
                 "value is ALGORITHM_UNSPECIFIED; RING, TREE or ANY is "
                 "required");
  } else if (algorithm != config::Collective::RING && !nccl) {
    problems.Add(
        "algorithm",
        absl::StrCat("value is ", config::Collective::Algorithm_Name(algorithm),
                     "; without NCCL, which needs device: CUDA in all "
                     "workers, only RING is there"));
  }
}

}  // namespace slackline
