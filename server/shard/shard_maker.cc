#include "server/shard/shard_maker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "common/with_memory.h"
#include "server/shard/shard_codec.h"

namespace slackline {
namespace {

// What a checkpoint has of the shard as what the shard begins with, in memory
// of its own.
absl::StatusOr<ShardSnapshot> Restored(const ShardState& stored,
                                       const Region& region,
                                       const TableRule& rule) {
  const auto slot_count = static_cast<size_t>(rule.optimizer.slot_count());
  if (stored.version > kVersionMax) {
    return absl::DataLossError(absl::StrCat("the checkpoint has version ",
                                            stored.version, ", above 2^60"));
  }
  if (!stored.slots.empty() && stored.slots.size() != slot_count) {
    return absl::DataLossError(absl::StrCat(
        "the checkpoint has ", stored.slots.size(),
        " optimizer slots, and the table's optimizer has ", slot_count));
  }
  const absl::Status fits =
      rule.store->Check(region, stored.values, stored.slots);
  if (!fits.ok()) {
    return absl::DataLossError(
        absl::StrCat("the checkpoint has ", fits.message()));
  }
  const auto own = [](const Payload& tensor) {
    return Payload::Copy(tensor.data(), tensor.size());
  };
  ShardSnapshot snapshot;
  SL_RETURN_IF_ERROR(WithMemory((1 + slot_count) * stored.values.size(),
                                "what a checkpoint has of it", [&] {
                                  snapshot.values = own(stored.values);
                                  for (const Payload& slot : stored.slots)
                                    snapshot.slots.push_back(own(slot));
                                  while (snapshot.slots.size() < slot_count)
                                    snapshot.slots.push_back(
                                        rule.store->ZeroSlot(snapshot.values));
                                }));
  // A rule that corrects its young moments by the number of updates they have
  // seen counts anew with moments that begin anew.
  const bool anew = stored.slots.size() < slot_count;
  snapshot.version = anew ? 0 : stored.version;
  snapshot.running_rms = stored.running_rms;
  return snapshot;
}

// The shard that the job began with of which this one is, or was split off.
ShardId BeginningOf(ShardId shard, const View& view) {
  while (view.OriginOf(shard) != shard) shard = view.OriginOf(shard);
  return shard;
}

// The turns with which a shard begins, if the job's delays are given;
// `snapshot` has all else, and `stored` are those of the checkpoint that it is
// from.
absl::StatusOr<std::optional<TurnState>> TurnsFrom(
    std::optional<StoredTurns> stored, ShardId shard, const TableRule& rule,
    const ShardSnapshot& snapshot, const ShardParts& at) {
  const bool given = rule.delays != nullptr;
  if (at.options.stored != nullptr && stored.has_value() != given) {
    return absl::DataLossError(absl::StrCat(
        "the checkpoint has ", given ? "no " : "",
        "turns of given delays, and its manifest says that it has ",
        given ? "some" : "none",
        "; they are of different checkpoints: go on from another one"));
  }
  if (!given) return std::nullopt;
  const ShardId plan = rule.delays->TracedAs(BeginningOf(shard, *at.view));
  if (!stored.has_value()) return TurnState{.plan = plan};
  if (ShardId{stored->turns.plan()} != plan) {
    return absl::DataLossError(absl::StrCat(
        "the checkpoint has turns of shard ", stored->turns.plan(),
        " of the delays, and it takes those of shard ", static_cast<int>(plan),
        "; go on with the same limits { shard_kib: ... }"));
  }
  // In memory of its own.
  SL_RETURN_IF_ERROR(WithMemory(stored->tensors.size() * snapshot.values.size(),
                                "what a checkpoint has of its turns", [&] {
                                  for (Payload& tensor : stored->tensors)
                                    tensor = Payload::Copy(tensor.data(),
                                                           tensor.size());
                                }));
  absl::StatusOr<std::optional<TurnState>> turns =
      DecodeTurns(*std::move(stored), rule, snapshot.version,
                  Participants(snapshot.min_clock, snapshot.participants));
  if (!turns.ok()) {
    return absl::DataLossError(absl::StrCat("the checkpoint has ",
                                            turns.status().message(),
                                            "; go on from another one"));
  }
  return turns;
}

// nullptr: the job's delays are not given.
std::shared_ptr<const DelayPlan> DelaysOf(const ShardParts& at) {
  const wire::View& view = at.view->proto();
  const wire::Phase* const given = GivenDelaysPhase(view);
  if (given == nullptr) return nullptr;
  SL_CHECK(at.options.delays != nullptr, "the delays of the job are not here");
  absl::StatusOr<std::shared_ptr<const DelayPlan>> made =
      at.options.delays->PlanFor(at.options.workers, given->from(),
                                 view.steps_total(), at.options.seed);
  // The coordinator has looked at the same ones.
  SL_CHECK(made.ok(), made.status().ToString());
  return *std::move(made);
}

}  // namespace

void ShardMaker::OnView(const ShardParts& at) {
  if (!rules_.empty()) return;
  const wire::View& proto = at.view->proto();
  const absl::StatusOr<LearningRateSchedule> schedule =
      LearningRateSchedule::Create(
          schedule_, {.steps_total = proto.steps_total(),
                      .steps_per_epoch = proto.steps_per_epoch()});
  // The config was validated and the coordinator checked the steps.
  SL_CHECK(schedule.ok(), schedule.status().ToString());
  const std::shared_ptr<const DelayPlan> delays = DelaysOf(at);
  for (int table = 0; table < proto.table_size(); ++table) {
    const Optimizer& optimizer = at.view->optimizer(TableId{table});
    const wire::Table& entry = proto.table(table);
    rules_.push_back(std::make_shared<const TableRule>(
        TableRule{{.optimizer = optimizer,
                   .schedule = *schedule,
                   .stale = at.options.stale.For(entry.name()),
                   .gradient_bound = at.options.gradient_bound,
                   .delays = delays},
                  at.options.store_of(entry)}));
    served_rules_.push_back(std::make_shared<const ServedShard::Rules>(
        ServedShard::Rules{.table = entry.name(),
                           .pulled_as = entry.pulled_as(),
                           .memory = at.options.memory,
                           .trace = at.options.trace}));
  }
}

absl::StatusOr<ShardMachine> ShardMaker::NewMachine(
    const ShardRange& range, const ShardParts& at) const {
  const wire::Table& table = at.view->table(range.table);
  const TableRule& rule = *RuleFor(range);
  ShardSnapshot snapshot;
  std::optional<StoredTurns> turns;
  if (at.options.stored != nullptr) {
    SL_ASSIGN_OR_RETURN(ShardState stored,
                        at.options.stored->Read(table.name(), range.region,
                                                rule.store->form()));
    SL_ASSIGN_OR_RETURN(snapshot, Restored(stored, range.region, rule));
    turns = std::move(stored.turns);
  } else if (table.initializer().kind() == wire::Initializer::OF_CHECKPOINT) {
    return absl::FailedPreconditionError(
        "the job goes on from a checkpoint, and this server was started "
        "without one: start every server with the same --resume");
  } else {
    SL_ASSIGN_OR_RETURN(const std::unique_ptr<ShardStore> initial,
                        rule.store->Initial(table, range.region,
                                            at.options.seed, rule.optimizer));
    snapshot.values = initial->values();
    snapshot.slots = initial->slots();
  }
  for (const wire::WorkerMember& worker : at.view->workers()) {
    if (!worker.founder()) continue;
    snapshot.participants.push_back({.rank = Rank{worker.rank()},
                                     .incarnation = worker.incarnation(),
                                     .joined_at = worker.begins_at(),
                                     .clock = worker.begins_at()});
  }
  // Founders only leave, and shards are only split, so where as many are left
  // and as many splits made, a shard begins as the same.
  snapshot.position.term =
      snapshot.participants.size() +
      (static_cast<uint64_t>(at.view->proto().split_size()) << 16);
  snapshot.min_clock = at.view->proto().begins_at();
  if (!snapshot.participants.empty()) {
    snapshot.min_clock =
        std::ranges::min(snapshot.participants, {}, &Participant::clock).clock;
  }
  snapshot.complete_clock = snapshot.min_clock;
  SL_ASSIGN_OR_RETURN(snapshot.turns, TurnsFrom(std::move(turns), range.shard,
                                                rule, snapshot, at));
  return ShardMachine::Create(RuleFor(range), range, std::move(snapshot));
}

ShardPlaces::Serving ShardMaker::BeginToServe(
    ShardMachine machine, uint64_t term,
    std::vector<FollowerFeeds::Known> awaited, const ShardParts& at) const {
  const ShardRange range = machine.shard().range();
  ShardFeeds feeds(at.options.feed, machine, term, std::move(awaited));
  ServedShard served(served_rules_[static_cast<size_t>(range.table)],
                     std::move(machine), term);
  feeds.followers().Follow(at.view->FollowersOf(range.shard), at.options.self,
                           /*keep=*/0, served.machine(), at.now);
  return {.shard = std::move(served), .feeds = std::move(feeds)};
}

}  // namespace slackline
