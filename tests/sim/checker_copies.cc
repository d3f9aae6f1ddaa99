// The checker's part for followers: all copies of a shard have one history, and
// whoever may come to serve it has everything that anybody was told of it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "tests/sim/checker.h"
#include "tests/sim/checker_bits.h"

namespace slackline::sim {
namespace {

std::string Name(Owner owner) {
  return absl::StrCat("server ", owner.server, " thread ", owner.thread);
}

std::string Name(const LogPosition& at) {
  return absl::StrCat("index ", at.index, " of term ", at.term);
}

Owner OwnerIn(const wire::View& view, int32_t shard) {
  return {view.owner_server(shard), view.owner_thread(shard)};
}

Owner ThreadOf(const wire::Follower& follower) {
  return {follower.server(), follower.thread()};
}

const wire::ServerMember* FindServer(const wire::View& view, int32_t index) {
  for (const wire::ServerMember& server : view.server()) {
    if (server.index() == index) return &server;
  }
  return nullptr;
}

// Of everything that a shard is.
uint64_t Digest(const ShardMachine& machine) {
  uint64_t digest = 0;
  const auto add = [&](uint64_t part) { digest = Mix64(digest ^ part); };
  const auto add_tensor = [&](const Payload& tensor) {
    for (const float value : FloatsOf(tensor)) {
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      add(bits);
    }
  };
  const auto add_double = [&](double value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    add(bits);
  };
  const ShardSnapshot snapshot = machine.Snapshot();
  const ShardRange& range = machine.shard().range();
  add(static_cast<uint64_t>(range.begin));
  add(static_cast<uint64_t>(range.end));
  add(snapshot.version);
  add_tensor(snapshot.values);
  for (const Payload& slot : snapshot.slots) add_tensor(slot);
  add(static_cast<uint64_t>(snapshot.min_clock));
  add(static_cast<uint64_t>(snapshot.complete_clock));
  for (const Participant& who : snapshot.participants) {
    add(static_cast<uint64_t>(who.rank));
    add(who.incarnation);
    add(static_cast<uint64_t>(who.clock));
    add(static_cast<uint64_t>(who.joined_at));
    add(who.next_seq);
  }
  for (const HeldGradient& held : snapshot.held) {
    add(static_cast<uint64_t>(held.who.rank));
    add(held.who.incarnation);
    add_double(held.options.rate_factor);
    add_double(held.options.momentum.value_or(-1));
    add_double(held.rms);
    add_tensor(held.gradient);
  }
  if (!snapshot.held.empty()) add(static_cast<uint64_t>(snapshot.spare));
  add_double(snapshot.running_rms.mean());
  add(snapshot.running_rms.count());
  return digest;
}

}  // namespace

// ---- Views ------------------------------------------------------------------

bool Checker::Stays(const wire::View& before, const wire::View& view,
                    int32_t server) {
  const wire::ServerMember* const was = FindServer(before, server);
  const wire::ServerMember* const is = FindServer(view, server);
  return was != nullptr && is != nullptr &&
         was->incarnation() == is->incarnation();
}

bool Checker::Follows(const wire::View& view, int32_t shard, Owner owner) {
  return std::any_of(view.follower().begin(), view.follower().end(),
                     [&](const wire::Follower& follower) {
                       return follower.shard() == shard &&
                              ThreadOf(follower) == owner;
                     });
}

bool Checker::HasHeir(const wire::View& before, const wire::View& view,
                      int32_t shard) {
  return std::any_of(before.follower().begin(), before.follower().end(),
                     [&](const wire::Follower& follower) {
                       return follower.shard() == shard && follower.in_sync() &&
                              Stays(before, view, follower.server());
                     });
}

bool Checker::WasGivenToTheLost(int32_t shard) const {
  return std::any_of(moves_.begin(), moves_.end(), [&](const auto& entry) {
    return entry.first.first == shard && entry.second.go &&
           entry.second.cancelled;
  });
}

void Checker::CheckHeir(const wire::View& before, const wire::View& view,
                        int32_t shard) {
  const Owner heir = OwnerIn(view, shard);
  const bool in_sync =
      std::any_of(before.follower().begin(), before.follower().end(),
                  [&](const wire::Follower& follower) {
                    return follower.shard() == shard && follower.in_sync() &&
                           ThreadOf(follower) == heir;
                  });
  if (!in_sync) {
    Report(Invariant::kCopies,
           absl::StrCat("view ", view.number(), " gives shard ", shard, " to ",
                        Name(heir), ", which need not have all of it"));
  }
  inherited_.insert(shard);
  failover_in_.try_emplace(
      view.number(), Move{.source = OwnerIn(before, shard), .target = heir});
  for (auto& [key, move] : moves_) {
    if (key.first == shard) move.cancelled = false;
  }
}

const Checker::Move* Checker::FailoverIn(uint64_t view_number) const {
  const auto found = failover_in_.find(view_number);
  return found == failover_in_.end() ? nullptr : &found->second;
}

void Checker::CheckFollowers(const wire::View& before, const wire::View& view) {
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
      Report(Invariant::kCopies,
             absl::StrCat(who, ", where there is one already, or no server"));
    }
    const auto was = known.find(key(follower));
    const bool split = follower.shard() >= before.owner_server_size();
    if (was == known.end() && before.state() == wire::RUNNING && !split)
      ++stats_.followers_ordered;
    if (was == known.end() || was->second == follower.in_sync()) continue;
    ++stats_.followers_in_sync;
    const auto twin = twins_.find(follower.shard());
    if (!follower.in_sync()) {
      Report(Invariant::kCopies, absl::StrCat(who, ", and in sync no more"));
    } else if (twin != twins_.end()) {
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
    Report(Invariant::kBoundedState,
           absl::StrCat("view ", view.number(), " has ", of_shard.size(),
                        " followers of shard ", shard, ", ", draining,
                        " of them on servers that drain, for ", most,
                        " replicas"));
  }
}

