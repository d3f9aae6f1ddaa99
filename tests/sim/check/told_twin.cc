#include "tests/sim/check/told_twin.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/check/bits.h"
#include "tests/sim/check/twin_log.h"
#include "tests/sim/check/view_questions.h"

namespace slackline::sim {

void ToldTwin::CheckFollowers(const wire::View& before,
                              const wire::View& view) {
  if (view.state() != wire::RUNNING) return;
  const auto key = [](const wire::Follower& follower) {
    return std::tuple(follower.shard(), follower.server(), follower.thread(),
                      follower.since());
  };
  std::map<std::tuple<int32_t, int32_t, int32_t, uint64_t>, bool> known;
  for (const wire::Follower& follower : before.follower())
    known[key(follower)] = follower.in_sync();
  std::map<int32_t, std::set<int32_t>> servers;  // By shard.
  for (const wire::Follower& follower : view.follower()) {
    const std::string who =
        absl::StrCat("view ", view.number(), " has ", Name(ThreadOf(follower)),
                     " as a follower of shard ", follower.shard());
    if (follower.server() == view.owner_server(follower.shard()) ||
        FindServer(view, follower.server()) == nullptr ||
        !servers[follower.shard()].insert(follower.server()).second) {
      findings_.Report(
          Invariant::kCopies,
          absl::StrCat(who, ", where there is one already, or no server"));
    }
    const auto was = known.find(key(follower));
    const bool split = follower.shard() >= before.owner_server_size();
    if (was == known.end() && before.state() == wire::RUNNING && !split)
      ++findings_.stats().followers_ordered;
    if (was == known.end() || was->second == follower.in_sync()) continue;
    ++findings_.stats().followers_in_sync;
    const auto twin = shards_.twins().find(follower.shard());
    if (!follower.in_sync()) {
      findings_.Report(Invariant::kCopies,
                       absl::StrCat(who, ", and in sync no more"));
    } else if (twin != shards_.twins().end()) {
      const std::optional<Owner>& owner = twin->second.owner;
      CheckHasTold(twin->second, ThreadOf(follower), owner,
                   absl::StrCat(who, ", in sync"));
    }
  }
  // One more while one that drains is replaced.
  const auto most = static_cast<size_t>(scenario_.replicas);
  for (const auto& [shard, of_shard] : servers) {
    size_t draining = 0;
    for (const int32_t server : of_shard)
      draining += FindServer(view, server)->draining();
    // Or such a one has become the owner.
    draining += FindServer(view, view.owner_server(shard))->draining();
    if (of_shard.size() <= most + draining) continue;
    findings_.Report(
        Invariant::kBoundedState,
        absl::StrCat("view ", view.number(), " has ", of_shard.size(),
                     " followers of shard ", shard, ", ", draining,
                     " of them on servers that drain, for ", most,
                     " replicas"));
  }
}

std::string ToldTwin::MissingCopies() {
  const wire::View& view = views_.latest();
  if (scenario_.replicas == 0 || view.state() != wire::RUNNING) return "";
  std::map<int32_t, int> in_sync;  // By shard.
  for (const wire::Follower& follower : view.follower())
    in_sync[follower.shard()] += follower.in_sync();
  for (int32_t shard = 0; shard < view.owner_server_size(); ++shard) {
    int others = 0;
    for (const wire::ServerMember& server : view.server()) {
      others +=
          server.index() != view.owner_server(shard) && !server.draining();
    }
    const int wanted = std::min(scenario_.replicas, others);
    if (in_sync[shard] < wanted) {
      return absl::StrCat(" shard ", shard, " for ", wanted - in_sync[shard],
                          " followers");
    }
  }
  ++findings_.stats().copies_restored;
  return "";
}

std::vector<Owner> ToldTwin::WhoMustHave(int32_t shard, Owner server) const {
  std::vector<Owner> who;
  const wire::View& view = views_.latest();
  if (view.state() != wire::RUNNING || shard >= view.owner_server_size())
    return who;
  bool swaps = false;  // Between the view's owner and this one.
  for (const wire::Follower& follower : view.follower()) {
    if (follower.shard() != shard || !follower.in_sync()) continue;
    if (ThreadOf(follower) == server) {
      swaps = true;
    } else {
      who.push_back(ThreadOf(follower));
    }
  }
  const Owner owner = OwnerIn(view, shard);
  if (owner == server) return who;
  bool moves = false;  // To this one.
  for (const wire::Move& move : view.move()) {
    moves = moves || (move.shard() == shard &&
                      Owner{move.server(), move.thread()} == server);
  }
  if (moves ? swaps : moves_.IsInherited(shard)) who.push_back(owner);
  return who;
}

void ToldTwin::CheckConfirmed(const ShardTwin& twin, Owner server,
                              const std::string& what,
                              const std::function<bool(uint64_t index)>& has) {
  const auto shard = static_cast<int32_t>(twin.range.shard);
  for (const Owner& other : WhoMustHave(shard, server)) {
    ++findings_.stats().answers_confirmed;
    const std::string who = absl::StrCat(Name(server), " says ", what, " of ",
                                         twin.name, "; ", Name(other));
    const HeldCopy* const copy = copies_.CopyAt(shard, other);
    if (copy == nullptr) {
      // Before its first view it has what the shard is at first.
      const auto thread = shards_.threads().find(other);
      const bool begins =
          thread == shards_.threads().end() || thread->second.view == nullptr;
      if (!begins || !has(0))
        findings_.Report(Invariant::kCopies, absl::StrCat(who, " has no copy"));
    } else if (!IsOnLine(twin, copy->at)) {
      findings_.Report(Invariant::kCopies,
                       absl::StrCat(who, " is at ", Name(copy->at),
                                    ", which is another history"));
    } else if (!has(copy->at.index)) {
      findings_.Report(
          Invariant::kCopies,
          absl::StrCat(who, " does not have it: it is at ", Name(copy->at)));
    }
  }
}

void ToldTwin::CheckHasTold(const ShardTwin& twin, Owner follower,
                            const std::optional<Owner>& server,
                            const std::string& who) {
  if (!server.has_value() || *server == follower) return;
  const HeldCopy* const copy =
      copies_.CopyAt(static_cast<int32_t>(twin.range.shard), follower);
  if (copy == nullptr || !IsOnLine(twin, copy->at)) {
    return findings_.Report(
        Invariant::kCopies,
        absl::StrCat(who, ", which has ",
                     copy == nullptr ? "no copy" : "another one"));
  }
  auto at = twin.log.upper_bound(copy->at.index);
  if (at == twin.log.begin()) return;
  --at;
  for (const auto& [life, seq] : twin.told.accepted_seq) {
    const auto found = at->second.state.participants.find(life);
    if (found != at->second.state.participants.end() &&
        found->second.next_seq > seq) {
      continue;
    }
    findings_.Report(Invariant::kCopies,
                     absl::StrCat(who, ", which lacks push ", seq, " of ",
                                  Name(life.first, life.second)));
  }
  if (at->second.version < twin.told.version) {
    findings_.Report(
        Invariant::kCopies,
        absl::StrCat(who, ", which has version ", at->second.version,
                     "; somebody has ", twin.told.version));
  }
}

void ToldTwin::OnAccepted(Owner owner, const Life& life, int32_t shard,
                          uint64_t seq) {
  const auto found = shards_.twins().find(shard);
  if (found == shards_.twins().end() || seq == 0) return;
  ShardTwin& twin = found->second;
  const auto has_push = [&](const TwinState& state) {
    const auto participant = state.participants.find(life);
    return participant != state.participants.end() &&
           participant->second.next_seq > seq;
  };
  const std::string who = Name(life.first, life.second);
  const auto participant = twin.participants.find(life);
  if (!has_push(twin) &&
      (participant != twin.participants.end() || twin.failovers > 0)) {
    return findings_.Report(
        twin.failovers > 0 ? Invariant::kCopies : Invariant::kLostPush,
        absl::StrCat(twin.name, " acknowledges push ", seq, " of ", who,
                     ", which it has not accepted"));
  }
  if (scenario_.replicas == 0 || twin.owner != owner) return;
  CheckConfirmed(
      twin, owner, absl::StrCat("that push ", seq, " of ", who, " is accepted"),
      [&](uint64_t index) {
        const auto at = twin.log.upper_bound(index);
        return at != twin.log.begin() && has_push(std::prev(at)->second.state);
      });
  uint64_t& told = twin.told.accepted_seq[life];
  told = std::max(told, seq);
}

void ToldTwin::OnAnswered(Owner owner, const Life& life,
                          const wire::PullAnswer& answer) {
  const auto found = shards_.twins().find(answer.shard());
  const auto pull = pulls_.Find(life, answer.pull());
  if (found == shards_.twins().end() || pull == nullptr) return;
  ShardTwin& twin = found->second;
  const wire::PullAnswer::Values& values =
      answer.has_state() ? answer.state().values() : answer.values();
  const std::string what =
      absl::StrCat("version ", values.version(), " to pull ", answer.pull(),
                   " of ", Name(life.first, life.second));
  if (answer.has_state()) {  // Those are not traced.
    if (twin.owner != owner) return;
    return CheckConfirmed(
        twin, owner, absl::StrCat("the state in ", what), [&](uint64_t index) {
          const auto at = twin.log.upper_bound(index);
          return at != twin.log.begin() &&
                 std::prev(at)->second.version >= values.version();
        });
  }
  const std::map<Version, uint64_t>& answered = pull->answered[answer.shard()];
  const auto at = answered.find(values.version());
  if (at == answered.end()) {
    if (twin.failovers > 0) {
      findings_.Report(Invariant::kCopies,
                       absl::StrCat(Name(owner), " answers ", what, " of ",
                                    twin.name, ", which it has not any more"));
    }
    return;
  }
  if (twin.owner != owner) return;
  CheckConfirmed(twin, owner, what,
                 [&](uint64_t index) { return index >= at->second; });
  twin.told.version = std::max<Version>(twin.told.version, values.version());
  if (pull->join) {
    twin.told.joined_at[life] = values.shard_clock();
  } else {
    twin.told.complete =
        std::max<Clock>(twin.told.complete, values.shard_clock());
  }
}

void ToldTwin::OnShardSends(Owner owner, const std::vector<Outgoing>& sends) {
  for (const Outgoing& out : sends) {
    const wire::Header& header = out.message.header;
    const Life life{Rank{out.to.index}, out.to.instance};
    for (const wire::PushAnswer& answer : header.push_reply().answer())
      OnAccepted(owner, life, answer.shard(), answer.accepted_seq());
    for (const wire::ProbeAnswer& answer : header.probe_reply().answer())
      OnAccepted(owner, life, answer.shard(), answer.accepted_seq());
    if (scenario_.replicas == 0) continue;
    for (const wire::PullAnswer& answer : header.pull_reply().answer()) {
      if (answer.has_values() || answer.has_state())
        OnAnswered(owner, life, answer);
    }
  }
}

}  // namespace slackline::sim
