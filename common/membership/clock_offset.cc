#include "common/membership/clock_offset.h"

namespace slackline {
namespace {

constexpr size_t kSamplesMax = 32;

}  // namespace

absl::Duration ClockOffset::BoundOf(const Sample& sample, absl::Time now) {
  return sample.bound + absl::AbsDuration(now - sample.received) * kDriftMax;
}

void ClockOffset::OnRoundTrip(absl::Time sent, absl::Time heard,
                              absl::Time received) {
  if (received < sent) return;
  const absl::Duration half = (received - sent) / 2;
  const Sample sample = {
      .offset = heard - (sent + half), .bound = half, .received = received};
  const std::optional<Estimate> known = At(received);
  if (known.has_value() && absl::AbsDuration(known->offset - sample.offset) >
                               known->bound + sample.bound) {
    samples_.clear();
  }
  if (samples_.size() == kSamplesMax) samples_.pop_front();
  samples_.push_back(sample);
}

std::optional<ClockOffset::Estimate> ClockOffset::At(absl::Time now) const {
  std::optional<Estimate> best;
  for (const Sample& sample : samples_) {
    const absl::Duration bound = BoundOf(sample, now);
    if (best.has_value() && best->bound <= bound) continue;
    best = Estimate{.offset = sample.offset, .bound = bound};
  }
  return best;
}

}  // namespace slackline