std::string Checker::MissingCopies() {
  const wire::View& view = latest_view_;
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
  ++stats_.copies_restored;
  return "";
}

bool Checker::Deposes(const View& view, int32_t shard, Owner owner) {
  if (view.OwnerOf(ShardId{shard}) == owner) return false;
  const wire::Move* const move = view.FindMove(ShardId{shard});
  return move == nullptr || Owner{move->server(), move->thread()} != owner;
}

bool Checker::IsDeposed(int32_t shard, Owner owner) const {
  const auto thread = shard_threads_.find(owner);
  if (thread == shard_threads_.end() || thread->second.view == nullptr)
    return false;
  const View& view = *thread->second.view;
  auto twin = twins_.find(shard);
  // What is cut off by a view that comes late, of a shard that has gone to
  // somebody else since, who has not cut it yet.
  for (ShardId part{shard}; twin == twins_.end() && part != view.OriginOf(part);
       twin = twins_.find(static_cast<int32_t>(part))) {
    part = view.OriginOf(part);
  }
  return twin != twins_.end() && view.number() < twin->second.promoted_in;
}

// ---- The log ----------------------------------------------------------------

void Checker::LogState(Twin& twin, uint64_t index, bool exact) {
  Twin::Logged& logged = twin.log[index];
  logged.state = twin;
  logged.version = twin.versions.size() - 1;
  logged.exact = exact;
}

void Checker::BeginLogging(Twin& twin, const View& view,
                           const LogPosition& after) {
  if (scenario_.replicas == 0) return;
  if (after.index < twin.index || after.index > twin.index + 100'000) {
    return Report(Invariant::kCopies,
                  absl::StrCat(twin.name, " is at ", Name(after),
                               " after index ", twin.index));
  }
  const uint64_t newest = twin.terms.empty() ? 0 : twin.terms.rbegin()->first;
  if (!twin.terms.empty() && after.term < newest) {
    Report(Invariant::kCopies, absl::StrCat(twin.name, " is at ", Name(after),
                                            " after term ", newest));
  }
  // Before it had an owner it was of a term that tells who has founded the job.
  if (twin.log.empty()) {
    const auto splits = static_cast<uint64_t>(view.proto().split_size());
    twin.terms.emplace(twin.participants.size() + (splits << 16), 0);
  }
  twin.terms.try_emplace(after.term, twin.index);
  // What a view brings has no trace: workers that leave, and cuts.
  if (twin.log.empty()) LogState(twin, twin.index, /*exact=*/true);
  for (uint64_t at = twin.index + 1; at < after.index; ++at)
    LogState(twin, at, /*exact=*/false);
}

