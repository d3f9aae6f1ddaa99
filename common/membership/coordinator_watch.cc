#include "common/membership/coordinator_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/membership/refused.h"
#include "common/time/duration_text.h"

namespace slackline {
namespace {

// An address of several is tried for at least this long, or twice if somebody
// listens there and says nothing, as a process that is stopped.
constexpr absl::Duration kTryMin = absl::Milliseconds(200);

// Who is not connected looks at an address for so long: at all of them within
// half a lease, where that leaves time to connect.
absl::Duration TryFor(size_t coordinators, absl::Duration lease) {
  return std::max(kTryMin, lease / (2 * static_cast<double>(coordinators)));
}

}  // namespace

absl::Duration CoordinatorWatch::FoundWithin(size_t coordinators,
                                             absl::Duration lease) {
  if (coordinators == 1) return TryFor(1, lease) * 2;
  return kTryMin * 2 * static_cast<double>(coordinators);
}

void CoordinatorWatch::OnLink(LinkState link, absl::Time now) {
  const auto since = [&](LinkState state, absl::Time* begin) {
    if (link == state) *begin = std::min(*begin, now);
    if (link == LinkState::kUp || link == LinkState::kGone)
      *begin = absl::InfiniteFuture();
  };
  since(LinkState::kRefused, &refused_since_);
  since(LinkState::kDropped, &dropped_since_);
  link_ = link;
}

void CoordinatorWatch::OnTerms(absl::Duration lease, bool may_return) {
  lease_ = lease;
  may_return_ = may_return;
}

void CoordinatorWatch::OnHeard(bool joined, absl::Time now,
                               std::vector<std::string>* log) {
  const bool moved = std::exchange(heard_at_, looks_at_) != looks_at_;
  if (said_silent_ || (moved && joined)) {
    said_silent_ = false;
    log->push_back(absl::StrCat(CoordinatorText(), " is heard",
                                moved ? "" : " again", ", after ",
                                DurationText(Silence(now))));
  }
  heard_ = now;
  heard_here_ = true;
}

absl::Status CoordinatorWatch::CheckSilence(absl::Time now,
                                            const std::string& stopped,
                                            std::vector<std::string>* log) {
  if (lease_ == absl::ZeroDuration() || !IsSilent(now)) return absl::OkStatus();
  const std::string who = absl::StrCat(
      CoordinatorText(), " has been silent for ", DurationText(Silence(now)));
  // Who refuses us is another process than the one that we have joined.
  const bool replaced =
      link_ == LinkState::kRefused || link_ == LinkState::kDropped;
  const bool gone = link_ == LinkState::kGone || replaced;
  const std::string nobody =
      replaced ? "what listens there now is none that knows this process' key"
               : "nobody listens there any more";
  if (gone && !may_return_) {
    return absl::UnavailableError(
        absl::StrCat(who, " and ", nobody,
                     "; that server died or the job has ended", stopped));
  }
  if (Silence(now) > options_.coordinator_timeout) {
    return absl::UnavailableError(absl::StrCat(
        who,
        !has_one() ? "; no other server has gone on with the job, and "
        : gone
            ? absl::StrCat("; ", nobody,
                           ", nobody has gone on with the job (start "
                           "slackline_server --index=0 again, as the first "
                           "time), and ")
            : "; its process is there or cannot be reached, but says nothing, "
              "and ",
        "limits { coordinator_timeout_ms } is ",
        absl::ToInt64Milliseconds(options_.coordinator_timeout)));
  }
  if (std::exchange(said_silent_, true)) return absl::OkStatus();
  log->push_back(absl::StrCat(
      who,
      gone ? absl::StrCat("; ", nobody,
                          ", and this process waits for another one that goes "
                          "on with the job, up to ")
           : "; nothing says that it is dead, so this process waits for it, up "
             "to ",
      DurationText(options_.coordinator_timeout)));
  return absl::OkStatus();
}

absl::Status CoordinatorWatch::CheckRefused(absl::Time now,
                                            std::vector<std::string>* log) {
  if (!has_one()) return absl::OkStatus();
  if (now - refused_since_ >= kRefusedMax) return RefusedStatus(address());
  if (now - dropped_since_ >= kRefusedMax && !said_dropped_) {
    said_dropped_ = true;
    log->push_back(
        absl::StrCat(DroppedText(address()), "; this process tries on"));
  }
  return absl::OkStatus();
}

std::string CoordinatorWatch::CoordinatorText() const {
  return absl::StrCat("the coordinator", has_one() ? " in server 0" : "",
                      " at ", options_.coordinators[heard_at_]);
}

absl::Duration CoordinatorWatch::LookPatience() const {
  const bool up = link_ == LinkState::kUp || link_ == LinkState::kConnected;
  if (up && heard_here_) return lease_;
  // One that has said nothing yet may have heard us, and died: the next one
  // gives us up if we do not find it within our lease.
  const absl::Duration lease =
      has_one() && lease_ == absl::ZeroDuration() ? options_.lease : lease_;
  const absl::Duration patience = TryFor(options_.coordinators.size(), lease);
  return up ? patience * 2 : patience;
}

std::optional<size_t> CoordinatorWatch::LookElsewhere(bool joined,
                                                      absl::Time now) {
  // Where none comes after it, a connection that breaks is the news.
  if (has_one() && joined && !may_return_) return std::nullopt;
  if (now - std::max(looks_since_, heard_) < LookPatience())
    return std::nullopt;
  looks_at_ = (looks_at_ + 1) % options_.coordinators.size();
  looks_since_ = now;
  heard_here_ = false;
  // At the only address the next connection goes on where this one was.
  if (!has_one()) {
    link_.reset();
    refused_since_ = absl::InfiniteFuture();
    dropped_since_ = absl::InfiniteFuture();
  }
  return looks_at_;
}

}  // namespace slackline
