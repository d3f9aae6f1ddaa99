#include "tests/sim/checker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/check/bits.h"
#include "tests/sim/check/twin_log.h"

namespace slackline::sim {

void Checker::OnPublished(const wire::View& view) {
  const std::optional<wire::View> before = views_.OnPublished(view);
  if (!before.has_value()) return;
  cuts_.CheckCut(*before, view);
  moves_.CheckMoves(*before, view);
  told_.CheckFollowers(*before, view);
  views_.CheckPhases(*before, view);
  const bool runs = view.state() == wire::RUNNING;
  const bool ran = before->state() == wire::RUNNING;
  if (runs && !ran) resume_.CheckBegin(view);
  if (view.state() == wire::FAILED && ran) moves_.CheckFailure(*before, view);
}

void Checker::OnSent(Rank rank, Incarnation incarnation,
                     const Message& message) {
  const Life life{rank, incarnation};
  pushes_.OnSent(life, message.header.push_request());
  pulls_.OnSent(life, message.header.pull_request());
}

void Checker::OnWorkerReceived(Rank rank, Incarnation incarnation,
                               const Message& message) {
  const Life life{rank, incarnation};
  pushes_.OnReply(life, message.header.push_reply());
  pulls_.OnReply(life, message);
}

void Checker::OnStepBegun(Rank rank, Incarnation incarnation, Clock clock,
                          bool by_all_reduce,
                          const std::optional<ExampleRange>& examples) {
  const Life life{rank, incarnation};
  examples_.OnStepBegun(life, clock, examples);
  views_.Reach(life, clock);
  views_.CheckStep(life, clock, by_all_reduce);
}

void Checker::OnServerStarts(int32_t server) {
  shards_.OnServerStarts(server);
  cuts_.OnServerStarts(server);
}

void Checker::OnShardEvent(Owner owner, const std::shared_ptr<const View>& view,
                           const ShardCore& core,
                           const ShardCore::Effects& effects) {
  const std::optional<ShardEvent> event = serving_.Follow(owner, view, core);
  if (!event.has_value()) return;
  const bool logs = scenario_.replicas > 0;
  const View& known = *shards_.threads().at(owner).view;
  // Those that the thread has after the event.
  std::vector<std::pair<ShardTwin*, const ShardMachine*>> machines;
  for (const int32_t id : event->served) {
    if (const ShardMachine* const machine = core.MachineOf(ShardId{id}))
      machines.push_back({&shards_.twins().at(id), machine});
  }
  for (const auto& [twin, machine] : machines)
    if (logs) BeginLogging(*twin, known, machine->position(), &findings_);
  for (const ShardTraceRecord& record : effects.trace)
    OnTrace(owner, *event, core, record);
  for (const auto& [twin, machine] : machines)
    if (logs) EndLogging(*twin, machine->position());
  for (const int32_t id : event->served) {
    if (!core.Owns(ShardId{id})) continue;
    const ShardTwin& twin = shards_.twins().at(id);
    delays_.CheckReady(twin);
    pushes_.CheckHeld(twin, owner);
    pulls_.CheckWaiting(twin, *core.GateOf(ShardId{id}), owner);
  }
  if (scenario_.mode.has_delays()) {
    for (const ShardTraceRecord& record : effects.trace) {
      const auto id = static_cast<int32_t>(record.shard);
      if (event->deposed.count(id) > 0) continue;
      if (const ShardMachine* const machine = core.MachineOf(record.shard)) {
        delays_.CheckKept(shards_.twins().at(id), machine->turns()->state());
      }
    }
  }
  for (const int32_t id : event->served) {
    ShardTwin& twin = shards_.twins().at(id);
    if (event->created && scenario_.resume != nullptr)
      resume_.CheckResumed(twin, core);
    cuts_.FollowCopy(twin, core, owner);
  }
  if (effects.cut.has_value()) cuts_.OnCut(owner, *effects.cut);
  serving_.CompareArrivals(owner, *event, core);
  copies_.FollowCopies(owner, core);
  serving_.CompareInstalled(*event, core, effects);
  figures_.OnShardEvent(owner, core);
}

void Checker::OnTrace(Owner owner, const ShardEvent& event,
                      const ShardCore& core, const ShardTraceRecord& record) {
  using Kind = ShardTraceRecord::Kind;
  const auto id = static_cast<int32_t>(record.shard);
  if (event.deposed.count(id) > 0) {
    if (record.kind == Kind::kPushDiscarded) pushes_.NoteOversized(record.rank);
    return failovers_.OnTraceOfDeposed(record, core);
  }
  const auto found = shards_.twins().find(id);
  if (found == shards_.twins().end() || event.served.count(id) == 0) {
    return Report(Invariant::kOwnership,
                  absl::StrCat(Name(owner), " is at work on shard ", id,
                               ", which it has not"));
  }
  ShardTwin& twin = found->second;
  switch (record.kind) {
    case Kind::kPushAccepted:
    case Kind::kPushDiscarded:
      pushes_.OnPushAccepted(twin, record, owner);
      break;
    case Kind::kAdvanced:
      pushes_.OnAdvanced(twin, record, owner);
      break;
    case Kind::kUpdated:
      pushes_.OnUpdated(twin, record, owner);
      break;
    case Kind::kPullAnswered:
      pulls_.OnPullAnswered(twin, record, owner);
      break;
    case Kind::kInstalled:
      all_reduce_.OnInstalled(twin, record, *shards_.threads().at(owner).view);
      break;
  }
  if (scenario_.replicas > 0) LogState(twin, record.index, /*exact=*/true);
}

}  // namespace slackline::sim
