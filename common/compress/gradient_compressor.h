// GradientCompressor: what a worker does to its gradients before it pushes
// them, as sync.compression says for each table.
//
// With error feedback, what a code loses of a gradient is kept and added to the
// next one of the same table: of g_t and the rest r_t of the steps before,
// C(g_t + r_t) is pushed, and r_{t+1} = g_t + r_t - C(g_t + r_t) (Seide et al.,
// 2014; Stich et al., 2018). So nothing is lost, it only comes later.
//
// A gradient with a NaN or an infinity is pushed as it is, for servers to see,
// and leaves the rest alone.
//
// Deterministic. Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/compress/gradient_code.h"
#include "common/ids.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"

namespace slackline {

class GradientCompressor {
 public:
  // Blocks end where the config's shards do. InvalidArgument: as of
  // CheckCompression(), or an entry fits no table.
  static absl::StatusOr<GradientCompressor> Create(
      const config::ClusterConfig& config, absl::Span<const wire::Table> tables,
      Rank rank);

  // The gradient of `clock`: elements x float, at any alignment. Of each table
  // in the order of the clocks.
  CodedGradient Compress(TableId table, Clock clock, const Payload& gradient);

  // Whether a gradient depends on those before it, by error feedback.
  bool remembers() const;
  // What error feedback has kept so far: of each table that has something its
  // floats; a copy.
  struct Residual {
    TableId table{};
    Payload floats;
  };
  std::vector<Residual> Residuals() const;
  // Goes on with it. Left out where the config has no error feedback for the
  // table any more. InvalidArgument: no such table, or of another size.
  absl::Status GoOnWith(absl::Span<const Residual> residuals);

  // Bytes of all tables' gradients, and those that are pushed of them.
  int64_t bytes() const;
  int64_t bytes_pushed() const;

 private:
  struct Of {
    int64_t elements = 0;
    GradientCode code = {};  // whole(): it is pushed as it is.
    Keep keep = Keep::kLargest;
    bool error_feedback = true;
    std::vector<float> rest;  // Empty before the first gradient.
  };

  explicit GradientCompressor(uint64_t seed) : seed_(seed) {}

  uint64_t seed_;  // Of this worker in this job.
  std::vector<Of> tables_;
  std::vector<float> values_;   // Of one table; kept for their memory.
  std::vector<float> decoded_;  // Of one table; kept for their memory.
};

}  // namespace slackline
