#include "server/shard/load_meter.h"

#include <algorithm>
#include <cmath>

namespace slackline {
namespace {

// Less work than this says nothing about how fast the thread is.
constexpr double kBusySecondsMin = 1e-3;

}  // namespace

double LoadMeter::DecayFactor(absl::Duration time) const {
  return std::exp(-absl::FDivDuration(time, options_.decay));
}

void LoadMeter::Decay(absl::Time now) {
  if (now <= updated_) return;
  const double factor = DecayFactor(now - updated_);
  updated_ = now;
  for (double* const sum : {&busy_, &cpu_, &messages_, &queued_, &bytes_}) {
    *sum *= factor;
  }
}

void LoadMeter::Decay(ShardSums* sums) const {
  if (updated_ <= sums->decayed) return;
  const double factor = DecayFactor(updated_ - sums->decayed);
  sums->decayed = updated_;
  for (double* const sum : {&sums->pushes, &sums->pulls, &sums->bytes_in,
                            &sums->bytes_out, &sums->busy}) {
    *sum *= factor;
  }
}

LoadMeter::ShardSums& LoadMeter::SumsOf(ShardId shard, absl::Time since) {
  const auto [at, added] = index_of_.try_emplace(shard, shards_.size());
  if (added)
    shards_.push_back({.shard = shard, .since = since, .decayed = updated_});
  ShardSums& sums = shards_[at->second];
  Decay(&sums);
  return sums;
}

void LoadMeter::IndexShards() {
  index_of_.clear();
  for (size_t i = 0; i < shards_.size(); ++i) index_of_[shards_[i].shard] = i;
}

double LoadMeter::Seconds(absl::Time since) const {
  // The integral of exp(-t / decay) over the time since then.
  const double weight =
      1 - std::exp(-absl::FDivDuration(updated_ - since, options_.decay));
  return std::max(absl::ToDoubleSeconds(options_.decay) * weight, 1e-3);
}

void LoadMeter::OnBatch(const Batch& batch, absl::Time now) {
  Decay(now);
  const double busy = absl::ToDoubleSeconds(batch.busy);
  busy_ += busy;
  cpu_ += absl::ToDoubleSeconds(batch.cpu);
  messages_ += batch.messages;
  queued_ += absl::ToDoubleSeconds(batch.queued);
  const auto cost = [&](const ShardWork& work) {
    return static_cast<double>(work.bytes_applied) +
           options_.cost_of_passing *
               static_cast<double>(work.bytes_in + work.bytes_out) +
           options_.bytes_per_request * (work.pushes + work.pulls);
  };
  double total = 0;
  for (const ShardWork& work : batch.work) total += cost(work);
  if (total <= 0) return;
  bytes_ += total + options_.bytes_per_message * batch.messages;
  if (busy_ > kBusySecondsMin) bytes_per_busy_second_ = bytes_ / busy_;
  for (const ShardWork& work : batch.work) {
    ShardSums& sums = SumsOf(work.shard, now - batch.busy);
    sums.pushes += work.pushes;
    sums.pulls += work.pulls;
    sums.bytes_in += static_cast<double>(work.bytes_in);
    sums.bytes_out += static_cast<double>(work.bytes_out);
    sums.busy += busy * cost(work) / total;
  }
}

run::ThreadLoad LoadMeter::Report() {
  run::ThreadLoad load;
  const double seconds = Seconds(started_);
  load.set_utilisation(busy_ / seconds);
  load.set_cpu(cpu_ / seconds);
  load.set_queue_ms(messages_ > 0 ? queued_ / messages_ * 1000 : 0);
  load.set_bytes_per_busy_second(bytes_per_busy_second_);
  for (ShardSums& sums : shards_) {
    Decay(&sums);
    const double shard_seconds = Seconds(sums.since);
    run::ShardLoad& report = *load.add_shard();
    report.set_shard(static_cast<int32_t>(sums.shard));
    report.set_pushes(static_cast<float>(sums.pushes / shard_seconds));
    report.set_pulls(static_cast<float>(sums.pulls / shard_seconds));
    report.set_bytes_in(static_cast<float>(sums.bytes_in / shard_seconds));
    report.set_bytes_out(static_cast<float>(sums.bytes_out / shard_seconds));
    report.set_busy(static_cast<float>(sums.busy / shard_seconds));
  }
  return load;
}

}  // namespace slackline