void Checker::EndLogging(Twin& twin, const LogPosition& after) {
  if (scenario_.replicas == 0) return;
  twin.index = after.index;
  LogState(twin, after.index, /*exact=*/true);
}

bool Checker::IsOnLine(const Twin& twin, const LogPosition& at) {
  const auto term = twin.terms.find(at.term);
  if (term == twin.terms.end() || at.index < term->second) return false;
  const auto next = std::next(term);
  return at.index <= (next == twin.terms.end() ? twin.index : next->second);
}

std::shared_ptr<const Checker::Twin> Checker::TwinAt(
    const Twin& twin, const ShardRange& range, const LogPosition& at) const {
  const auto fits = [&](const Twin& was) {
    return was.range.begin == range.begin && was.range.end == range.end &&
           IsOnLine(was, at);
  };
  if (fits(twin)) return std::make_shared<const Twin>(twin);
  for (auto was = twin.earlier.rbegin(); was != twin.earlier.rend(); ++was) {
    if (fits(**was)) return *was;
  }
  // Where a term begins the shard is what it was at the end of the one before,
  // and perhaps cut in two right after that.
  const auto term = twin.terms.find(at.term);
  if (term == twin.terms.end() || term == twin.terms.begin() ||
      at.index != term->second) {
    return nullptr;
  }
  return TwinAt(twin, range,
                {.term = std::prev(term)->first, .index = at.index});
}

std::shared_ptr<const Checker::Twin> Checker::CutOnTheWay(
    const Twin& twin, const View& view, const ShardRange& range,
    const LogPosition& at) {
  for (auto was = twin.earlier.rbegin(); was != twin.earlier.rend(); ++was) {
    const Twin& whole = **was;
    if (whole.range.begin != range.begin || whole.range.end <= range.end ||
        !IsOnLine(whole, {.term = at.term, .index = whole.index})) {
      continue;
    }
    const auto cuts = std::count_if(
        view.proto().split().begin(), view.proto().split().end(),
        [&](const wire::Split& split) {
          return ShardId{split.shard()} == range.shard &&
                 split.at() >= range.end && split.at() < whole.range.end;
        });
    if (at.index == whole.index + static_cast<uint64_t>(cuts)) return *was;
  }
  return nullptr;
}

bool Checker::HasFollowedTheReplaced(const Twin& twin, const LogPosition& at) {
  const auto later = twin.terms.upper_bound(at.term);
  return later != twin.terms.end() && at.index > later->second &&
         twin.terms.count(at.term) > 0;
}

std::shared_ptr<const Checker::Twin> Checker::AtFirst(const Twin& twin) {
  return twin.earlier.empty() ? std::make_shared<const Twin>(twin)
                              : twin.earlier.front();
}

void Checker::Rewind(Twin& twin, uint64_t index) {
  auto at = twin.log.upper_bound(index);
  if (at != twin.log.begin()) --at;
  static_cast<TwinState&>(twin) = at->second.state;
  const Version version = at->second.version;
  twin.versions.resize(version + 1);
  twin.slots.resize(version + 1);
  twin.updates.resize(version);
  twin.log.erase(twin.log.upper_bound(index), twin.log.end());
  twin.index = index;
  std::erase_if(twin.terms,
                [&](const auto& term) { return term.second > index; });
}

