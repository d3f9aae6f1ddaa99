// Many seeds, done in parallel and in several goes: which have been done, and
// what happened in them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "tests/sim/run_counts.h"

namespace slackline::sim {

// Hands out seeds in ascending order, a chunk at a time. Thread-compatible.
class LongRun {
 public:
  struct Options {
    uint64_t first = 1;
    uint64_t seeds = 0;   // 0: without end.
    uint64_t chunk = 50;  // At least 1.
    std::string what;     // What is run: a state of another is refused.
  };
  struct Chunk {
    uint64_t first = 0;
    uint64_t seeds = 0;
  };

  explicit LongRun(const Options& options)
      : options_(options), next_(options.first), done_(options.first) {}

  // None: all have been handed out.
  std::optional<Chunk> Next();
  // All of these have been run, well.
  void Done(const Chunk& chunk, const RunCounts& counts);

  // All seeds from the first up to this one, exclusive, have been done.
  uint64_t done_up_to() const { return done_; }
  const RunCounts& counts() const { return counts_; }

  // Where it has got to: chunks that others have overtaken are not in it.
  std::string State() const;
  // Goes on from there. False, and nothing changes: it is no such state.
  bool Resume(const std::string& state);

 private:
  const Options options_;
  uint64_t next_;
  uint64_t done_;
  RunCounts counts_;  // Of the seeds below done_.
  struct Ahead {
    uint64_t seeds = 0;
    RunCounts counts;
  };
  std::map<uint64_t, Ahead> ahead_;  // Done before those below them; by seed.
};

}  // namespace slackline::sim
