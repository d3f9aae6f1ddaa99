// The rule for stale gradients at one shard, and what it has to remember: the
// values that each worker computes from, as references to versions of the
// shard, and its own decayed mean. A rule that needs the values costs one more
// buffer of the shard for each worker that is at another version.
//
// Nothing of this moves with a shard, or is split with it: the first gradients
// after that are applied as they are. Thread-compatible; the shard thread's.
#pragma once

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "common/ids.h"
#include "common/optim/stale/stale_rule.h"
#include "common/payload.h"
#include "common/sync/participants.h"

namespace slackline {

class StalePushes {
 public:
  StalePushes() = default;  // No rule.
  // `maximize` is that of the table's optimizer.
  StalePushes(StaleRule rule, bool maximize)
      : rule_(rule), maximize_(maximize) {}

  const StaleRule& rule() const { return rule_; }
  // A worker was told of the values of this version; for rules that
  // NeedsBase().
  void OnAnswer(Rank rank, Incarnation incarnation, Version version,
                const Payload& values);
  // What to do with its gradient. `now` is the shard's version and its values.
  struct Push {
    Rank rank{};
    Incarnation incarnation = 0;
    Version base = 0;  // The gradient was computed from it.
    const Payload* gradient = nullptr;
    Version now = 0;
    const Payload* values = nullptr;
    int workers = 1;
  };
  StaleRule::Verdict OnPush(const Push& push);
  // An update has replaced these values; for rules that NeedsUpdates().
  void OnUpdate(const Payload& before, const Payload& after);
  // Forgets those who do not take part: nothing comes of them any more.
  void ForgetStrangers(const Participants& participants);
  // Somebody else has made the values that are there now.
  void Forget();

 private:
  struct Base {
    Version version = 0;
    Payload values;
  };
  // A worker asks one step ahead.
  static constexpr size_t kBasesPerWorker = 2;
  struct Bases {
    Incarnation incarnation = 0;
    absl::InlinedVector<Base, kBasesPerWorker> bases;  // Oldest first.
  };
  StaleRule rule_;
  bool maximize_ = false;
  StaleRule::Memory memory_;
  absl::flat_hash_map<Rank, Bases> bases_of_;
};

}  // namespace slackline