void Checker::CheckTold(const Twin& twin, const std::string& who) {
  const auto lost = [&](const std::string& what) {
    Report(Invariant::kCopies,
           absl::StrCat(who, ": an answer was lost in a failover: ", what));
  };
  const Told& told = twin.told;
  for (const auto& [life, seq] : told.accepted_seq) {
    const auto found = twin.participants.find(life);
    const uint64_t taken =
        found == twin.participants.end() ? 0 : found->second.next_seq - 1;
    if (taken < seq) {
      lost(absl::StrCat("push ", seq, " of ",
                        slackline::sim::Name(life.first, life.second),
                        " was acknowledged, and ", taken, " are here"));
    }
  }
  for (const auto& [life, clock] : told.joined_at) {
    const auto found = twin.participants.find(life);
    if (found == twin.participants.end() || found->second.joined_at != clock) {
      lost(absl::StrCat(slackline::sim::Name(life.first, life.second),
                        " was told that it takes part from clock ", clock));
    }
  }
  const Version version = twin.versions.size() - 1;
  if (told.version > version || told.complete > twin.complete) {
    lost(absl::StrCat("somebody has version ", told.version, " of clock ",
                      told.complete, "; here are ", version, " and ",
                      twin.complete));
  }
}

// ---- Failovers --------------------------------------------------------------

void Checker::OnPromoted(Owner owner, int32_t id, const View& view,
                         const ShardMachine& machine) {
  int32_t of = id;
  const auto origin_of = [&](int32_t shard) {
    return static_cast<int32_t>(view.OriginOf(ShardId{shard}));
  };
  while (twins_.count(of) == 0 && origin_of(of) != of) of = origin_of(of);
  if (twins_.count(of) == 0) {  // Nobody has ever served it.
    CreateTwin(id, view);
    Twin& twin = twins_.at(id);
    twin.owner = twin.last_owner = owner;
    twin.promoted_in = view.number();
    // The copy may have seen the founders go, one after the other: then it
    // stays where the last of them was.
    twin.min_clock = std::clamp(machine.participants().MinClock(),
                                twin.min_clock, Beginnings().second);
    UpdateMinClock(twin);
    return;
  }
  const Twin& present = twins_.at(of);
  const std::string who =
      absl::StrCat(Name(owner), " begins to serve ",
                   view.ShardName(ShardId{id}), " by view ", view.number());
  // Of a shard that it cuts in two, it may have begun to serve the rest.
  if (of == id && present.owner.has_value() && *present.owner != owner &&
      !Deposes(view, of, *present.owner)) {
    Report(Invariant::kOwnership,
           absl::StrCat(who, "; it is served by ", Name(*present.owner)));
  }
  // What it had, perhaps before the shard was cut off.
  const std::map<int32_t, Copy>& had = copies_[owner];
  auto copy = had.find(id);
  for (int32_t from = id; copy == had.end() && origin_of(from) != from;) {
    from = origin_of(from);
    copy = had.find(from);
  }
  std::shared_ptr<const Twin> was;
  uint64_t index = 0;
  if (copy != had.end()) {
    index = copy->second.at.index;
    was = TwinAt(present, copy->second.range, copy->second.at);
    if (const auto& from = copy->second.cut_from;
        was == nullptr && from.has_value()) {
      index = from->second.index;
      was = TwinAt(present, from->first, from->second);
    }
    // Perhaps without founders that had died before its first view.
    if (was == nullptr && index == 0) was = AtFirst(present);
    if (was == nullptr) {
      was = CutOnTheWay(present, view, copy->second.range, copy->second.at);
      if (was != nullptr) index = was->index;
    }
    if (was == nullptr && HasFollowedTheReplaced(present, copy->second.at)) {
      judges_no_more_ = true;
      return;
    }
    if (was == nullptr) {
      Report(Invariant::kCopies,
             absl::StrCat(who, " at ", Name(copy->second.at),
                          ", where its log has never been"));
    }
  } else if (shard_threads_.at(owner).first_view == view.number()) {
    was = AtFirst(present);
  } else {
    Report(Invariant::kCopies, absl::StrCat(who, ", and has no copy of it"));
  }
  if (was == nullptr) was = std::make_shared<const Twin>(present);
  Twin next = *was;
  Rewind(next, index);
  const int32_t first = view.shard_count() - view.proto().split_size();
  for (int i = 0; i < view.proto().split_size(); ++i) {
    const wire::Split& split = view.proto().split(i);
    if (ShardId{split.shard()} != next.range.shard ||
        split.at() <= next.range.begin || split.at() >= next.range.end) {
      continue;
    }
    Twin rest = CutTwin(view, split, first + i, &next);
    if (view.shard(ShardId{id}).begin >= split.at()) next = std::move(rest);
  }
  ++stats_.failovers;
  stats_.failovers_apart += was->index != present.index;
  stats_.failovers_behind += index < present.index;
  stats_.records_lost += static_cast<int64_t>(present.index) -
                         static_cast<int64_t>(std::min(index, present.index));
  next.earlier = present.earlier;
  next.earlier.push_back(std::make_shared<const Twin>(present));
  next.failovers = present.failovers + 1;
  next.promoted_in = view.number();
  next.told = present.told;
  next.cut_done = next.cut_before_failover = present.cut_done;
  next.newest_view = present.newest_view;
  next.leads.clear();
  next.owner = next.last_owner = owner;
  for (auto& [request, pull] : pulls_) {
    const auto answered = pull.answered.find(id);
    if (answered == pull.answered.end()) continue;
    std::erase_if(answered->second,
                  [&](const auto& entry) { return entry.second > index; });
  }
  CheckTold(next, who);
  if (of != id) InheritSeen(of, id);
  twins_[id] = std::move(next);
}

