#include "worker/client/client_waiting.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// After so many time-outs without an answer, it is not the link that is slow.
constexpr int kTimeouts = 4;

// Collects what is waited for over all links.
class Collector {
 public:
  Collector(const Routes& routes, absl::Time now)
      : routes_(routes), now_(now) {}

  void Add(const ClientLink& link) {
    for (const PullUnit& unit : link.pulls().in_flight()) AddPull(link, unit);
    const PushUnit* const oldest = link.pushes().oldest();
    if (oldest == nullptr) return;
    const Clock clock = oldest->entries.front().clock;
    const absl::Time since = link.pushes().heard();
    AddServer(link, clock, since,
              absl::StrCat("pushes of clock ", clock, " to ",
                           routes_.NameOf(link.to()),
                           oldest->state == PushUnit::State::kSent
                               ? " have no answer for "
                               : " have not been accepted for ",
                           Ago(since)));
  }

  ClientWaiting Result() const {
    if (workers_.kind != ClientWaiting::Kind::kNothing && !overdue_)
      return workers_;
    return server_.kind == ClientWaiting::Kind::kNothing ? workers_ : server_;
  }

 private:
  void AddPull(const ClientLink& link, const PullUnit& unit) {
    const std::string what = absl::StrCat(
        "the pull of ", routes_.view().ShardName(ShardId{unit.shards.front()}),
        " at clock ", unit.clock(), " from ", routes_.NameOf(link.to()));
    if (!unit.parked()) {
      const absl::Time since = std::max(unit.sent, link.pulls().heard());
      AddServer(link, unit.clock(), since,
                absl::StrCat(what, " has no answer for ", Ago(since)));
      return;
    }
    if (workers_.kind == ClientWaiting::Kind::kWorkers &&
        workers_.clock <= unit.waiting_clock) {
      return;
    }
    workers_ = {
        .kind = ClientWaiting::Kind::kWorkers,
        .rank = Rank{unit.waiting_rank},
        .server = link.to().server,
        .clock = unit.waiting_clock,
        .since_progress = now_ - unit.waiting_since,
        .text = absl::StrCat(what, " waits for rank ", unit.waiting_rank,
                             ", whose clock is ", unit.waiting_clock)};
  }

  // The one that has been silent for longest counts.
  void AddServer(const ClientLink& link, Clock clock, absl::Time since,
                 std::string text) {
    if (server_.kind == ClientWaiting::Kind::kServer &&
        server_.since_progress >= now_ - since) {
      return;
    }
    overdue_ = now_ - since > kTimeouts * link.round_trip().Timeout();
    server_ = {.kind = ClientWaiting::Kind::kServer,
               .rank = std::nullopt,
               .server = link.to().server,
               .clock = clock,
               .since_progress = now_ - since,
               .text = std::move(text)};
  }

  std::string Ago(absl::Time since) const {
    return absl::FormatDuration(
        absl::Trunc(now_ - since, absl::Milliseconds(1)));
  }

  const Routes& routes_;
  const absl::Time now_;
  ClientWaiting workers_;
  ClientWaiting server_;
  bool overdue_ = false;  // What `server_` says.
};

}  // namespace

ClientWaiting WaitingFor(const ClientLinks& links, const Routes& routes,
                         absl::Time now) {
  Collector collector(routes, now);
  links.ForEach([&](const ClientLink& link) { collector.Add(link); });
  return collector.Result();
}

}  // namespace slackline
