// How often everything has to happen and be looked at: a simulation must not
// rot into one in which nothing happens, or nothing is checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/run_counts.h"

namespace slackline::sim {

// Seeds of one block of each kind: as many as it takes to meet everything that
// is counted.
inline constexpr uint64_t kSeedsPerPlainBlock = 750;
inline constexpr uint64_t kSeedsPerModesBlock = 600;
inline constexpr uint64_t kSeedsPerBlock = 500;  // Of every other kind.

// Which seeds are run, by the test that runs them.
enum class SeedRuns {
  kBlock,        // One block of plain seeds.
  kModesBlock,   // With changes of the mode.
  kResumeBlock,  // Jobs that go on from a checkpoint.
  // So many more seeds, for what is too rare for every block:
  kDeathsInMoves,
  kDeathsInChanges,       // Of the mode.
  kDeathsInCopies,        // And in failovers.
  kCoordinatorInMoves,    // The coordinator dies at every step of a move,
  kCoordinatorInChanges,  // or of a change of the mode.
  kTakeOvers,             // Any server goes on as the coordinator.
};

// A sentence for each count of these runs that is too small. Empty: all is
// well.
std::vector<std::string> BelowFloors(SeedRuns runs, RunCounts counts);

}  // namespace slackline::sim
