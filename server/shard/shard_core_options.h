// What a shard thread is told once, when it begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/checkpoint/shard_state.h"
#include "common/delays/delay_source.h"
#include "common/ids.h"
#include "common/optim/gradient_bound.h"
#include "common/optim/stale/stale_rule.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"
#include "server/shard/log_feed.h"
#include "server/shard/store/store_kinds.h"

namespace slackline {

struct ShardCoreOptions {
  Owner self;
  uint64_t seed = 0;  // Initial values follow from it.
  bool trace = false;
  // What the shards of a table keep.
  std::function<std::shared_ptr<const StoreKind>(const wire::Table&)> store_of =
      StoreKindOf;
  LogFeedOptions feed = {};
  StaleRules stale = {};
  // Required if the job's mode follows given delays.
  std::shared_ptr<const DelaySource> delays = nullptr;
  int workers = 0;  // Workers of a job with given delays.
  // Required if the job goes on from a checkpoint: what shards begin as.
  std::shared_ptr<const StoredShards> stored = nullptr;
  // What becomes of a gradient with a NaN or an infinity: it is discarded in
  // any case; with STOP the coordinator is told at once.
  config::Train::Nonfinite nonfinite = config::Train::STOP;
  // A gradient above this bound is discarded, and if the bound stops jobs the
  // coordinator is told at once.
  GradientBound gradient_bound = {};
  // Requests of one shard each that wait while their shard is on its way, and
  // the bytes of what they ask and of their payload: for one shard, and for all
  // of this thread. What is beyond a bound is told to RETRY.
  size_t waiting_max = 4096;
  size_t waiting_bytes_max = 16 << 20;
  size_t waiting_bytes_max_all = 64 << 20;
  // A message of pull answers takes no more of them at this payload.
  size_t reply_bytes = 1 << 20;
  // Messages of hand-overs that wait for a view, and their payload bytes;
  // more are left to be repeated.
  size_t early_max = 64;
  size_t early_bytes_max = 16 << 20;
  // The shards' next versions, and sums for followers, are made in it, since
  // they are sent.
  std::shared_ptr<PayloadMemory> memory = std::make_shared<PayloadMemory>();
};

}  // namespace slackline