void Checker::OnTraceOfDeposed(const ShardTraceRecord& record,
                               const ShardCore& core) {
  // It may tell what all have, and does not know what has come since.
  const ShardMachine* const machine = core.MachineOf(record.shard);
  if (machine == nullptr ||
      record.kind != ShardTraceRecord::Kind::kPullAnswered) {
    return;
  }
  const auto id = static_cast<int32_t>(record.shard);
  const LogPosition at = {.term = machine->position().term,
                          .index = record.index};
  const auto pull =
      pulls_.find({{record.rank, record.incarnation}, record.request_id});
  if (pull != pulls_.end() && IsOnLine(twins_.at(id), at))
    pull->second.answered[id].emplace(record.version, record.index);
}

// ---- Copies -----------------------------------------------------------------

void Checker::FollowCopies(Owner owner, const ShardCore& core) {
  if (scenario_.replicas == 0) return;
  const ShardThread& thread = shard_threads_.at(owner);
  const View& view = *thread.view;
  std::map<int32_t, Copy>& copies = copies_[owner];
  const std::map<int32_t, Copy> before = copies;
  size_t listed = 0;
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    const ShardMachine* machine = core.MachineOf(ShardId{id});
    const bool served = machine != nullptr;
    if (!served) machine = core.CopyOf(ShardId{id});
    for (const wire::Follower& follower : view.FollowersOf(ShardId{id})) {
      if (ThreadOf(follower) != owner) continue;
      ++listed;
      // Or it has yet to hear that the shard was cut off.
      bool has = machine != nullptr;
      for (ShardId from{id}; !has && view.OriginOf(from) != from;) {
        from = view.OriginOf(from);
        has = core.CopyOf(from) != nullptr;
      }
      if (follower.in_sync() && !has) {
        Report(Invariant::kCopies,
               absl::StrCat(Name(owner), " has no copy of shard ", id,
                            ", and view ", view.number(),
                            " says that it is in sync"));
      }
    }
    if (machine == nullptr) {
      copies.erase(id);
      continue;
    }
    const Copy now = {.at = machine->position(),
                      .range = machine->shard().range(),
                      .served = served};
    auto [known, inserted] = copies.try_emplace(id, now);
    if (inserted && !served) {
      for (ShardId part{id}; view.OriginOf(part) != part;) {
        part = view.OriginOf(part);
        const auto whole = before.find(static_cast<int32_t>(part));
        if (whole == before.end()) continue;
        if (whole->second.range.end > now.range.begin)
          known->second.cut_from = {whole->second.range, whole->second.at};
        break;
      }
    }
    Copy& last = known->second;
    const bool same = !inserted && last.at == now.at && last.served == served &&
                      last.range.begin == now.range.begin &&
                      last.range.end == now.range.end;
    if (!same && !inserted) last = now;
    if (!same) CompareCopy(owner, id, *machine);
  }
  for (const wire::Move& move : view.proto().move())
    listed += view.OwnerOf(ShardId{move.shard()}) == owner;
  if (core.copies_count() > listed) {
    Report(Invariant::kBoundedState,
           absl::StrCat(Name(owner), " has copies of ", core.copies_count(),
                        " shards; its view names it for ", listed));
  }
  stats_.answers_held =
      std::max(stats_.answers_held, static_cast<int64_t>(core.answers_held()));
}

