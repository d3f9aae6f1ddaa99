#include "server/coordinator/stats_check.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/metrics/histogram.h"
#include "common/metrics/metric_table.h"
#include "common/metrics/step_phases.h"

namespace slackline {
namespace {

constexpr size_t kProgressBytesMax = 4096;
constexpr int kRanksMax = 4096;
constexpr int kServersMax = 4096;
constexpr int kRecentStepsMax = 20;

bool IsCount(int64_t value) { return value >= 0 && value <= kCountMax; }

// Of a gradient, as a root mean square. False for NaN.
bool IsSize(double value) { return value >= 0 && std::isfinite(value); }

bool AreAmounts(const run::ShardLoad& load) {
  return IsAmount(load.pushes()) && IsAmount(load.pulls()) &&
         IsAmount(load.bytes_in()) && IsAmount(load.bytes_out()) &&
         IsAmount(load.busy());
}

bool AreAmounts(const run::ThreadLoad& load) {
  return IsAmount(load.utilisation()) && IsAmount(load.cpu()) &&
         IsAmount(load.queue_ms()) && IsAmount(load.bytes_per_busy_second()) &&
         AreSeconds(load.phase_seconds());
}

bool AreCounts(const run::Refusals& refused) {
  const auto is_count = [](uint64_t value) {
    return value <= static_cast<uint64_t>(kCountMax);
  };
  return is_count(refused.no_key()) && is_count(refused.other_key()) &&
         is_count(refused.foreign()) && is_count(refused.other_user()) &&
         is_count(refused.not_allowed()) && is_count(refused.silent());
}

std::string TooMany(const char* what, int count, int most) {
  return absl::StrCat("has sent statistics of ", count, " ", what,
                      "; there are at most ", most);
}

constexpr char kNoNumber[] =
    "has sent a load, a count, a size or a time that is negative or not finite";

}  // namespace

std::string WhyUnfit(const run::WorkerStats& stats) {
  if (stats.progress().what().size() > kProgressBytesMax) {
    return absl::StrCat("has sent ", stats.progress().what().size(),
                        " bytes about what it does; at most ",
                        kProgressBytesMax, " are allowed");
  }
  const run::RecentSteps& recent = stats.recent();
  if (!AreFigures(WorkerMetrics(), stats) ||
      !IsCount(stats.progress().for_ms()) || !IsCount(recent.steps()) ||
      recent.count() < 0 || recent.count() > kRecentStepsMax ||
      recent.count() > recent.steps() ||
      recent.has_mean() != (recent.count() > 0) || !AreSeconds(recent.mean()) ||
      !IsAmount(recent.deviation())) {
    return kNoNumber;
  }
  if (stats.answers_size() > kServersMax)
    return TooMany("servers", stats.answers_size(), kServersMax);
  for (const run::ServerAnswers& answers : stats.answers()) {
    if (!IsAmount(answers.seconds()) ||
        answers.messages() > static_cast<uint64_t>(kCountMax)) {
      return kNoNumber;
    }
  }
  return "";
}

std::string WhyUnfit(const run::ServerStats& stats, int threads,
                     int32_t shards) {
  if (stats.thread_size() > threads)
    return TooMany("threads", stats.thread_size(), threads);
  // A shard that moves to and fro may be told of twice.
  if (stats.hand_over_size() > 2 * shards)
    return TooMany("moves", stats.hand_over_size(), 2 * shards);
  if (stats.follower_size() > 2 * shards)
    return TooMany("followers", stats.follower_size(), 2 * shards);
  if (stats.nonfinite_size() > kRanksMax)
    return TooMany("workers", stats.nonfinite_size(), kRanksMax);
  if (stats.oversized_size() > kRanksMax)
    return TooMany("workers", stats.oversized_size(), kRanksMax);
  for (const run::OversizedGradients& bad : stats.oversized()) {
    if (!IsSize(bad.last_rms()) || !IsSize(bad.last_bound()) ||
        !IsSize(bad.last_running_rms())) {
      return kNoNumber;
    }
  }
  for (const run::Histogram* const histogram :
       {&stats.missed_clocks(), &stats.missed_updates(), &stats.lead()}) {
    if (histogram->bin_size() > kHistogramBinsMax)
      return TooMany("bins", histogram->bin_size(), kHistogramBinsMax);
  }
  if (!AreFigures(ServerMetrics(), stats) || !AreCounts(stats.refused()) ||
      !IsAmount(stats.io_utilisation()) || stats.shards() > 2 * shards ||
      stats.copies() > 2 * shards) {
    return kNoNumber;
  }
  for (const run::FollowerState& follower : stats.follower()) {
    if (!IsCount(follower.bytes()) || !IsCount(follower.copy_micros()))
      return kNoNumber;
  }
  for (const run::ThreadLoad& thread : stats.thread()) {
    if (thread.shard_size() > shards)
      return TooMany("shards", thread.shard_size(), shards);
    if (!AreAmounts(thread)) return kNoNumber;
    for (const run::ShardLoad& shard : thread.shard()) {
      if (!AreAmounts(shard)) return kNoNumber;
    }
  }
  return "";
}

}  // namespace slackline
