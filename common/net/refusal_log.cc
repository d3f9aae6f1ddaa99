#include "common/net/refusal_log.h"

#include <spdlog/spdlog.h>

#include "common/metrics/refusals.h"

namespace slackline {
namespace {

constexpr absl::Duration kSayEvery = absl::Minutes(1);

}  // namespace

void RefusalLog::Look(const ChannelCounts& counts, absl::Time now) {
  const uint64_t all_silent = counts.refused.silent();
  if (all_silent != silent_said_ && now >= silent_next_) {
    const uint64_t silent = all_silent - silent_said_;
    silent_said_ = all_silent;
    silent_next_ = now + kSayEvery;
    spdlog::info(
        "{}: {} connection{} ended before the other end had said who it is, as "
        "of one whose key does not fit, or who only looks; last {}",
        who_, silent, silent == 1 ? "" : "s", counts.last_silent);
  }
  const uint64_t all_refused = RefusedCount(counts.refused);
  if (all_refused == said_ || now < next_) return;
  const uint64_t refused = all_refused - said_;
  said_ = all_refused;
  next_ = now + kSayEvery;
  spdlog::warn("{}: refused {}{}; the job goes on", who_,
               refused == 1 ? "" : std::to_string(refused) + " times, last ",
               counts.last_refused);
}

}  // namespace slackline
