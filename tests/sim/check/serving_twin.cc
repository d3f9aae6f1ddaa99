#include "tests/sim/check/serving_twin.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {

void ServingTwin::FollowView(Owner owner, const View& view,
                             const ShardCore& core, ShardEvent* event) {
  ThreadTwin& thread = shards_.threads().at(owner);
  if (!thread.created) {
    thread.created = event->created = true;
    thread.first_view = view.number();
    shards_.CreateTwins(owner, view);
    for (auto& [id, twin] : shards_.twins()) {
      if (!twin.owner.has_value() && !twin.last_owner.has_value())
        twin.owner = twin.last_owner = owner;
    }
  } else {
    std::vector<std::pair<int32_t, int32_t>> parts;
    shards_.SplitTwins(owner, view, &event->cut, &parts);
    for (const auto& [from, to] : parts) pulls_.InheritSeen(from, to);
  }
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    if (scenario_.replicas == 0 || view.OwnerOf(ShardId{id}) != owner ||
        !core.Owns(ShardId{id}) || shards_.IsDeposed(id, owner)) {
      continue;
    }
    const auto twin = shards_.twins().find(id);
    if (twin != shards_.twins().end() && twin->second.owner == owner) continue;
    failovers_.OnPromoted(owner, id, view, *core.MachineOf(ShardId{id}));
    event->promoted.insert(id);
    event->gained.push_back(id);
  }
}

void ServingTwin::FollowOwner(Owner owner, int32_t id, bool owns,
                              ShardEvent* event) {
  ThreadTwin& thread = shards_.threads().at(owner);
  ShardTwin& twin = shards_.twins().at(id);
  const bool owned = twin.owner == owner;
  if (owns && !owned && shards_.IsDeposed(id, owner)) {
    event->deposed.insert(id);
    thread.was_deposed = true;
    return;
  }
  if (owns || owned) event->served.insert(id);
  if (owned) {
    twin.newest_view = std::max(twin.newest_view, thread.view->number());
    if (!owns) twin.owner.reset();
  }
  if (!owns || owned) return;
  if (twin.owner.has_value()) {
    findings_.Report(Invariant::kOwnership,
                     absl::StrCat(twin.name, " is served by ", Name(owner),
                                  " and by ", Name(*twin.owner)));
  }
  // What it was told may be newer than what the last owner had then.
  const ThreadTwin& before = shards_.threads()[*twin.last_owner];
  if (before.view != nullptr)
    twin.newest_view = std::max(twin.newest_view, before.view->number());
  twin.owner = twin.last_owner = owner;
  twin.leads.clear();
  event->gained.push_back(id);
}

std::optional<ShardEvent> ServingTwin::Follow(
    Owner owner, const std::shared_ptr<const View>& view,
    const ShardCore& core) {
  ShardEvent event;
  ThreadTwin& thread = shards_.threads()[owner];
  // The last view changes nothing in a shard.
  const bool newer =
      view != nullptr && view->proto().state() == wire::RUNNING &&
      (thread.view == nullptr || view->number() > thread.view->number());
  if (newer) thread.view = view;
  if (thread.view == nullptr) return std::nullopt;
  if (newer) FollowView(owner, *view, core, &event);
  for (auto& [id, twin] : shards_.twins())
    FollowOwner(owner, id, core.Owns(ShardId{id}), &event);
  for (const int32_t id : event.served) {
    const ShardMachine* const machine = core.MachineOf(ShardId{id});
    const bool changed = newer || absl::c_linear_search(event.gained, id);
    if (machine == nullptr || !changed) continue;
    shards_.FollowParticipants(shards_.twins().at(id), *thread.view, *machine);
  }
  findings_.stats().deposed += !event.deposed.empty();
  return event;
}

void ServingTwin::CompareArrivals(Owner owner, const ShardEvent& event,
                                  const ShardCore& core) {
  for (const int32_t id : event.cut) {
    const ShardMachine* const machine = core.MachineOf(ShardId{id});
    if (machine == nullptr) continue;
    ++findings_.stats().parts_compared;
    shards_.CompareState(shards_.twins().at(id), *machine,
                         "after it was cut off");
  }
  for (const int32_t id : event.gained) {
    const ShardTwin& twin = shards_.twins().at(id);
    ++findings_.stats().arrivals;
    findings_.stats().arrivals_held += !twin.held.empty();
    const std::string when =
        absl::StrCat("as ", Name(owner), " has taken it over");
    if (event.promoted.count(id) == 0) {
      shards_.CompareState(twin, *core.MachineOf(ShardId{id}), when);
    } else if (const std::optional<Violation> found =
                   comparison_.Difference(twin, *core.MachineOf(ShardId{id}))) {
      findings_.Report(Invariant::kCopies,
                       absl::StrCat(twin.name, ", ", when,
                                    " from its copy of it: ", found->what));
    }
  }
}

void ServingTwin::CompareInstalled(const ShardEvent& event,
                                   const ShardCore& core,
                                   const ShardCore::Effects& effects) {
  for (const ShardTraceRecord& record : effects.trace) {
    const ShardMachine* const machine = core.MachineOf(record.shard);
    const auto id = static_cast<int32_t>(record.shard);
    if (record.kind == ShardTraceRecord::Kind::kInstalled &&
        machine != nullptr && event.deposed.count(id) == 0) {
      shards_.CompareState(shards_.twins().at(id), *machine,
                           "as it was installed");
    }
  }
}

}  // namespace slackline::sim
