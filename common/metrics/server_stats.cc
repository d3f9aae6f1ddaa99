#include "common/metrics/server_stats.h"

#include <algorithm>

#include "common/metrics/metric_table.h"
#include "common/metrics/refusals.h"

namespace slackline {
namespace {

// One entry for each worker.
template <typename Gradients>
void FoldByRank(const Gradients& from,
                google::protobuf::RepeatedPtrField<Gradients>* entries) {
  const auto entry = std::find_if(
      entries->begin(), entries->end(),
      [&](const auto& other) { return other.rank() == from.rank(); });
  if (entry == entries->end()) {
    *entries->Add() = from;
    return;
  }
  const uint64_t gradients = entry->gradients() + from.gradients();
  if (from.last_clock() > entry->last_clock()) *entry = from;
  entry->set_gradients(gradients);
}

}  // namespace

void FoldServerStats(const run::ServerStats& from, run::ServerStats* to) {
  FoldMetrics(ServerMetrics(), from, to);
  if (from.has_refused()) FoldRefusals(from.refused(), to->mutable_refused());
  for (const run::NonfiniteGradients& nonfinite : from.nonfinite())
    FoldByRank(nonfinite, to->mutable_nonfinite());
  for (const run::OversizedGradients& oversized : from.oversized())
    FoldByRank(oversized, to->mutable_oversized());
  to->mutable_thread()->MergeFrom(from.thread());
  to->mutable_hand_over()->MergeFrom(from.hand_over());
  to->mutable_follower()->MergeFrom(from.follower());
}

double ThreadsBusy(const run::ServerStats& server) {
  double busy = 0;
  for (const run::ThreadLoad& thread : server.thread())
    busy += thread.utilisation();
  return busy;
}

double IoFactor(const run::ServerStats& server) {
  const double threads = ThreadsBusy(server);
  return threads > 0 ? std::max(1.0, server.io_utilisation() / threads) : 1;
}

}  // namespace slackline
