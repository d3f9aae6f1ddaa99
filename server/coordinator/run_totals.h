// RunTotals: what the members of a run have reported of themselves, summed up.
// Members that are gone are folded into sums, so that a job in which workers
// come and go for ever takes no more memory than its number of ranks.
//
// Deterministic. Thread-compatible.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "proto/coordinator_state.pb.h"
#include "proto/run.pb.h"

namespace slackline {

class RunTotals {
 public:
  // A member has gone: these are the last statistics of it. `rank` is what the
  // coordinator knows, not what the member says.
  void AddGone(int32_t rank, const run::WorkerStats& stats);
  void AddGone(const run::ServerStats& stats);
  // A sentence about a worker that was lost. All are counted, the first ones
  // are kept.
  void AddLost(const std::string& sentence);

  // A sentence about a worker that was slow. The first ones are kept.
  void AddStraggler(const std::string& sentence);

  // Where a worker's program has failed. The last one of each of the first
  // ranks is kept. Empty: nothing is known.
  void AddTraceback(int32_t rank, const std::string& text);

  struct Worker {
    int32_t rank = 0;
    const run::WorkerStats* stats = nullptr;
  };
  // How many the workers that are gone have trained on.
  int64_t examples_of_gone() const { return examples_; }
  // Sets what follows from the statistics of those who are gone and of those
  // who are there, and from the sentences.
  void Put(const std::vector<Worker>& workers,
           const std::vector<const run::ServerStats*>& servers,
           run::Summary* summary) const;

  // Whom servers have refused: those that are gone, and these.
  run::Refusals Refused(
      const std::vector<const run::ServerStats*>& servers) const;

  // For the next coordinator. TakeNews(): what was added since it was called
  // last.
  coordinator::TotalsState Keep() const;
  void Load(const coordinator::TotalsState& state);
  bool TakeNews() { return std::exchange(news_, false); }

  static constexpr int kLostMax = 256;          // Sentences.
  static constexpr size_t kStragglersMax = 64;  // Sentences.
  static constexpr size_t kTracebacksMax = 16;
  static constexpr size_t kTracebackBytesMax = 8192;

 private:
  static void Add(int32_t rank, const run::WorkerStats& stats,
                  run::Summary* sums,
                  std::map<int32_t, run::WorkerSummary>* last,
                  std::map<int32_t, uint64_t>* nonfinite);
  static void Add(const run::ServerStats& stats, run::ServerStats* sums);

  int64_t examples_ = 0;
  run::Summary workers_;  // Sums over workers that are gone.
  std::map<int32_t, run::WorkerSummary> last_;  // The last gone life, by rank.
  run::ServerStats servers_;               // Sums over servers that are gone.
  std::map<int32_t, uint64_t> nonfinite_;  // Steps by all-reduce, by rank.
  std::vector<std::string> lost_;
  int64_t lost_count_ = 0;
  std::vector<std::string> stragglers_;
  std::map<int32_t, std::string> tracebacks_;  // By rank.
  bool news_ = false;
};

}  // namespace slackline
