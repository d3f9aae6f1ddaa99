#include "common/net/refusal_log.h"

#include <spdlog/spdlog.h>

namespace slackline {
namespace {

constexpr absl::Duration kSayEvery = absl::Minutes(1);

}  // namespace

void RefusalLog::Look(const ChannelCounts& counts, absl::Time now) {
  if (counts.silent != silent_said_ && now >= silent_next_) {
    const int64_t silent = counts.silent - silent_said_;
    silent_said_ = counts.silent;
    silent_next_ = now + kSayEvery;
    spdlog::info(
        "{}: {} connection{} ended before the other end had said who it is, as "
        "of one whose key does not fit, or who only looks; last {}",
        who_, silent, silent == 1 ? "" : "s", counts.last_silent);
  }
  if (counts.refused == said_ || now < next_) return;
  const int64_t refused = counts.refused - said_;
  said_ = counts.refused;
  next_ = now + kSayEvery;
  spdlog::warn("{}: refused {}{}; the job goes on", who_,
               refused == 1 ? "" : std::to_string(refused) + " times, last ",
               counts.last_refused);
}

}  // namespace slackline
