// HeldByClock: gradients that wait for the rest of their clock, which is the
// first that is not complete, in every mode but that of given delays. Others
// are due at once: a job may change from one to the other at any clock.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "server/shard/accepted_gradients.h"

namespace slackline {

class HeldByClock : public AcceptedGradients {
 public:
  HeldByClock() = default;
  // Goes on with what was held before.
  HeldByClock(std::vector<HeldGradient> held, int spare)
      : held_(std::move(held)), spare_(spare) {}

  absl::Status Add(const GradientRecord& push, const Present& present) override;
  absl::Status AddSum(const SumRecord& sum, Clock last,
                      const Participants& after) override;
  int OnInstalled() override;
  Clock CompleteClock(Clock last,
                      const Participants& participants) const override;
  std::optional<DueUpdate> Next(const Present& present,
                                std::optional<Clock> completed,
                                std::vector<TurnVerdict>* verdicts) override;
  HeldByClock Split(const ShardStore& store, const Region& kept,
                    const Region& rest);
  void Put(ShardSnapshot* snapshot) const override;
  absl::Status Check(const ShardStore& store) const override;
  size_t size() const override { return held_.size(); }
  absl::Span<const HeldGradient> held() const override { return held_; }
  // A step by clocks may be followed by one of which each gradient is applied
  // at once.
  ModeRule::Updates order_of_values() const override {
    return ModeRule::Updates::kAtOnce;
  }

 private:
  std::vector<HeldGradient> held_;
  int spare_ = 0;  // The held gradients' GradientRecord::spare.
  // What the record that is being applied makes due, until it is taken.
  std::optional<DueUpdate> due_;
};

}  // namespace slackline
