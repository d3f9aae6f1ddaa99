// RecordQueue: the metric records of a member until the coordinator keeps them.
//
// They are numbered in their order, from 0 on. A record that has been sent
// keeps its number.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/time/time.h"
#include "proto/run.pb.h"
#include "proto/wire.pb.h"

namespace slackline {

class RecordQueue {
 public:
  // At most `records_max` are kept, more than a heartbeat takes: 256.
  explicit RecordQueue(size_t records_max) : records_max_(records_max) {}

  // Where there is no room, the oldest TRAIN record that was not sent yet makes
  // it, and only if there is none the oldest of the others.
  void Add(const run::MetricRecord& record, absl::Time made_at);
  // The oldest ones, as many as a heartbeat takes.
  void PutInto(wire::Heartbeat* heartbeat, absl::Time now);
  // The coordinator keeps those before this number.
  void OnKept(uint64_t number);
  // How many have made room since the last call.
  int64_t DroppedSince() { return std::exchange(dropped_, 0); }
  size_t size() const { return records_.size(); }

 private:
  struct Record {
    run::MetricRecord record;
    absl::Time made_at;
  };

  const size_t records_max_;
  uint64_t first_ = 0;  // The number of records_.front().
  size_t sent_ = 0;     // So many of records_ have been sent.
  std::deque<Record> records_;
  int64_t dropped_ = 0;
};

}  // namespace slackline
