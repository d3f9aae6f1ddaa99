#include "server/shard/shard_counts.h"

#include <google/protobuf/descriptor.h>

#include "common/metrics/staleness.h"
#include "common/status.h"

namespace slackline {
namespace {

using Stats = run::ServerStats;

// One more gradient of the rank among the counts, of which `*entries` has the
// places by rank. Returns that of the rank.
template <typename Count>
Count* CountOne(ShardId shard, Rank rank, Clock clock,
                absl::flat_hash_map<int32_t, int>* entries,
                google::protobuf::RepeatedPtrField<Count>* counts) {
  const auto number = static_cast<int32_t>(rank);
  const auto [entry, added] = entries->try_emplace(number, counts->size());
  Count* const count = added ? counts->Add() : counts->Mutable(entry->second);
  count->set_rank(number);
  count->set_gradients(count->gradients() + 1);
  count->set_last_clock(clock);
  count->set_last_shard(static_cast<int32_t>(shard));
  return count;
}

}  // namespace

ShardCounts::ShardCounts(const Options& options) : options_(options) {
  stats_.set_index(options.server);
}

void ShardCounts::Count(int field, uint64_t by) {
  const google::protobuf::FieldDescriptor* const counter =
      Stats::descriptor()->FindFieldByNumber(field);
  SL_CHECK(counter != nullptr && !counter->is_repeated() &&
               counter->cpp_type() ==
                   google::protobuf::FieldDescriptor::CPPTYPE_UINT64,
           "what is counted is a uint64 of ServerStats");
  const google::protobuf::Reflection& stats = *stats_.GetReflection();
  stats.SetUInt64(&stats_, counter, stats.GetUInt64(stats_, counter) + by);
}

void ShardCounts::Answered(size_t bytes) {
  stats_.set_pulls(stats_.pulls() + 1);
  stats_.set_bytes_out(stats_.bytes_out() + bytes);
}

void ShardCounts::Installed(size_t bytes) {
  stats_.set_bytes_in(stats_.bytes_in() + bytes);
}

void ShardCounts::Lead(Clock step, Clock complete) {
  CountLead(step, complete, &stats_);
}

void ShardCounts::Pushed(size_t bytes) {
  stats_.set_pushes(stats_.pushes() + 1);
  stats_.set_bytes_in(stats_.bytes_in() + bytes);
}

void ShardCounts::Inherited(size_t gradients) {
  stats_.set_pushes(stats_.pushes() + gradients);
}

void ShardCounts::Updated(size_t gradients) {
  stats_.set_updates(stats_.updates() + 1);
  stats_.set_applied(stats_.applied() + gradients);
}

void ShardCounts::Dropped(size_t gradients) {
  stats_.set_dropped(stats_.dropped() + gradients);
}

void ShardCounts::Missed(int64_t missed, int updates_per_clock) {
  CountMissed(missed, updates_per_clock, &stats_);
}

bool ShardCounts::Nonfinite(ShardId shard, Rank rank, Clock clock) {
  CountOne(shard, rank, clock, &nonfinite_entries_, stats_.mutable_nonfinite());
  return options_.nonfinite_stops;
}

bool ShardCounts::Oversized(ShardId shard, Rank rank, Clock clock,
                            const GradientBound::Excess& excess) {
  run::OversizedGradients& count = *CountOne(
      shard, rank, clock, &oversized_entries_, stats_.mutable_oversized());
  count.set_last_rms(excess.rms);
  count.set_last_bound(excess.bound);
  count.clear_last_running_rms();
  if (excess.running.has_value()) count.set_last_running_rms(*excess.running);
  return options_.oversized_stops;
}

}  // namespace slackline
