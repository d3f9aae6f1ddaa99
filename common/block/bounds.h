// Bounds that several parts of the config share. They refuse slips of the
// keyboard, not real clusters.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slackline {

inline constexpr int kWorkersMax = 4096;
inline constexpr int kGroupsMax = 1024;  // Blocks of servers or of workers.
inline constexpr int kSlowdownMax = 1000;
inline constexpr int kKibMax = 1 << 20;  // 1 GiB, far from where int32 ends.
inline constexpr int kSpinMicrosMax = 1000;
inline constexpr int kHourMs = 3600 * 1000;
inline constexpr int kTimeoutMsMax = 24 * kHourMs;
// Figures of a program's own in one record of metrics, and of their names.
inline constexpr size_t kMetricValuesMax = 64;
inline constexpr size_t kMetricNameBytesMax = 64;
// What a worker may bring to one collective of the workers' programs: all of
// them together are kept by the coordinator.
inline constexpr size_t GatherBytesMax(int workers) {
  constexpr size_t kOfOne = size_t{1} << 20;
  constexpr size_t kOfAll = size_t{64} << 20;
  const size_t share = kOfAll / static_cast<size_t>(workers < 1 ? 1 : workers);
  return share < kOfOne ? share : kOfOne;
}
// Of a table: 4 TiB of float32.
inline constexpr int64_t kTableElementsMax = int64_t{1} << 40;
inline constexpr size_t kTableExtentsMax = 16;
inline constexpr size_t kTableNameBytesMax = 256;
inline constexpr size_t kTablesOfJobMax = 16384;
inline constexpr int64_t kStepsMax = int64_t{1} << 40;
// Of a config in a request to join. One of a thousand hosts has less.
inline constexpr size_t kJoinConfigBytesMax = size_t{256} << 10;

}  // namespace slackline
