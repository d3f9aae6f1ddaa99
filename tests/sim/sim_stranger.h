// Somebody on the network who is no member of the job: sends the coordinator
// and the shard threads what real messages become when they are changed, cut
// short, repeated by another, or of an earlier run. Nothing may change by them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/sim_context.h"

namespace slackline::sim {

class SimStranger {
 public:
  struct Counts {
    int64_t sent = 0;
    int64_t unreadable = 0;  // No header: a transport lets nothing of it pass.
    int64_t answers = 0;     // Errors and refusals, mostly.

    void Add(const Counts& other);
  };

  // Looks at what passes, for samples.
  explicit SimStranger(SimContext* context);

  const Counts& counts() const { return counts_; }
  // No member and no user has such an instance.
  static bool IsStranger(const PeerId& peer);

 private:
  struct Sample {
    PeerId to;
    Message message;
  };
  void Send(uint64_t luck);
  // What becomes of a real message. False: nothing that can be read.
  static bool Change(Rng& rng, Message* message);
  // A user may ask for this, or a new process: it is no garbage.
  static bool MakesSense(const Message& message);

  SimContext* const context_;
  Rng rng_;
  int64_t seen_ = 0;
  std::vector<Sample> samples_;
  Counts counts_;
  Lifetime lifetime_;
};

}  // namespace slackline::sim