void Checker::CompareCopy(Owner owner, int32_t id,
                          const ShardMachine& machine) {
  const LogPosition& at = machine.position();
  const uint64_t digest = Digest(machine);
  const auto [known, inserted] =
      digests_.try_emplace({id, at.term, at.index}, digest);
  stats_.copies_compared += !inserted;
  const std::string who =
      absl::StrCat("shard ", id, " of ", Name(owner), " at ", Name(at));
  const auto found = twins_.find(id);
  if (found != twins_.end()) {
    const Twin& present = found->second;
    if (!present.terms.empty() && at.term == present.terms.rbegin()->first &&
        at.index > present.index) {
      return Report(Invariant::kCopies,
                    absl::StrCat(who, " is ahead of its owner, which is at ",
                                 present.index));
    }
    const std::shared_ptr<const Twin> was =
        TwinAt(present, machine.shard().range(), at);
    if (was != nullptr) {
      const auto logged = was->log.find(at.index);
      if (logged != was->log.end() && logged->second.exact) {
        if (const std::optional<Violation> wrong = Difference(
                *was, logged->second.state, logged->second.version, machine)) {
          return Report(Invariant::kCopies,
                        absl::StrCat(who, ": ", wrong->what));
        }
      }
    }
  }
  if (inserted || known->second == digest) return;
  Report(Invariant::kCopies,
         absl::StrCat(who, " is not what it is elsewhere at that place"));
}

// ---- What anybody is told ---------------------------------------------------

std::vector<Owner> Checker::WhoMustHave(int32_t shard, Owner server) const {
  std::vector<Owner> who;
  const wire::View& view = latest_view_;
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
  if (moves ? swaps : inherited_.count(shard) > 0) who.push_back(owner);
  return who;
}

const Checker::Copy* Checker::CopyAt(int32_t shard, Owner owner) const {
  const auto of_thread = copies_.find(owner);
  if (of_thread == copies_.end()) return nullptr;
  while (true) {
    const auto copy = of_thread->second.find(shard);
    if (copy != of_thread->second.end()) return &copy->second;
    const auto twin = twins_.find(shard);
    if (twin == twins_.end() || twin->second.origin == shard) return nullptr;
    shard = twin->second.origin;  // It does not know of the cut yet.
  }
}

void Checker::CheckConfirmed(const Twin& twin, Owner server,
                             const std::string& what,
                             const std::function<bool(uint64_t index)>& has) {
  const auto shard = static_cast<int32_t>(twin.range.shard);
  for (const Owner& other : WhoMustHave(shard, server)) {
    ++stats_.answers_confirmed;
    const std::string who = absl::StrCat(Name(server), " says ", what, " of ",
                                         twin.name, "; ", Name(other));
    const Copy* const copy = CopyAt(shard, other);
    if (copy == nullptr) {
      // Before its first view it has what the shard is at first.
      const auto thread = shard_threads_.find(other);
      const bool begins =
          thread == shard_threads_.end() || thread->second.view == nullptr;
      if (!begins || !has(0))
        Report(Invariant::kCopies, absl::StrCat(who, " has no copy"));
    } else if (!IsOnLine(twin, copy->at)) {
      Report(Invariant::kCopies, absl::StrCat(who, " is at ", Name(copy->at),
                                              ", which is another history"));
    } else if (!has(copy->at.index)) {
      Report(Invariant::kCopies,
             absl::StrCat(who, " does not have it: it is at ", Name(copy->at)));
    }
  }
}

