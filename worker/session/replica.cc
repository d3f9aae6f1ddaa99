#include "worker/session/replica.h"

#include <algorithm>

#include "common/io/state_hash.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/view/initializer.h"

namespace slackline {
namespace {

// Whole numbers below 2^64 go through sums of floats as digits of 16 bits,
// which a float holds exactly. A number has one owner; the others add zeros.
constexpr int kDigits = 4;

// Where ranks tell each other their options: the optimizer's own momentum.
constexpr float kNoMomentum = -1;

void PutNumber(uint64_t number, absl::Span<float> digits) {
  for (int i = 0; i < kDigits; ++i)
    digits[i] = static_cast<float>((number >> (16 * i)) & 0xffff);
}

uint64_t GetNumber(absl::Span<const float> digits) {
  uint64_t number = 0;
  for (int i = 0; i < kDigits; ++i)
    number |= static_cast<uint64_t>(digits[i]) << (16 * i);
  return number;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> Replica::Create(
    ParameterMemory* parameters, const LearningRateSchedule& schedule,
    int64_t bucket_bytes, std::unique_ptr<FloatMemory> memory,
    std::shared_ptr<const View> view) {
  GradientBuckets::Options options;
  options.bucket_bytes = bucket_bytes;
  options.memory = memory.get();
  for (size_t t = 0; t < parameters->tables().size(); ++t) {
    options.table_elements.push_back(static_cast<int64_t>(
        parameters->parameter(static_cast<int>(t)).size()));
  }
  SL_ASSIGN_OR_RETURN(GradientBuckets buckets,
                      GradientBuckets::Create(options));
  std::vector<UpdateRule> rules;
  for (size_t t = 0; t < options.table_elements.size(); ++t) {
    rules.push_back({.optimizer = view->optimizer(TableId{static_cast<int>(t)}),
                     .schedule = schedule});
  }
  std::unique_ptr<Replica> replica(
      new Replica(parameters, std::move(rules), std::move(memory), options,
                  std::move(buckets), std::move(view)));
  for (size_t t = 0; t < options.table_elements.size(); ++t) {
    std::vector<FloatMemory::Array>& slots = replica->slots_.emplace_back();
    for (int s = 0; s < replica->rules_[t].optimizer.slot_count(); ++s) {
      SL_ASSIGN_OR_RETURN(FloatMemory::Array slot,
                          replica->memory_->Allocate(
                              static_cast<size_t>(options.table_elements[t])));
      slots.push_back(std::move(slot));
    }
  }
  return replica;
}

Replica::Replica(ParameterMemory* parameters, std::vector<UpdateRule> rules,
                 std::unique_ptr<FloatMemory> memory,
                 GradientBuckets::Options bucket_options,
                 GradientBuckets buckets, std::shared_ptr<const View> view)
    : parameters_(*parameters),
      rules_(std::move(rules)),
      memory_(std::move(memory)),
      bucket_options_(std::move(bucket_options)),
      buckets_(std::move(buckets)),
      view_(std::move(view)),
      versions_(view_->shard_count(), 0) {}

absl::Status Replica::SetLanes(const std::vector<Lane>& lanes) {
  if (lanes == bucket_options_.lanes) return absl::OkStatus();
  bucket_options_.lanes = lanes;
  // Gradients that were added are in own_, too.
  SL_ASSIGN_OR_RETURN(buckets_, GradientBuckets::Create(bucket_options_));
  return absl::OkStatus();
}

absl::Status Replica::Initialize(uint64_t seed,
                                 absl::Span<const TableState> states) {
  std::vector<float> initial;
  for (size_t t = 0; t < slots_.size(); ++t) {
    const absl::Span<float> parameter =
        parameters_.parameter(static_cast<int>(t));
    initial.resize(parameter.size());
    if (parameters_.tables()[t].initializer().kind() !=
        wire::Initializer::OF_WORKER) {
      InitializeElements(parameters_.tables()[t], seed, 0,
                         absl::MakeSpan(initial));
      SL_RETURN_IF_ERROR(memory_->CopyIn(initial.data(), parameter));
    }
    std::fill(initial.begin(), initial.end(), 0.0f);
    for (size_t s = 0; s < slots_[t].size(); ++s) {
      const void* const from = states.empty()
                                   ? static_cast<const void*>(initial.data())
                                   : states[t].slots[s].data();
      SL_RETURN_IF_ERROR(memory_->CopyIn(from, slots_[t][s].values));
    }
    for (const ShardRange& range :
         view_->ShardsOf(TableId{static_cast<int32_t>(t)})) {
      versions_[static_cast<size_t>(range.shard)] =
          states.empty() ? 0 : static_cast<Version>(states[t].updates);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TableState>> Replica::State() {
  std::vector<TableState> states;
  for (size_t t = 0; t < slots_.size(); ++t) {
    TableState& state = states.emplace_back();
    for (const ShardRange& range :
         view_->ShardsOf(TableId{static_cast<int32_t>(t)})) {
      state.updates = std::max(
          state.updates, static_cast<int64_t>(VersionOf(*view_, range.shard)));
    }
    for (const FloatMemory::Array& slot : slots_[t]) {
      Payload copy = Payload::Allocate(slot.values.size() * sizeof(float));
      SL_RETURN_IF_ERROR(memory_->CopyOut(slot.values, copy.MutableData()));
      state.slots.push_back(std::move(copy));
    }
  }
  return states;
}

Replica::Range Replica::RangeOf(TableId table, const Region& region) {
  const size_t begin = static_cast<size_t>(region.begin());
  const size_t size = static_cast<size_t>(region.size());
  Range part{
      .values =
          parameters_.parameter(static_cast<int>(table)).subspan(begin, size),
      .slots = {}};
  for (const FloatMemory::Array& slot : slots_[static_cast<size_t>(table)])
    part.slots.push_back(slot.values.subspan(begin, size));
  return part;
}

Version Replica::VersionOf(const View& view, ShardId shard) const {
  while (static_cast<size_t>(shard) >= versions_.size())
    shard = view.OriginOf(shard);
  return versions_[static_cast<size_t>(shard)];
}

absl::Status Replica::CopyIn(const PullResult& pulled) {
  view_ = pulled.view;
  versions_.resize(pulled.shards.size());
  for (size_t s = 0; s < pulled.shards.size(); ++s) {
    const ShardValue& value = pulled.shards[s];
    const ShardRange& of = view_->shard(ShardId{static_cast<int32_t>(s)});
    const Range range = RangeOf(of.table, of.region);
    versions_[s] = value.version;
    SL_RETURN_IF_ERROR(memory_->CopyIn(value.values.data(), range.values));
    for (size_t i = 0; i < range.slots.size(); ++i) {
      SL_RETURN_IF_ERROR(
          memory_->CopyIn(value.slots[i].data(), range.slots[i]));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardValue> Replica::CopyOut(const View& view, ShardId shard) {
  const ShardRange& of = view.shard(shard);
  return CopyOf(of.table, of.region, VersionOf(view, shard));
}

absl::StatusOr<ShardValue> Replica::CopyOf(TableId table, const Region& region,
                                           Version version) {
  const Range range = RangeOf(table, region);
  ShardValue value;
  value.version = version;
  const auto copy = [&](absl::Span<float> from) -> absl::StatusOr<Payload> {
    Payload payload = Payload::Allocate(from.size() * sizeof(float));
    SL_RETURN_IF_ERROR(memory_->CopyOut(from, payload.MutableData()));
    return payload;
  };
  SL_ASSIGN_OR_RETURN(value.values, copy(range.values));
  for (const absl::Span<float> slot : range.slots) {
    SL_ASSIGN_OR_RETURN(Payload payload, copy(slot));
    value.slots.push_back(std::move(payload));
  }
  return value;
}

absl::StatusOr<uint64_t> Replica::Hash(const View& view) {
  std::vector<uint64_t> hashes;
  for (int t = 0; t < view.proto().table_size(); ++t) {
    const wire::Table& table = view.table(TableId{t});
    for (const Region& region :
         RegionOf(table).Pieces(table.shard_elements())) {
      const ShardId shard{static_cast<int32_t>(hashes.size())};
      SL_ASSIGN_OR_RETURN(const ShardValue value,
                          CopyOf(TableId{t}, region, VersionOf(view, shard)));
      hashes.push_back(StateHash(value.version, value.values, value.slots));
    }
  }
  return ModelHash(hashes);
}

int64_t Replica::bytes() const {
  size_t floats = 0;
  for (size_t t = 0; t < slots_.size(); ++t) {
    floats += parameters_.parameter(static_cast<int>(t)).size() *
              (1 + slots_[t].size());
  }
  return static_cast<int64_t>(floats * sizeof(float));
}

void Replica::StartStep() {
  buckets_.BeginStep();
  own_.clear();
  tickets_.clear();
}

absl::Status Replica::Add(Collective& group, TableId table,
                          const Payload& gradient, const StepOptions& options) {
  const auto index = static_cast<size_t>(table);
  if (index < rules_.size()) {
    SL_RETURN_IF_ERROR(CheckMomentum(options, rules_[index].optimizer,
                                     parameters_.tables()[index].name()));
  }
  return Add(group,
             Gradient{.table = table, .values = gradient, .options = options});
}

absl::Status Replica::Skip(Collective& group, TableId table) {
  SL_ASSIGN_OR_RETURN(Payload zeros, ZerosOf(table));
  return Add(
      group,
      Gradient{.table = table, .values = std::move(zeros), .skipped = true});
}

absl::Status Replica::Add(Collective& group, Gradient gradient) {
  std::vector<int> issue;
  SL_RETURN_IF_ERROR(buckets_.Add(gradient.table, gradient.values, &issue));
  own_.push_back(std::move(gradient));
  for (const int bucket : issue) {
    const bool by_servers =
        buckets_.LaneOf(bucket) == Lane::kServers && group.has_servers();
    tickets_.push_back(by_servers
                           ? group.SumByServersAsync(buckets_.bucket(bucket))
                           : group.AllReduceAsync(buckets_.bucket(bucket)));
  }
  return absl::OkStatus();
}

absl::Status Replica::AddAgain(Collective& group) {
  std::vector<Gradient> own;
  own.swap(own_);
  StartStep();
  for (Gradient& gradient : own)
    SL_RETURN_IF_ERROR(Add(group, std::move(gradient)));
  return absl::OkStatus();
}

absl::StatusOr<Payload> Replica::ZerosOf(TableId table) {
  const size_t size = parameters_.parameter(static_cast<int>(table)).size();
  auto found = zeros_.find(table);
  if (found == zeros_.end()) {
    SL_ASSIGN_OR_RETURN(FloatMemory::Array zeros, memory_->Allocate(size));
    const std::vector<float> values(size, 0.0f);
    SL_RETURN_IF_ERROR(memory_->CopyIn(values.data(), zeros.values));
    found = zeros_.emplace(table, std::move(zeros)).first;
  }
  return Payload::Wrap(found->second.values.data(), size * sizeof(float),
                       nullptr);
}

absl::Status Replica::AddNothing(Collective& group) {
  for (size_t t = 0; t < slots_.size(); ++t) {
    const TableId table{static_cast<int32_t>(t)};
    SL_ASSIGN_OR_RETURN(const Payload zeros, ZerosOf(table));
    SL_RETURN_IF_ERROR(Add(group, table, zeros, StepOptions()));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Replica::AgreeWhoCounts(Collective& group, bool counts,
                                            bool* group_failed) {
  // Of each rank: whether it counts, and its options of each table, two numbers
  // each: the rate factor, or, of one that it skips, a number below 0; and the
  // momentum.
  const size_t row = 1 + 2 * own_.size();
  const auto place_of = [](const Gradient& own) {
    return 1 + 2 * static_cast<size_t>(own.table);
  };
  const int ranks = group.world_size();
  std::vector<float> told(static_cast<size_t>(ranks) * row, 0.0f);
  const auto row_of = [&](int rank) {
    return absl::MakeSpan(told).subspan(static_cast<size_t>(rank) * row, row);
  };
  if (counts) {
    const absl::Span<float> ours = row_of(static_cast<int>(group.rank()));
    ours[0] = 1;
    for (const Gradient& own : own_) {
      ours[place_of(own)] =
          own.skipped ? -1.0f : static_cast<float>(own.options.rate_factor);
      ours[place_of(own) + 1] =
          static_cast<float>(own.options.momentum.value_or(kNoMomentum));
    }
  }
  SL_RETURN_IF_ERROR(Exchange(group, absl::MakeSpan(told), group_failed,
                              [&](absl::Span<float> numbers) {
                                return group.AllReduceAsync(numbers);
                              }));
  int counted = 0;
  for (int rank = ranks - 1; rank >= 0; --rank) {
    if (row_of(rank)[0] == 0) continue;
    ++counted;
    for (Gradient& own : own_) {
      const float momentum = row_of(rank)[place_of(own) + 1];
      own.options.rate_factor = row_of(rank)[place_of(own)];
      own.skipped = own.options.rate_factor < 0;
      own.options.momentum.reset();
      if (momentum != kNoMomentum) own.options.momentum = momentum;
    }
  }
  return counted;
}

absl::StatusOr<Replica::StepResult> Replica::Finish(Collective& group,
                                                    Clock clock,
                                                    std::optional<bool> counts,
                                                    bool* group_failed) {
  *group_failed = false;
  SL_CHECK(Complete(), "a step without all of its gradients");
  const TimeSource time;
  const absl::Time computed = time.Now();
  SL_RETURN_IF_ERROR(Wait(group, tickets_, group_failed));
  int counted = group.world_size();
  if (counts.has_value()) {
    SL_ASSIGN_OR_RETURN(counted, AgreeWhoCounts(group, *counts, group_failed));
  }
  StepResult result{
      .wait_seconds = absl::ToDoubleSeconds(time.Now() - computed),
      .culprits = {}};
  if (counted == 0) return result;
  std::vector<absl::Span<const float>> sums;
  for (int bucket = 0; bucket < buckets_.bucket_count(); ++bucket)
    sums.push_back(buckets_.bucket(bucket));
  SL_ASSIGN_OR_RETURN(const bool finite, memory_->AllFinite(sums));
  if (finite) {
    const float scale = 1.0f / static_cast<float>(counted);
    std::vector<bool> applied(slots_.size(), false);
    for (const Gradient& own : own_) {
      if (own.skipped) continue;
      SL_RETURN_IF_ERROR(Apply(own, scale, clock));
      applied[static_cast<size_t>(own.table)] = true;
    }
    for (size_t s = 0; s < versions_.size(); ++s) {
      const ShardRange& range = view_->shard(ShardId{static_cast<int32_t>(s)});
      if (applied[static_cast<size_t>(range.table)]) ++versions_[s];
    }
    return result;
  }
  result.nonfinite = true;
  SL_ASSIGN_OR_RETURN(result.culprits, FindCulprits(group, group_failed));
  return result;
}

absl::StatusOr<std::vector<Rank>> Replica::FindCulprits(Collective& group,
                                                        bool* group_failed) {
  std::vector<absl::Span<const float>> gradients;
  for (const Gradient& own : own_) {
    gradients.emplace_back(reinterpret_cast<const float*>(own.values.data()),
                           own.values.size() / sizeof(float));
  }
  SL_ASSIGN_OR_RETURN(const bool finite, memory_->AllFinite(gradients));
  std::vector<float> guilty(static_cast<size_t>(group.world_size()), 0.0f);
  guilty[static_cast<size_t>(group.rank())] = finite ? 0.0f : 1.0f;
  SL_RETURN_IF_ERROR(Exchange(group, absl::MakeSpan(guilty), group_failed,
                              [&](absl::Span<float> numbers) {
                                return group.AllReduceAsync(numbers);
                              }));
  std::vector<Rank> culprits;
  for (size_t rank = 0; rank < guilty.size(); ++rank) {
    if (guilty[rank] > 0) culprits.push_back(Rank{static_cast<int32_t>(rank)});
  }
  return culprits;
}

absl::Status Replica::Apply(const Gradient& own, float scale, Clock clock) {
  const UpdateRule& rule = rules_[static_cast<size_t>(own.table)];
  const absl::Span<const ShardRange> ranges = view_->ShardsOf(own.table);
  // Neighbouring shards of one version are one piece: the bits do not depend on
  // where a table is split.
  for (size_t first = 0; first < ranges.size();) {
    const Version version = VersionOf(*view_, ranges[first].shard);
    Region piece = ranges[first].region;
    for (++first; first < ranges.size() &&
                  VersionOf(*view_, ranges[first].shard) == version;
         ++first) {
      piece = {piece.begin(), ranges[first].region.end()};
    }
    const Range range = RangeOf(own.table, piece);
    const auto* const gradient = reinterpret_cast<const std::byte*>(
        buckets_.Gradient(own.table).data() + piece.begin());
    Optimizer::ApplyArgs args;
    args.in = range.values.data();
    args.out = range.values.data();
    for (size_t s = 0; s < range.slots.size(); ++s)
      args.slots[s] = range.slots[s].data();
    args.gradients = absl::MakeConstSpan(&gradient, 1);
    args.elements = range.values.size();
    args.gradient_scale = scale;
    args.numbers = rule.NumbersAt(clock, own.options);
    args.update_count = static_cast<int64_t>(version) + 1;
    SL_RETURN_IF_ERROR(memory_->Apply(rule.optimizer, args));
  }
  return absl::OkStatus();
}

absl::Status Replica::Exchange(
    Collective& group, absl::Span<float> numbers, bool* group_failed,
    const std::function<Collective::Ticket(absl::Span<float>)>& start) {
  SL_ASSIGN_OR_RETURN(const FloatMemory::Array array,
                      memory_->Allocate(numbers.size()));
  SL_RETURN_IF_ERROR(memory_->CopyIn(numbers.data(), array.values));
  const Collective::Ticket ticket = start(array.values);
  SL_RETURN_IF_ERROR(
      Wait(group, absl::MakeConstSpan(&ticket, 1), group_failed));
  return memory_->CopyOut(array.values, numbers.data());
}

absl::Status Replica::Wait(Collective& group,
                           absl::Span<const Collective::Ticket> tickets,
                           bool* group_failed) {
  // Their memory is in use until the last one is over.
  absl::Status done;
  for (const Collective::Ticket ticket : tickets)
    done.Update(group.Wait(ticket));
  if (!done.ok()) *group_failed = true;
  return done;
}

absl::StatusOr<Replica::CaughtUp> Replica::CatchUp(Collective& group,
                                                   const Standing& standing,
                                                   bool* group_failed) {
  *group_failed = false;
  const int ranks = group.world_size();
  const int self = static_cast<int>(group.rank());
  // Each rank's clock + 1, how many versions it has (shards may have been split
  // in two between the views in which two ranks took the state), and whether
  // the values are its own.
  constexpr int kNumbers = 3;
  std::vector<float> told(static_cast<size_t>(ranks) * kNumbers * kDigits,
                          0.0f);
  const auto place = [&](int rank, int which) {
    return absl::MakeSpan(told).subspan((kNumbers * rank + which) * kDigits,
                                        kDigits);
  };
  PutNumber(static_cast<uint64_t>(standing.clock + 1), place(self, 0));
  PutNumber(versions_.size(), place(self, 1));
  PutNumber(standing.own_values ? 1 : 0, place(self, 2));
  SL_RETURN_IF_ERROR(Exchange(group, absl::MakeSpan(told), group_failed,
                              [&](absl::Span<float> numbers) {
                                return group.AllReduceAsync(numbers);
                              }));
  std::vector<Standing> known;
  for (int r = 0; r < ranks; ++r) {
    known.push_back({.clock = static_cast<Clock>(GetNumber(place(r, 0))) - 1,
                     .own_values = GetNumber(place(r, 2)) != 0});
  }
  const CatchUpPlan plan = PlanCatchUp(known);
  if (plan.clock < 0) {
    *group_failed = true;
    return absl::NotFoundError(
        "no worker of the group knows the job's parameters");
  }
  if (std::find(plan.takes.begin(), plan.takes.end(), true) ==
      plan.takes.end()) {
    return CaughtUp{.clock = plan.clock};
  }
  const Rank root{plan.root};
  const size_t shards = GetNumber(place(static_cast<int>(root), 1));
  std::vector<float> versions(shards * kDigits, 0.0f);
  if (group.rank() == root) {
    for (size_t s = 0; s < shards; ++s) {
      PutNumber(versions_[s],
                absl::MakeSpan(versions).subspan(s * kDigits, kDigits));
    }
  }
  SL_RETURN_IF_ERROR(Exchange(group, absl::MakeSpan(versions), group_failed,
                              [&](absl::Span<float> numbers) {
                                return group.BroadcastAsync(numbers, root);
                              }));
  // What arrives counts only once all of it is there; and a broadcast that
  // fails may spoil what it reads from.
  std::vector<absl::Span<float>> own;
  for (size_t t = 0; t < slots_.size(); ++t) {
    own.push_back(parameters_.parameter(static_cast<int>(t)));
    for (const FloatMemory::Array& slot : slots_[t]) own.push_back(slot.values);
  }
  std::vector<FloatMemory::Array> arrived;
  for (const absl::Span<float> tensor : own) {
    SL_ASSIGN_OR_RETURN(FloatMemory::Array array,
                        memory_->Allocate(tensor.size()));
    SL_RETURN_IF_ERROR(memory_->Copy(tensor.data(), array.values));
    arrived.push_back(std::move(array));
  }
  std::vector<Collective::Ticket> tickets;
  for (const FloatMemory::Array& tensor : arrived)
    tickets.push_back(group.BroadcastAsync(tensor.values, root));
  SL_RETURN_IF_ERROR(Wait(group, tickets, group_failed));
  if (!plan.takes[static_cast<size_t>(self)])
    return CaughtUp{.clock = plan.clock};
  for (size_t i = 0; i < own.size(); ++i)
    SL_RETURN_IF_ERROR(memory_->Copy(arrived[i].values.data(), own[i]));
  versions_.resize(shards);
  for (size_t s = 0; s < shards; ++s) {
    versions_[s] =
        GetNumber(absl::MakeConstSpan(versions).subspan(s * kDigits, kDigits));
  }
  return CaughtUp{.clock = plan.clock, .took_state = true};
}

}  // namespace slackline
