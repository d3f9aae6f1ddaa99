// How large a gradient of one shard may be (config::GradientBound).
//
// The size of a gradient is its root mean square, in the unit of one element of
// it: rms = sqrt(sum of g[i]^2 / n) over the n elements of the shard. A shard
// is all that a server sees of a gradient; unlike the norm, which grows with
// the square root of n, the root mean square says the same of shards of any
// size, and the parts of a shard that is split in two have about that of the
// whole.
//
// Two bounds, each of which may be absent:
//
//   rms > B                            B: config rms
//   rms > T * running, if count >= C   T: times_running_rms, C:
//   warm_up_gradients
//
// `running` and `count` are those of RunningRms, over the gradients of all
// workers that the shard has applied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Gives train.gradient_bound the values that it leaves out.
void FillGradientBound(config::GradientBound* config);

struct GradientBoundContext {
  bool may_all_reduce = false;  // A step of the job may be by all-reduce.
};
// Adds what is wrong with train.gradient_bound.
void CheckGradientBound(const config::GradientBound& config,
                        const GradientBoundContext& context,
                        const ConfigProblems& problems);

// The running root mean square of a shard's gradients: with the k-th one that
// counts,
//
//   mean += (rms - mean) / min(k, kWindow)
//
// so the mean of all of them at first, and from then on one that decays with
// kWindow gradients. Gradients of zeros alone do not count: a table of which
// the batches touch few rows has many, and they say nothing of the size of
// others. A part of a shard, so it goes wherever the shard goes.
class RunningRms {
 public:
  static constexpr uint64_t kWindow = 100;

  RunningRms() = default;  // No gradient has come.
  // `mean`, which is at least 0 and finite, is of `count` gradients.
  RunningRms(double mean, uint64_t count) : mean_(mean), count_(count) {}

  // `rms` is at least 0 and finite. 0: it was not measured, or does not count.
  void Add(double rms);

  double mean() const { return mean_; }
  uint64_t count() const { return count_; }
  bool operator==(const RunningRms&) const = default;

 private:
  double mean_ = 0;
  uint64_t count_ = 0;
};

// What the running root mean square of a shard is that is made of parts of
// others: that of all elements, and the smallest count.
class RunningRmsOfParts {
 public:
  void Add(const RunningRms& part, int64_t elements);
  // One part alone gives the same bits. At least one has been added.
  RunningRms Whole() const;

 private:
  int parts_ = 0;
  RunningRms first_;
  double squares_ = 0;  // The sum over all elements.
  double elements_ = 0;
  uint64_t count_ = 0;
};

// Immutable; any thread may call anything at any time.
class GradientBound {
 public:
  GradientBound() = default;  // There is no bound.
  // `config` was filled and checked.
  explicit GradientBound(const config::GradientBound& config);

  bool any() const { return rms_.has_value() || times_running_.has_value(); }
  // A gradient beyond it ends the job.
  bool stops() const { return stops_; }

  // The size of a gradient, `elements` little-endian floats at any alignment,
  // at least 1. nullopt: it has a NaN or an infinity. Without a bound the size
  // is not looked at, and is 0.
  std::optional<double> Measure(const std::byte* gradient,
                                size_t elements) const;

  // What a gradient of this size is above, if it is. `before` is of the
  // gradients that its verdict may depend on: where the gradients of a clock
  // are held until all are there, those of the clocks before it.
  struct Excess {
    double rms = 0;
    double bound = 0;
    // What the bound is made of; nullopt: it is config rms.
    std::optional<double> running;
  };
  std::optional<Excess> Judge(double rms, const RunningRms& before) const;

 private:
  std::optional<double> rms_;
  std::optional<double> times_running_;
  uint64_t warm_up_ = 0;
  bool stops_ = false;
};

}  // namespace slackline
