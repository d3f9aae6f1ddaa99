#include "worker/data/sampler.h"

#include <numeric>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<Sampler> Sampler::Create(const Options& options) {
  if (options.batch_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.batch_size: ", options.batch_size,
                     " is too small, at least 1 is required"));
  }
  const auto rank = static_cast<int64_t>(options.rank);
  if (options.world_size < 1 || rank < 0 || rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampler: rank ", rank, " is outside [0, ",
                     options.world_size, "), the workers of the job"));
  }
  if (options.elastic) {
    if (options.examples >= 1) return Sampler(options);
    return absl::InvalidArgumentError("data: there are no training examples");
  }
  if (options.examples / options.batch_size / options.world_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: ", options.examples,
        " training examples do not make one step of ", options.world_size,
        " workers with batches of ", options.batch_size,
        "; use a smaller batch_size or fewer workers"));
  }
  return Sampler(options);
}

Sampler::Sampler(const Options& options)
    : options_(options),
      steps_per_epoch_(options.examples /
                       (options.batch_size * options.world_size)) {}

absl::Span<const int64_t> Sampler::At(int64_t epoch, int64_t begin,
                                      int64_t end) {
  SL_CHECK(epoch >= 0 && begin >= 0 && begin <= end && end <= options_.examples,
           absl::StrCat("places [", begin, ", ", end, ") of epoch ", epoch));
  const auto count = static_cast<size_t>(end - begin);
  if (!options_.shuffle) {
    rows_.resize(count);
    std::iota(rows_.begin(), rows_.end(), begin);
    return rows_;
  }
  if (epoch != epoch_) {
    rows_.resize(static_cast<size_t>(options_.examples));
    std::iota(rows_.begin(), rows_.end(), 0);
    Rng rng = Rng(options_.seed).Fork(absl::StrCat("sampler epoch ", epoch));
    for (size_t i = rows_.size(); i > 1; --i)  // Fisher-Yates.
      std::swap(rows_[i - 1], rows_[rng.Below(i)]);
    epoch_ = epoch;
  }
  return absl::MakeConstSpan(rows_).subspan(static_cast<size_t>(begin), count);
}

ExampleRange Sampler::PlacesOf(Clock step) const {
  SL_CHECK(step >= 0, absl::StrCat("step ", step));
  const int64_t global_batch = step % steps_per_epoch_;
  const int64_t begin = (global_batch * options_.world_size +
                         static_cast<int64_t>(options_.rank)) *
                        options_.batch_size;
  return {.epoch = step / steps_per_epoch_,
          .begin = begin,
          .end = begin + options_.batch_size};
}

absl::Span<const int64_t> Sampler::Batch(Clock step) {
  const ExampleRange places = PlacesOf(step);
  return At(places.epoch, places.begin, places.end);
}

}  // namespace slackline
