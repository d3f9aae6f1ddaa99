#include "common/process/await_name.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <time.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/net/resolve.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(200);

bool StopSignalWaits() {
  sigset_t waiting;
  if (sigpending(&waiting) != 0) return false;
  return sigismember(&waiting, SIGINT) == 1 ||
         sigismember(&waiting, SIGTERM) == 1 ||
         sigismember(&waiting, SIGHUP) == 1;
}

}  // namespace

NameWaiter NameWaiterHere() {
  return {
      .resolve = ResolveHost,
      .now = [] { return TimeSource().Now(); },
      .pause =
          [] {
            absl::SleepFor(kLookEvery);
            return !StopSignalWaits();
          },
      .say = [](const std::string& sentence) { spdlog::warn("{}", sentence); }};
}

absl::Status AwaitName(const std::string& what,
                       const std::vector<std::string>& hosts,
                       absl::Duration wait_max, const NameWaiter& waiter) {
  const absl::Time give_up = waiter.now() + wait_max;
  for (bool said = false;;) {
    std::string why;
    for (const std::string& host : hosts) {
      const absl::StatusOr<std::string> address = waiter.resolve(host);
      if (address.ok()) return absl::OkStatus();
      why = std::string(address.status().message());
    }
    const std::string names = absl::StrJoin(hosts, ", ");
    if (waiter.now() >= give_up) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, ": ", names, " did not become known within ",
                       absl::FormatDuration(wait_max),
                       " (limits { start_timeout_ms: ... }): ", why));
    }
    if (!said) {
      waiter.say(absl::StrCat(what, ": ", names,
                              " is not known yet, and is waited for, up to ",
                              absl::FormatDuration(wait_max),
                              " (limits { start_timeout_ms: ... }): ", why));
      said = true;
    }
    if (!waiter.pause()) {
      return absl::AbortedError(absl::StrCat("interrupted while the name of ",
                                             what, ", ", names,
                                             ", was waited for"));
    }
  }
}

}  // namespace slackline
