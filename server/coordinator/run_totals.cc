#include "server/coordinator/run_totals.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/metrics/metric_table.h"
#include "common/metrics/refusals.h"
#include "common/metrics/server_stats.h"
#include "common/metrics/staleness.h"
#include "common/shortened.h"

namespace slackline {

void RunTotals::Add(int32_t rank, const run::WorkerStats& stats,
                    run::Summary* sums,
                    std::map<int32_t, run::WorkerSummary>* last,
                    std::map<int32_t, uint64_t>* nonfinite) {
  sums->set_steps(std::max(sums->steps(), stats.clock()));
  AddToSummary(WorkerMetrics(), stats, sums);
  run::WorkerSummary& worker = (*last)[rank];
  worker.set_rank(rank);
  PutIntoSummary(stats, &worker);
  (*nonfinite)[rank] += stats.nonfinite();
}

void RunTotals::Add(const run::ServerStats& stats, run::ServerStats* sums) {
  run::ServerStats counters = stats;  // What it is just doing is no counter.
  counters.clear_thread();
  counters.clear_hand_over();
  counters.clear_follower();
  FoldServerStats(counters, sums);
}

void RunTotals::AddGone(int32_t rank, const run::WorkerStats& stats) {
  news_ = true;
  examples_ += stats.examples();
  Add(rank, stats, &workers_, &last_, &nonfinite_);
}

void RunTotals::AddGone(const run::ServerStats& stats) {
  news_ = true;
  Add(stats, &servers_);
}

void RunTotals::AddLost(const std::string& sentence) {
  news_ = true;
  ++lost_count_;
  if (lost_.size() < kLostMax) lost_.push_back(sentence);
}

void RunTotals::AddStraggler(const std::string& sentence) {
  if (stragglers_.size() >= kStragglersMax) return;
  news_ = true;
  stragglers_.push_back(sentence);
}

void RunTotals::AddTraceback(int32_t rank, const std::string& text) {
  if (text.empty()) return;
  if (tracebacks_.size() >= kTracebacksMax && tracebacks_.count(rank) == 0)
    return;
  news_ = true;
  tracebacks_[rank] = Shortened(text, kTracebackBytesMax);
}

coordinator::TotalsState RunTotals::Keep() const {
  coordinator::TotalsState state;
  state.set_examples(examples_);
  *state.mutable_workers() = workers_;
  for (const auto& [rank, worker] : last_) *state.add_last() = worker;
  *state.mutable_servers() = servers_;
  state.mutable_nonfinite()->insert(nonfinite_.begin(), nonfinite_.end());
  state.mutable_lost()->Add(lost_.begin(), lost_.end());
  state.set_lost_count(lost_count_);
  state.mutable_straggler()->Add(stragglers_.begin(), stragglers_.end());
  for (const auto& [rank, text] : tracebacks_) {
    run::Traceback& traceback = *state.add_traceback();
    traceback.set_rank(rank);
    traceback.set_text(text);
  }
  return state;
}

void RunTotals::Load(const coordinator::TotalsState& state) {
  examples_ = state.examples();
  workers_ = state.workers();
  for (const run::WorkerSummary& worker : state.last())
    last_[worker.rank()] = worker;
  servers_ = state.servers();
  nonfinite_.insert(state.nonfinite().begin(), state.nonfinite().end());
  lost_.assign(state.lost().begin(), state.lost().end());
  lost_count_ = state.lost_count();
  stragglers_.assign(state.straggler().begin(), state.straggler().end());
  for (const run::Traceback& traceback : state.traceback())
    tracebacks_[traceback.rank()] = traceback.text();
}

run::Refusals RunTotals::Refused(
    const std::vector<const run::ServerStats*>& servers) const {
  run::Refusals sums = servers_.refused();
  for (const run::ServerStats* server : servers)
    FoldRefusals(server->refused(), &sums);
  return sums;
}

void RunTotals::Put(const std::vector<Worker>& workers,
                    const std::vector<const run::ServerStats*>& servers,
                    run::Summary* summary) const {
  run::Summary sums = workers_;
  std::map<int32_t, run::WorkerSummary> last = last_;
  std::map<int32_t, uint64_t> nonfinite = nonfinite_;
  for (const Worker& worker : workers) {
    Add(worker.rank, *worker.stats, &sums, &last, &nonfinite);
  }
  run::ServerStats server_sums = servers_;
  for (const run::ServerStats* server : servers) Add(*server, &server_sums);
  for (const run::NonfiniteGradients& of_rank : server_sums.nonfinite())
    nonfinite[of_rank.rank()] += of_rank.gradients();
  summary->MergeFrom(sums);
  for (const auto& [rank, gradients] : nonfinite) {
    summary->set_nonfinite(summary->nonfinite() + gradients);
    const auto worker = last.find(rank);
    if (worker != last.end()) worker->second.set_nonfinite(gradients);
  }
  for (const run::OversizedGradients& of_rank : server_sums.oversized()) {
    summary->set_oversized(summary->oversized() + of_rank.gradients());
    const auto worker = last.find(of_rank.rank());
    if (worker != last.end()) worker->second.set_oversized(of_rank.gradients());
  }
  for (const auto& [rank, worker] : last) *summary->add_worker() = worker;
  AddToSummary(ServerMetrics(), server_sums, summary);
  *summary->mutable_refused() = server_sums.refused();
  summary->mutable_stragglers()->Add(stragglers_.begin(), stragglers_.end());
  PutStaleness(server_sums, summary);
  for (const std::string& sentence : lost_) summary->add_workers_lost(sentence);
  if (lost_count_ > kLostMax) {
    summary->add_workers_lost(
        absl::StrCat("and ", lost_count_ - kLostMax, " more"));
  }
  for (const auto& [rank, text] : tracebacks_) {
    run::Traceback& traceback = *summary->add_traceback();
    traceback.set_rank(rank);
    traceback.set_text(text);
  }
}

}  // namespace slackline
