#include "tools/cli/run/restore_policy.h"

#include <algorithm>

namespace slackline {
namespace {

// The last end of a process: it may have been started again.
const MemberExit* LastExit(const RestorePolicy::End& end,
                           const std::string& member) {
  const auto found = std::find_if(
      end.dead.rbegin(), end.dead.rend(),
      [&](const MemberExit& exit) { return exit.member.ToString() == member; });
  return found == end.dead.rend() ? nullptr : &*found;
}

// The last server that had the coordinator was, if it has died.
bool HostWasKilled(const RestorePolicy::End& end) {
  const auto found = std::find_if(
      end.dead.rbegin(), end.dead.rend(),
      [](const MemberExit& exit) { return exit.hosted_coordinator; });
  return found != end.dead.rend() && found->status.signal != 0;
}

// Not by an error of its own.
bool WasKilled(const RestorePolicy::End& end, const std::string& member) {
  const MemberExit* const exit = LastExit(end, member);
  return exit != nullptr && exit->status.signal != 0;
}

}  // namespace

bool RestorePolicy::IsLoss(const End& end) {
  ran_ = ran_ || end.ran;
  if (end.asked_for) return false;
  // One that has run before can form again.
  if (!end.ran && ran_ && end.lost_a_process && !end.coordinator_says)
    return true;
  switch (end.cause) {
    case wire::JobEnd::SERVER_LOST:
      // A coordinator is sure about the other servers; of its own nobody is
      // left to say it.
      return end.coordinator_says || HostWasKilled(end);
    case wire::JobEnd::SHARD_LOST:
    case wire::JobEnd::SERVERS_SILENT:
      return true;
    case wire::JobEnd::WORKER_LOST:
    case wire::JobEnd::NO_WORKER_LEFT:
      return std::any_of(
          end.about.begin(), end.about.end(),
          [&](const std::string& member) { return WasKilled(end, member); });
    default:
      return false;
  }
}

bool RestorePolicy::MayGoOn(uint64_t newest) {
  losses_ = newest > newest_ ? 0 : losses_ + 1;
  newest_ = std::max(newest_, newest);
  return losses_ < kLossesMax;
}

}  // namespace slackline
