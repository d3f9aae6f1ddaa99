#include "tests/sim/check/move_twin.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/check/bits.h"
#include "tests/sim/check/view_questions.h"

namespace slackline::sim {

void MoveTwin::CheckMoves(const wire::View& before, const wire::View& view) {
  if (view.state() != wire::RUNNING) return;
  findings_.stats().splits += view.split_size() - before.split_size();
  if (before.state() == wire::RUNNING &&
      view.split_size() > before.split_size()) {
    cuts_.CheckNoCutPending("splits a shard");
  }
  if (before.state() == wire::RUNNING &&
      view.server_size() < before.server_size())
    ++findings_.stats().dropped_server;
  std::set<std::pair<int32_t, uint64_t>> listed;
  for (const wire::Move& move : view.move()) {
    listed.insert({move.shard(), move.id()});
    const auto [at, inserted] =
        moves_.try_emplace({move.shard(), move.id()},
                           TwinMove{.source = OwnerIn(view, move.shard()),
                                    .target = {move.server(), move.thread()}});
    if (inserted) {
      ++findings_.stats().moves_ordered;
      cuts_.CheckNoCutPending("orders a move");
    }
    if (at->second.source != OwnerIn(view, move.shard())) {
      findings_.Report(
          Invariant::kOwnership,
          absl::StrCat("view ", view.number(), " moves shard ", move.shard(),
                       " and has given it away already"));
    }
  }
  for (const wire::Move& move : before.move()) {
    if (listed.count({move.shard(), move.id()}) > 0) continue;
    const Owner target{move.server(), move.thread()};
    const Owner source = OwnerIn(before, move.shard());
    const bool swap = Follows(before, move.shard(), target);
    // If the source is lost, its heir is perhaps the one that it would have
    // been anyway.
    const bool lost = swap && !Stays(before, view, source.server);
    if (OwnerIn(view, move.shard()) != target || lost) {
      ++findings_.stats().moves_cancelled;
      given_up_.insert(move.shard());
      if (!Stays(before, view, target.server)) {
        moves_.at({move.shard(), move.id()}).cancelled = true;
        if (swap) inherited_.insert(move.shard());
      }
      continue;
    }
    ++findings_.stats().moves_done;
    findings_.stats().swaps += swap;
    done_in_[view.number()] = {move.shard(), move.id()};
    const ShardTwin& twin = shards_.twins().at(move.shard());
    findings_.stats().row_moves += !swap && scenario_.HasRows(twin.range.table);
    const std::optional<Owner>& owner = twin.owner;
    if (owner.has_value() && *owner != target) {
      findings_.Report(
          Invariant::kOwnership,
          absl::StrCat("view ", view.number(), " says that shard ",
                       move.shard(), " is on server ", target.server,
                       " thread ", target.thread, "; it is on server ",
                       owner->server, " thread ", owner->thread));
    }
  }
  // Nothing changes its owner but by a move, or because it was lost.
  for (int32_t shard = 0; shard < before.owner_server_size(); ++shard) {
    if (before.state() != wire::RUNNING ||
        OwnerIn(before, shard) == OwnerIn(view, shard)) {
      continue;
    }
    const bool moved = std::any_of(
        before.move().begin(), before.move().end(), [&](const auto& move) {
          return move.shard() == shard &&
                 OwnerIn(view, shard) == Owner{move.server(), move.thread()};
        });
    if (!Stays(before, view, before.owner_server(shard)) ||
        (!moved && WasGivenToTheLost(shard))) {
      CheckHeir(before, view, shard);
    } else if (!moved) {
      findings_.Report(Invariant::kOwnership,
                       absl::StrCat("view ", view.number(), " gives shard ",
                                    shard, " to another owner without a move"));
    }
  }
}

// Whether the job had to fail for a reason that is about servers.
void MoveTwin::CheckFailure(const wire::View& before, const wire::View& view) {
  const wire::JobEnd& end = view.end();
  if (end.cause() == wire::JobEnd::SHARD_LOST) {
    const bool lost =
        std::any_of(moves_.begin(), moves_.end(), [&](const auto& entry) {
          return given_up_.count(entry.first.first) > 0 && entry.second.go &&
                 end.shard(0) == entry.first.first;
        });
    if (!lost || HasHeir(before, view, end.shard(0))) {
      findings_.Report(
          Invariant::kOutcome,
          absl::StrCat("no shard was given to a server that died, or a "
                       "follower has it: ",
                       end.reason()));
    }
    return;
  }
  if (end.cause() == wire::JobEnd::WORKER_LOST) {
    const auto needed = [&](const wire::WorkerMember& worker) {
      return worker.rank() == end.worker(0) && !worker.done() &&
             std::none_of(view.worker().begin(), view.worker().end(),
                          [&](const auto& other) {
                            return other.rank() == worker.rank();
                          });
    };
    if (!scenario_.mode.has_delays() ||
        std::none_of(before.worker().begin(), before.worker().end(), needed)) {
      findings_.Report(
          Invariant::kOutcome,
          absl::StrCat("no worker was lost that the job's delays count on: ",
                       end.reason()));
    }
    return;
  }
  if (end.cause() != wire::JobEnd::SERVER_LOST) return;
  for (const wire::ServerMember& server : before.server()) {
    const bool gone = std::none_of(
        view.server().begin(), view.server().end(),
        [&](const auto& other) { return other.index() == server.index(); });
    bool lost = false;  // A shard that nobody else has.
    for (int32_t shard = 0; shard < before.owner_server_size(); ++shard) {
      // Perhaps of another one that died at the same time.
      lost = lost || (!Stays(before, view, before.owner_server(shard)) &&
                      (scenario_.replicas > 0 ||
                       before.owner_server(shard) == server.index()) &&
                      !HasHeir(before, view, shard));
    }
    if (gone && lost && end.server(0) == server.index()) return;
  }
  findings_.Report(
      Invariant::kOutcome,
      absl::StrCat("no server has died that had a shard of which no "
                   "follower has all: ",
                   end.reason()));
}

const TwinMove* MoveTwin::DoneIn(uint64_t view_number) const {
  const auto done = done_in_.find(view_number);
  return done == done_in_.end() ? nullptr : &moves_.at(done->second);
}

void MoveTwin::OnGo(int32_t shard, uint64_t move) {
  const auto found = moves_.find({shard, move});
  if (found == moves_.end()) {
    return findings_.Report(
        Invariant::kOwnership,
        absl::StrCat("shard ", shard,
                     " is given away by a move that nobody ordered"));
  }
  found->second.go = true;
}

bool MoveTwin::WasGivenToTheLost(int32_t shard) const {
  return std::any_of(moves_.begin(), moves_.end(), [&](const auto& entry) {
    return entry.first.first == shard && entry.second.go &&
           entry.second.cancelled;
  });
}

void MoveTwin::CheckHeir(const wire::View& before, const wire::View& view,
                         int32_t shard) {
  const Owner heir = OwnerIn(view, shard);
  const bool in_sync =
      std::any_of(before.follower().begin(), before.follower().end(),
                  [&](const wire::Follower& follower) {
                    return follower.shard() == shard && follower.in_sync() &&
                           ThreadOf(follower) == heir;
                  });
  if (!in_sync) {
    findings_.Report(
        Invariant::kCopies,
        absl::StrCat("view ", view.number(), " gives shard ", shard, " to ",
                     Name(heir), ", which need not have all of it"));
  }
  inherited_.insert(shard);
  failover_in_.try_emplace(
      view.number(),
      TwinMove{.source = OwnerIn(before, shard), .target = heir});
  for (auto& [key, move] : moves_) {
    if (key.first == shard) move.cancelled = false;
  }
}

const TwinMove* MoveTwin::FailoverIn(uint64_t view_number) const {
  const auto found = failover_in_.find(view_number);
  return found == failover_in_.end() ? nullptr : &found->second;
}

}  // namespace slackline::sim
