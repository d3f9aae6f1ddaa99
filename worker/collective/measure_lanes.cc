#include "worker/collective/measure_lanes.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

// A first sum, which also opens connections and touches memory, says how many
// bytes to sum so that one takes about a quarter of a second at most.
constexpr size_t kFloatsMin = (size_t{256} << 10) / sizeof(float);
constexpr size_t kFloatsMax = (size_t{4} << 20) / sizeof(float);
constexpr double kSecondsMax = 0.25;
constexpr int kRounds = 3;

// Of each number the largest that a rank has.
absl::StatusOr<LaneCosts> LargestOf(Collective& group, const LaneCosts& own) {
  // Each rank has two places of its own; the sum has those of all.
  const auto ranks = static_cast<size_t>(group.world_size());
  const size_t at = 2 * static_cast<size_t>(group.rank());
  std::vector<float> told(2 * ranks, 0.0f);
  told[at] = static_cast<float>(own.ranks);
  told[at + 1] = static_cast<float>(own.servers);
  SL_RETURN_IF_ERROR(group.Wait(group.AllReduceAsync(absl::MakeSpan(told))));
  LaneCosts largest;
  for (size_t rank = 0; rank < ranks; ++rank) {
    largest.ranks = std::max<double>(largest.ranks, told[2 * rank]);
    largest.servers = std::max<double>(largest.servers, told[2 * rank + 1]);
  }
  return largest;
}

// The seconds of a sum each way, the fastest of so many.
absl::StatusOr<LaneCosts> Measure(Collective& group, absl::Span<float> data,
                                  int rounds) {
  const TimeSource time;
  LaneCosts fastest = {.ranks = std::numeric_limits<double>::infinity(),
                       .servers = std::numeric_limits<double>::infinity()};
  for (int round = 0; round < rounds; ++round) {
    for (const Lane lane : {Lane::kRanks, Lane::kServers}) {
      // Ranks begin together.
      float nothing = 0;
      SL_RETURN_IF_ERROR(
          group.Wait(group.AllReduceAsync(absl::MakeSpan(&nothing, 1))));
      const absl::Time begin = time.Now();
      SL_RETURN_IF_ERROR(group.Wait(lane == Lane::kServers
                                        ? group.SumByServersAsync(data)
                                        : group.AllReduceAsync(data)));
      double& least = lane == Lane::kServers ? fastest.servers : fastest.ranks;
      least = std::min(least, absl::ToDoubleSeconds(time.Now() - begin));
    }
  }
  return LargestOf(group, fastest);
}

}  // namespace

absl::StatusOr<LaneCosts> MeasureLanes(Collective& group) {
  std::vector<float> buffer(kFloatsMax, 0.0f);
  const absl::Span<float> all = absl::MakeSpan(buffer);
  SL_ASSIGN_OR_RETURN(const LaneCosts first,
                      Measure(group, all.first(kFloatsMin), 1));
  const double times = kSecondsMax / std::max(first.ranks, first.servers);
  const auto floats = static_cast<size_t>(std::clamp(
      static_cast<double>(kFloatsMin) * times, static_cast<double>(kFloatsMin),
      static_cast<double>(kFloatsMax)));
  SL_ASSIGN_OR_RETURN(const LaneCosts costs,
                      Measure(group, all.first(floats), kRounds));
  const double bytes = static_cast<double>(floats) * sizeof(float);
  return LaneCosts{.ranks = costs.ranks / bytes,
                   .servers = costs.servers / bytes};
}

}  // namespace slackline
