#include "server/coordinator/mode_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/sync/modes/mode.h"

namespace slackline {
namespace {

// The mean of fewer says too little.
constexpr Clock kStepsMin = 3;
// After so many intervals without a step a worker is no longer known.
constexpr int kIntervalsMissed = 3;

}  // namespace

sync::Mode ModePolicy::ModeOf(Aim aim) const {
  sync::Mode mode;
  if (aim == Aim::kSsp) {
    mode.mutable_ssp()->set_staleness(options_.config.staleness());
  } else {
    mode.mutable_allreduce();
  }
  return mode;
}

void ModePolicy::Take(const std::vector<Worker>& workers, absl::Time now) {
  std::map<Incarnation, std::deque<Sample>> kept;
  for (const Worker& worker : workers) {
    std::deque<Sample>& samples = kept[worker.incarnation];
    samples = std::move(samples_[worker.incarnation]);
    // Before its first step a worker's clock may still jump to where it joins.
    if (worker.compute_seconds <= 0) continue;
    if (!samples.empty() && worker.clock <= samples.back().clock) continue;
    samples.push_back({.time = now,
                       .clock = worker.clock,
                       .compute_seconds = worker.compute_seconds});
    // The shortest window that is long enough.
    while (samples.size() > 2 && now - samples[1].time >= hold() &&
           worker.clock - samples[1].clock >= kStepsMin) {
      samples.pop_front();
    }
  }
  samples_ = std::move(kept);
}

std::optional<double> ModePolicy::StepSeconds(const std::deque<Sample>& samples,
                                              absl::Time now) const {
  if (samples.size() < 2) return std::nullopt;
  const Sample& first = samples.front();
  const Sample& last = samples.back();
  const Clock steps = last.clock - first.clock;
  if (steps < kStepsMin) return std::nullopt;
  // Long steps come with long silences.
  const absl::Duration interval =
      std::max(options_.heartbeat, (last.time - first.time) / steps);
  if (now - last.time > std::max(hold(), interval * kIntervalsMissed)) {
    return std::nullopt;
  }
  const double seconds = last.compute_seconds - first.compute_seconds;
  if (seconds <= 0) return std::nullopt;
  return seconds / static_cast<double>(steps);
}

std::optional<ModePolicy::Measured> ModePolicy::Measure(
    const std::vector<Worker>& workers, absl::Time now) {
  if (workers.size() < 2) {
    missing_ = "there is one worker only, nothing to compare";
    return std::nullopt;
  }
  std::vector<std::pair<double, int32_t>> seconds;  // And the rank.
  for (const Worker& worker : workers) {
    const std::optional<double> own =
        StepSeconds(samples_.at(worker.incarnation), now);
    if (!own.has_value()) {
      missing_ =
          absl::StrCat("the steps of rank ", worker.rank, " are not known yet");
      return std::nullopt;
    }
    seconds.push_back({*own, worker.rank});
  }
  std::sort(seconds.begin(), seconds.end());
  Measured measured;
  measured.slowest = seconds.back().second;
  measured.slowest_seconds = seconds.back().first;
  // The lower one of two in the middle: of two workers it is the fast one.
  measured.median_seconds = seconds[(seconds.size() - 1) / 2].first;
  return measured;
}

std::optional<ModePolicy::Decision> ModePolicy::Look(
    const std::vector<Worker>& workers, const sync::Mode& mode, bool may_change,
    absl::Time now) {
  const config::Auto& config = options_.config;
  Take(workers, now);
  measured_ = Measure(workers, now);
  std::optional<Aim> aim;
  if (may_change && measured_.has_value()) {
    const bool waits_for_slowest = mode.has_allreduce() || mode.has_bsp();
    if (measured_->ratio() > config.straggler_above() && waits_for_slowest) {
      aim = Aim::kSsp;
    } else if (measured_->ratio() <= config.even_below() &&
               !mode.has_allreduce()) {
      aim = Aim::kAllReduce;
    }
  }
  if (aim != aim_) {
    aim_ = aim;
    since_ = aim.has_value() ? now : absl::InfiniteFuture();
  }
  if (!aim_.has_value() || now - since_ < hold()) return std::nullopt;
  Decision decision;
  decision.mode = ModeOf(*aim_);
  decision.reason = absl::StrFormat(
      "%s, bound %g) for %.1f s", FiguresText(),
      *aim_ == Aim::kSsp ? config.straggler_above() : config.even_below(),
      absl::ToDoubleSeconds(now - since_));
  samples_.clear();
  measured_.reset();
  missing_ = "measures anew after a decision";
  aim_.reset();
  since_ = absl::InfiniteFuture();
  return decision;
}

absl::Time ModePolicy::NextLook() const {
  return since_ == absl::InfiniteFuture() ? since_ : since_ + hold();
}

std::string ModePolicy::FiguresText() const {
  return absl::StrFormat(
      "rank %d takes %.1f ms a step, the median worker %.1f ms (%.2f times",
      measured_->slowest, 1000 * measured_->slowest_seconds,
      1000 * measured_->median_seconds, measured_->ratio());
}

std::string ModePolicy::Text(absl::Time now) const {
  if (!measured_.has_value()) {
    return missing_.empty() ? "has not measured yet" : missing_;
  }
  const config::Auto& config = options_.config;
  std::string text = absl::StrFormat(
      "%s; %s above %g, allreduce up to %g, for %.1f s)", FiguresText(),
      ModeText(ModeOf(Aim::kSsp)), config.straggler_above(),
      config.even_below(), absl::ToDoubleSeconds(hold()));
  if (aim_.has_value()) {
    absl::StrAppendFormat(&text, "; has spoken for %s for %.1f s",
                          ModeText(ModeOf(*aim_)),
                          absl::ToDoubleSeconds(now - since_));
  }
  return text;
}

}  // namespace slackline
