#include "common/metrics/server_stats.h"

#include <algorithm>

#include "common/metrics/histogram.h"

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
  to->set_pushes(to->pushes() + from.pushes());
  to->set_pulls(to->pulls() + from.pulls());
  to->set_updates(to->updates() + from.updates());
  to->set_duplicates(to->duplicates() + from.duplicates());
  to->set_malformed(to->malformed() + from.malformed());
  to->set_bytes_in(to->bytes_in() + from.bytes_in());
  to->set_bytes_out(to->bytes_out() + from.bytes_out());
  to->set_shards(to->shards() + from.shards());
  to->set_pulls_parked(to->pulls_parked() + from.pulls_parked());
  to->set_dropped(to->dropped() + from.dropped());
  to->set_applied(to->applied() + from.applied());
  to->set_held(to->held() + from.held());
  to->set_copies(to->copies() + from.copies());
  to->set_answers_held(to->answers_held() + from.answers_held());
  to->set_bytes_to_followers(to->bytes_to_followers() +
                             from.bytes_to_followers());
  to->set_bytes_to_followers_resent(to->bytes_to_followers_resent() +
                                    from.bytes_to_followers_resent());
  MergeHistogram(from.missed_clocks(), to->mutable_missed_clocks());
  MergeHistogram(from.missed_updates(), to->mutable_missed_updates());
  MergeHistogram(from.lead(), to->mutable_lead());
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
