#include "tests/sim/check/copy_twin.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "tests/sim/check/bits.h"
#include "tests/sim/check/twin_log.h"
#include "tests/sim/check/view_questions.h"

namespace slackline::sim {
namespace {

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
  const auto add_options = [&](const StepOptions& options) {
    add_double(options.rate_factor);
    add_double(options.momentum.value_or(-1));
  };
  const ShardSnapshot snapshot = machine.Snapshot();
  const ShardRange& range = machine.shard().range();
  add(static_cast<uint64_t>(range.region.begin()));
  add(static_cast<uint64_t>(range.region.end()));
  add(snapshot.version);
  add_tensor(snapshot.values);
  for (const Payload& slot : snapshot.slots) add_tensor(slot);
  add(static_cast<uint64_t>(snapshot.min_clock));
  add(static_cast<uint64_t>(snapshot.complete_clock));
  for (const slackline::Participant& who : snapshot.participants) {
    add(static_cast<uint64_t>(who.rank));
    add(who.incarnation);
    add(static_cast<uint64_t>(who.clock));
    add(static_cast<uint64_t>(who.joined_at));
    add(who.next_seq);
  }
  for (const HeldGradient& held : snapshot.held) {
    add(static_cast<uint64_t>(held.who.rank));
    add(held.who.incarnation);
    add_options(held.options);
    add_double(held.rms);
    add_tensor(held.gradient);
  }
  if (!snapshot.held.empty()) add(static_cast<uint64_t>(snapshot.spare));
  add_double(snapshot.running_rms.mean());
  add(snapshot.running_rms.count());
  if (!snapshot.turns.has_value()) return digest;
  const TurnState& turns = *snapshot.turns;
  add(static_cast<uint64_t>(turns.plan));
  add(static_cast<uint64_t>(turns.over));
  for (const auto& [of, waiting] : turns.waiting) {
    add(static_cast<uint64_t>(of.first));
    add(static_cast<uint64_t>(of.second));
    add(waiting.base);
    add_options(waiting.options);
    add_double(waiting.rms);
    add_tensor(waiting.gradient);
  }
  for (const auto& [before, kept] : turns.kept) {
    add(static_cast<uint64_t>(before));
    add(kept.version);
    add_tensor(kept.values);
  }
  for (const float value : turns.memory.mean) add_double(value);
  return digest;
}

}  // namespace

void CopyTwin::FollowCopies(Owner owner, const ShardCore& core) {
  if (scenario_.replicas == 0) return;
  const ThreadTwin& thread = shards_.threads().at(owner);
  const View& view = *thread.view;
  std::map<int32_t, HeldCopy>& copies = copies_[owner];
  const std::map<int32_t, HeldCopy> before = copies;
  size_t listed = 0;
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    const ShardMachine* machine = core.MachineOf(ShardId{id});
    const bool served = machine != nullptr;
    if (!served) machine = core.CopyOf(ShardId{id});
    for (const wire::Follower& follower : view.FollowersOf(ShardId{id})) {
      if (ThreadOf(follower) != owner) continue;
      ++listed;
      // Or it has yet to hear that the shard was split off.
      bool has = machine != nullptr;
      for (ShardId from{id}; !has && view.OriginOf(from) != from;) {
        from = view.OriginOf(from);
        has = core.CopyOf(from) != nullptr;
      }
      if (follower.in_sync() && !has) {
        findings_.Report(Invariant::kCopies,
                         absl::StrCat(Name(owner), " has no copy of shard ", id,
                                      ", and view ", view.number(),
                                      " says that it is in sync"));
      }
    }
    if (machine == nullptr) {
      copies.erase(id);
      continue;
    }
    const HeldCopy now = {.at = machine->position(),
                          .range = machine->shard().range(),
                          .served = served};
    auto [known, inserted] = copies.try_emplace(id, now);
    if (inserted && !served) {
      for (ShardId part{id}; view.OriginOf(part) != part;) {
        part = view.OriginOf(part);
        const auto whole = before.find(static_cast<int32_t>(part));
        if (whole == before.end()) continue;
        if (whole->second.range.region.end() > now.range.region.begin())
          known->second.cut_from = {whole->second.range, whole->second.at};
        break;
      }
    }
    HeldCopy& last = known->second;
    const bool same = !inserted && last.at == now.at && last.served == served &&
                      last.range.region.begin() == now.range.region.begin() &&
                      last.range.region.end() == now.range.region.end();
    if (!same && !inserted) last = now;
    if (!same) CompareCopy(owner, id, *machine);
  }
  for (const wire::Move& move : view.proto().move())
    listed += view.OwnerOf(ShardId{move.shard()}) == owner;
  if (core.copies_count() > listed) {
    findings_.Report(
        Invariant::kBoundedState,
        absl::StrCat(Name(owner), " has copies of ", core.copies_count(),
                     " shards; its view names it for ", listed));
  }
  findings_.stats().answers_held =
      std::max(findings_.stats().answers_held,
               static_cast<int64_t>(core.answers_held()));
}

void CopyTwin::CompareCopy(Owner owner, int32_t id,
                           const ShardMachine& machine) {
  const LogPosition& at = machine.position();
  const uint64_t digest = Digest(machine);
  const auto [known, inserted] =
      digests_.try_emplace({id, at.term, at.index}, digest);
  findings_.stats().copies_compared += !inserted;
  findings_.stats().row_copies +=
      !inserted && scenario_.HasRows(machine.shard().range().table);
  const std::string who =
      absl::StrCat("shard ", id, " of ", Name(owner), " at ", Name(at));
  const auto found = shards_.twins().find(id);
  if (found != shards_.twins().end()) {
    const ShardTwin& present = found->second;
    if (!present.terms.empty() && at.term == present.terms.rbegin()->first &&
        at.index > present.index) {
      return findings_.Report(
          Invariant::kCopies,
          absl::StrCat(who, " is ahead of its owner, which is at ",
                       present.index));
    }
    const std::shared_ptr<const ShardTwin> was =
        TwinAt(present, machine.shard().range(), at);
    if (was != nullptr) {
      const auto logged = was->log.find(at.index);
      if (logged != was->log.end() && logged->second.exact) {
        if (const std::optional<Violation> wrong = comparison_.Difference(
                *was, logged->second.state, logged->second.version, machine)) {
          return findings_.Report(Invariant::kCopies,
                                  absl::StrCat(who, ": ", wrong->what));
        }
      }
    }
  }
  if (inserted || known->second == digest) return;
  findings_.Report(
      Invariant::kCopies,
      absl::StrCat(who, " is not what it is elsewhere at that place"));
}

const HeldCopy* CopyTwin::CopyAt(int32_t shard, Owner owner) const {
  const auto of_thread = copies_.find(owner);
  if (of_thread == copies_.end()) return nullptr;
  while (true) {
    const auto copy = of_thread->second.find(shard);
    if (copy != of_thread->second.end()) return &copy->second;
    const auto twin = shards_.twins().find(shard);
    if (twin == shards_.twins().end() || twin->second.origin == shard)
      return nullptr;
    shard = twin->second.origin;  // It does not know of the cut yet.
  }
}

}  // namespace slackline::sim