void Checker::CheckHasTold(const Twin& twin, Owner follower,
                           const std::optional<Owner>& server,
                           const std::string& who) {
  if (!server.has_value() || *server == follower) return;
  const Copy* const copy =
      CopyAt(static_cast<int32_t>(twin.range.shard), follower);
  if (copy == nullptr || !IsOnLine(twin, copy->at)) {
    return Report(Invariant::kCopies,
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
    Report(Invariant::kCopies,
           absl::StrCat(who, ", which lacks push ", seq, " of ",
                        slackline::sim::Name(life.first, life.second)));
  }
  if (at->second.version < twin.told.version) {
    Report(Invariant::kCopies,
           absl::StrCat(who, ", which has version ", at->second.version,
                        "; somebody has ", twin.told.version));
  }
}

void Checker::OnAccepted(Owner owner, const Life& life, int32_t shard,
                         uint64_t seq) {
  const auto found = twins_.find(shard);
  if (found == twins_.end() || seq == 0) return;
  Twin& twin = found->second;
  const auto has_push = [&](const TwinState& state) {
    const auto participant = state.participants.find(life);
    return participant != state.participants.end() &&
           participant->second.next_seq > seq;
  };
  const std::string who = slackline::sim::Name(life.first, life.second);
  const auto participant = twin.participants.find(life);
  if (!has_push(twin) &&
      (participant != twin.participants.end() || twin.failovers > 0)) {
    return Report(
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

void Checker::OnAnswered(Owner owner, const Life& life,
                         const wire::PullAnswer& answer) {
  const auto found = twins_.find(answer.shard());
  const auto pull = pulls_.find({life, answer.pull()});
  if (found == twins_.end() || pull == pulls_.end()) return;
  Twin& twin = found->second;
  const wire::PullAnswer::Values& values =
      answer.has_state() ? answer.state().values() : answer.values();
  const std::string what =
      absl::StrCat("version ", values.version(), " to pull ", answer.pull(),
                   " of ", slackline::sim::Name(life.first, life.second));
  if (answer.has_state()) {  // Those are not traced.
    if (twin.owner != owner) return;
    return CheckConfirmed(
        twin, owner, absl::StrCat("the state in ", what), [&](uint64_t index) {
          const auto at = twin.log.upper_bound(index);
          return at != twin.log.begin() &&
                 std::prev(at)->second.version >= values.version();
        });
  }
  const std::map<Version, uint64_t>& answered =
      pull->second.answered[answer.shard()];
  const auto at = answered.find(values.version());
  if (at == answered.end()) {
    if (twin.failovers > 0) {
      Report(Invariant::kCopies,
             absl::StrCat(Name(owner), " answers ", what, " of ", twin.name,
                          ", which it has not any more"));
    }
    return;
  }
  if (twin.owner != owner) return;
  CheckConfirmed(twin, owner, what,
                 [&](uint64_t index) { return index >= at->second; });
  twin.told.version = std::max<Version>(twin.told.version, values.version());
  if (pull->second.join) {
    twin.told.joined_at[life] = values.shard_clock();
  } else {
    twin.told.complete =
        std::max<Clock>(twin.told.complete, values.shard_clock());
  }
}

void Checker::OnShardSends(Owner owner, const std::vector<Outgoing>& sends) {
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

void Checker::OnServerStarts(int32_t server) {
  std::erase_if(shard_threads_, [&](const auto& entry) {
    return entry.first.server == server;
  });
  // The threads of another process had them.
  for (auto& [number, cut] : cuts_) {
    std::erase_if(cut.parts, [&](const auto& part) {
      return part.first.server == server;
    });
  }
}

}  // namespace slackline::sim
