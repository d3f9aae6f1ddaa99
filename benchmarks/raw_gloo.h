// Gloo as it is, for comparison: its ring all-reduce called on the caller's own
// thread, and its store of files.
#pragma once

#include <memory>
#include <string>

#include "absl/types/span.h"
#include "worker/collective/rendezvous_store.h"

namespace slackline::bench {

// In a folder that all ranks see and that lives longer.
std::unique_ptr<RendezvousStore> FileStore(const std::string& folder);

// Thread-compatible. What fails is fatal.
class RawGloo {
 public:
  // Returns when all ranks have come; they give the same folder, which is not
  // that of another group.
  RawGloo(int rank, int world_size, const std::string& folder);
  ~RawGloo();
  // Replaces each element by its sum over all ranks.
  void AllReduce(absl::Span<float> data);

 private:
  class Context;
  const std::unique_ptr<Context> context_;
};

}  // namespace slackline::bench
