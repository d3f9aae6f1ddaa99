#include "tests/sim/check/figure_twin.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {

void FigureTwin::OnCoordinator(const CoordinatorCore::Sizes& sizes) {
  // One place for each worker of the config, and for each server that there
  // ever was; a life that is over leaves one token. A worker waits in one
  // gather, and for a few keys of the group that it belongs to; users and
  // servers wait for nothing. Of users, the last calls are kept. A phase
  // without an end has to be entered before the next one can be asked for.
  constexpr size_t kUserCallsMax = 64;
  constexpr size_t kGroupsKept = 2;
  ++findings_.stats().sizes;
  const auto workers = static_cast<size_t>(scenario_.workers);
  const size_t members = workers + views_.server_indices().size();
  const auto check = [&](const char* what, size_t actual, size_t bound) {
    if (actual <= bound) return;
    findings_.Report(Invariant::kBoundedState,
                     absl::StrCat("the coordinator keeps ", actual, " ", what,
                                  "; ", bound, " is its bound"));
  };
  check("members", sizes.members, members);
  check("past tokens", sizes.past_tokens, views_.joined_count());
  check("keys", sizes.store_keys, workers * kGroupsKept);
  check("gathers", sizes.gathers, workers);
  check("parked calls", sizes.parked_calls, workers * (workers + 1));
  check("calls of users", sizes.user_calls, kUserCallsMax);
}

void FigureTwin::OnClient(Rank rank, Incarnation incarnation,
                          const ClientCore& client, const MemberCore& member,
                          const View& view) {
  // A worker has one pull under way, and one that runs ahead; each is one
  // message for each shard at most. The answer to a pull acknowledges all
  // pushes of earlier clocks, so that at most two clocks are there, and an
  // advance or an installation. For each phase it tells the coordinator a few
  // things.
  constexpr size_t kPullsMax = 2;
  constexpr size_t kClocksMax = 3;
  ++findings_.stats().sizes;
  const ClientCore::Sizes sizes = client.sizes();
  const auto shards = static_cast<size_t>(view.shard_count());
  const auto check = [&](const char* what, size_t actual, size_t bound) {
    if (actual <= bound) return;
    findings_.Report(
        Invariant::kBoundedState,
        absl::StrCat("the client of ", Name(rank, incarnation), " keeps ",
                     actual, " ", what, "; ", bound, " is its bound"));
  };
  check(
      "links", sizes.links,
      views_.server_indices().size() * static_cast<size_t>(scenario_.threads));
  check("pulls", sizes.pulls, kPullsMax);
  check("messages of pulls", sizes.pull_messages, kPullsMax * shards);
  check("messages of pushes", sizes.push_messages, kClocksMax * shards);
  check("calls", member.calls_count(),
        16 + 4 * static_cast<size_t>(view.proto().phase_size()));
  check("records", member.records_count(), 4096);
}

void FigureTwin::OnShardFlush(Owner owner, const ShardCore& core) {
  int64_t participants = 0;
  for (const auto& [id, twin] : shards_.twins()) {
    if (twin.owner != owner) {
      if (core.Owns(ShardId{id})) return;  // It is deposed.
      continue;
    }
    for (const auto& [life, participant] : twin.participants)
      participants += participant.present;
  }
  if (core.participant_count() != participants) {
    findings_.Report(
        Invariant::kBoundedState,
        absl::StrCat("server ", owner.server, " thread ", owner.thread,
                     " keeps the state of ", core.participant_count(),
                     " participants of its shards, not ", participants));
  }
  if (core.Stats().pulls_parked() > participants) {
    findings_.Report(
        Invariant::kBoundedState,
        absl::StrCat("server ", owner.server, " thread ", owner.thread,
                     " parks ", core.Stats().pulls_parked(),
                     " pulls; its shards have ", participants,
                     " participants"));
  }
}

void FigureTwin::OnShardStats(Owner owner, const run::ServerStats& stats) {
  const ThreadTwin& thread = shards_.threads()[owner];
  // It has counted what its shards have never become.
  if (thread.was_deposed) return;
  ++findings_.stats().histograms;
  const auto compare = [&](const char* name, const run::Histogram& actual,
                           const run::Histogram& expected) {
    if (actual.SerializeAsString() == expected.SerializeAsString()) return;
    findings_.Report(Invariant::kStaleness,
                     absl::StrCat("server ", owner.server, " thread ",
                                  owner.thread, " counts staleness in ", name,
                                  " as ", actual.ShortDebugString(), ", not ",
                                  expected.ShortDebugString()));
  };
  const run::ServerStats& expected = thread.staleness;
  compare("updates", stats.missed_updates(), expected.missed_updates());
  compare("clocks", stats.missed_clocks(), expected.missed_clocks());
  compare("clocks of lead", stats.lead(), expected.lead());
}

void FigureTwin::OnShardEvent(Owner owner, const ShardCore& core) {
  ThreadTwin& thread = shards_.threads().at(owner);
  if (thread.view == nullptr) return;
  const std::string here = Name(owner);
  // What is on its way is bounded by what was ordered, and what waits for it
  // by the bound of each.
  size_t ordered = 0;
  for (const wire::Move& move : thread.view->proto().move()) {
    const Owner source = thread.view->OwnerOf(ShardId{move.shard()});
    ordered += source == owner;
    ordered += Owner{move.server(), move.thread()} == owner;
  }
  const bool failing = moves_.has_given_up();  // Perhaps what is lost is kept.
  if (core.moves_count() > ordered && !failing) {
    findings_.Report(
        Invariant::kBoundedState,
        absl::StrCat(here, " has ", core.moves_count(),
                     " shards on their way; its view orders ", ordered));
  }
  const size_t waiting = core.waiting_count();
  if (waiting > core.moves_count() * scenario_.placement.waiting_max) {
    findings_.Report(
        Invariant::kBoundedState,
        absl::StrCat(here, " lets ", waiting, " requests wait for ",
                     core.moves_count(), " shards on their way"));
  }
  if (waiting > thread.waiting)
    findings_.stats().waiting += static_cast<int64_t>(waiting - thread.waiting);
  thread.waiting = waiting;
}

}  // namespace slackline::sim
