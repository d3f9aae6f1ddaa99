#include "worker/client/client_core.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>

#include "common/endpoint.h"
#include "common/io/state_hash.h"
#include "common/status.h"

namespace slackline {
namespace {

std::string OwnerName(const View& view, Owner owner) {
  std::string name =
      absl::StrCat("server ", owner.server, " thread ", owner.thread);
  const wire::ServerMember* const server = view.FindServer(owner.server);
  if (server != nullptr && owner.thread < server->thread_size())
    absl::StrAppend(&name, " (", NetworkEndpoint(server->thread(owner.thread)),
                    ")");
  return name;
}

}  // namespace

std::pair<Clock, Clock> ClientCore::PullResult::ShardClocks() const {
  Clock smallest = std::numeric_limits<Clock>::max();
  Clock largest = 0;
  for (const ShardValue& value : shards) {
    smallest = std::min(smallest, value.shard_clock);
    largest = std::max(largest, value.shard_clock);
  }
  return {smallest, largest};
}

ClientCore::TableValues ClientCore::PullResult::Of(TableId table) const {
  TableValues values{.table = table, .pieces = {}};
  for (const ShardRange& range : view->ShardsOf(table)) {
    const ShardValue& shard = shards[static_cast<size_t>(range.shard)];
    values.pieces.push_back({.shard = range.shard,
                             .version = shard.version,
                             .values = shard.values});
    values.parked.Lengthen(shard.parked);
  }
  return values;
}

ClientCore::Parked ClientCore::PullResult::LongestParked() const {
  Parked longest;
  for (const ShardValue& shard : shards) longest.Lengthen(shard.parked);
  return longest;
}

ClientCore::ClientCore(const Options& options, std::shared_ptr<const View> view)
    : options_(options),
      view_(std::move(view)),
      next_seq_(view_->shard_count(), 1),
      acked_seq_(view_->shard_count(), 0),
      table_pushed_(view_->proto().table_size(), false) {}

// ---- Moves and splits -----------------------------------------------------

uint64_t ClientCore::ViewIsAsOf(int32_t shard) const {
  const wire::Move* const move = view_->FindMove(ShardId{shard});
  return move == nullptr ? view_->number() : move->id() - 1;
}

void ClientCore::OnView(std::shared_ptr<const View> view, absl::Time now,
                        Effects* effects) {
  if (view->number() <= view_->number()) return;
  // To whom we would have sent until now; of shards that may be elsewhere.
  std::map<int32_t, Owner> known;
  for (const int32_t shard : view_->OwnersThatDiffer(*view))
    known[shard] = OwnerOf(shard);
  for (const auto& [shard, route] : newer_routes_) known[shard] = route.owner;
  const int splits_known = view_->proto().split_size();
  const std::shared_ptr<const View> before =
      std::exchange(view_, std::move(view));
  if (view_->FindWorker(options_.rank, options_.incarnation) == nullptr)
    effects->fenced = true;
  for (int i = splits_known; i < view_->proto().split_size(); ++i) {
    const wire::Split& split = view_->proto().split(i);
    const auto new_shard = static_cast<int32_t>(next_seq_.size());
    const auto kept = known.find(split.shard());
    known[new_shard] = kept == known.end()
                           ? before->OwnerOf(ShardId{split.shard()})
                           : kept->second;
    // Where the kept part begins does not change; where it ends may, later.
    const int64_t begin = view_->shard(ShardId{split.shard()}).begin;
    ApplySplit(split, new_shard, static_cast<size_t>(split.at() - begin));
  }
  absl::erase_if(newer_routes_, [&](const auto& entry) {
    return entry.second.as_of <= ViewIsAsOf(entry.first);
  });
  const bool moved = std::any_of(
      known.begin(), known.end(),
      [&](const auto& entry) { return OwnerOf(entry.first) != entry.second; });
  // What servers have refused under the old view, they may accept now.
  for (auto& [owner, link] : links_) {
    const absl::Time soon = now + options_.refused_delay;
    link.trials = 0;
    if (link.trial_at < absl::InfiniteFuture())
      link.trial_at = std::min(link.trial_at, soon);
    for (PullUnit& unit : link.pulls_in_flight) {
      unit.refusals = 0;
      if (unit.resend_at < absl::InfiniteFuture())
        unit.resend_at = std::min(unit.resend_at, soon);
    }
    SetWakeup(owner, link);
  }
  if (moved) Reroute(now, effects);
  ForgetServersGone();
}

void ClientCore::ForgetServersGone() {
  std::erase_if(answers_, [&](const auto& entry) {
    return view_->FindServer(entry.first) == nullptr;
  });
  std::erase_if(links_, [&](const auto& entry) {
    const auto& [owner, link] = entry;
    const wire::ServerMember* const server = view_->FindServer(owner.server);
    if (!link.idle() ||
        (server != nullptr && owner.thread < server->thread_size())) {
      return false;
    }
    wakeups_.erase({link.wakeup, owner});
    return true;
  });
}

bool ClientCore::Relocate(int32_t shard, const wire::Relocation& relocation) {
  const Owner owner{relocation.server(), relocation.thread()};
  if (!view_->HasShard(shard)) return false;
  const wire::ServerMember* const server = view_->FindServer(owner.server);
  if (server == nullptr || owner.thread < 0 ||
      owner.thread >= server->thread_size()) {
    return false;  // A server that our view does not have yet.
  }
  const Owner known = OwnerOf(shard);
  Route told{.owner = owner, .as_of = relocation.as_of()};
  const auto newer = newer_routes_.find(shard);
  if (told.as_of <= (newer == newer_routes_.end() ? ViewIsAsOf(shard)
                                                  : newer->second.as_of)) {
    return false;
  }
  newer_routes_[shard] = told;
  return known != owner;
}

template <typename Answers>
void ClientCore::FollowRefusals(const Answers& answers, absl::Time now,
                                Effects* effects) {
  bool moved = false;
  for (const auto& answer : answers) {
    if (answer.refusal().moved().has_to())
      moved |= Relocate(answer.shard(), answer.refusal().moved().to());
  }
  if (moved) Reroute(now, effects);
}

bool ClientCore::EndsHere(Owner from, int32_t shard, const char* what,
                          const wire::Refusal& refusal, Effects* effects) {
  switch (refusal.why_case()) {
    case wire::Refusal::kRetry:
    case wire::Refusal::kMoved:
      return false;
    case wire::Refusal::kFenced:
      effects->fenced = true;
      return true;
    default:
      effects->failure = absl::InternalError(
          absl::StrCat(OwnerName(*view_, from), " refused a ", what, " ",
                       view_->ShardName(ShardId{shard}), ": ",
                       refusal.rejected().empty() ? "it does not say why"
                                                  : refusal.rejected()));
      return true;
  }
}

void ClientCore::ApplySplit(const wire::Split& split, int32_t new_shard,
                            size_t kept_elements) {
  const int32_t kept = split.shard();
  const size_t kept_bytes = kept_elements * sizeof(float);
  if (const auto newer = newer_routes_.find(kept);
      newer != newer_routes_.end()) {
    const Route route = newer->second;
    newer_routes_[new_shard] = route;
  }
  next_seq_.push_back(next_seq_[kept]);
  acked_seq_.push_back(acked_seq_[kept]);
  const auto cut_push = [&](PushUnit& unit) {
    size_t more = 0;  // Bytes than before.
    std::vector<PushEntry> entries;
    for (PushEntry& entry : unit.entries) {
      if (entry.shard != kept || entry.kind == PushEntry::Kind::kAdvance) {
        const bool both = entry.shard == kept;
        entries.push_back(entry);
        if (both) {
          entries.push_back(entry);
          entries.back().shard = new_shard;
        }
        continue;
      }
      PushEntry rest = entry;
      rest.shard = new_shard;
      if (entry.kind == PushEntry::Kind::kGradient) {
        const CodedGradient whole(entry.values, entry.code);
        const size_t elements = entry.elements;
        const auto take = [&](PushEntry& part, size_t begin, size_t count) {
          CodedGradient of_part = Slice(whole, elements, begin, count);
          part.values = std::move(of_part.bytes);
          part.code = of_part.code;
          part.elements = count;
        };
        take(entry, 0, kept_elements);
        take(rest, kept_elements, elements - kept_elements);
        // Parts that do not end where blocks do take more.
        more += entry.bytes() + rest.bytes() - whole.bytes.size();
        entries.push_back(std::move(entry));
        entries.push_back(std::move(rest));
        continue;
      }
      const auto cut = [&](Payload& kept_part, Payload& cut_part) {
        cut_part = kept_part.Slice(kept_bytes, kept_part.size() - kept_bytes);
        kept_part = kept_part.Slice(0, kept_bytes);
      };
      cut(entry.values, rest.values);
      for (size_t i = 0; i < entry.slots.size(); ++i)
        cut(entry.slots[i], rest.slots[i]);
      for (PushEntry* const part : {&entry, &rest})
        part->hash = StateHash(part->version, part->values, part->slots);
      entries.push_back(std::move(entry));
      entries.push_back(std::move(rest));
    }
    unit.entries = std::move(entries);
    unit.bytes += more;
    unacknowledged_bytes_ += more;
    return more;
  };
  const auto cut_pull = [&](PullUnit& unit) {
    if (std::find(unit.shards.begin(), unit.shards.end(), kept) ==
        unit.shards.end()) {
      return;
    }
    unit.shards.push_back(new_shard);
  };
  for (auto& [owner, link] : links_) {
    cut_push(link.open);
    for (PushUnit& unit : link.queued) cut_push(unit);
    for (PushUnit& unit : link.in_flight) {
      const size_t more = cut_push(unit);
      link.push_bytes_in_flight += more;
      bytes_pushed_ += more;
    }
    for (PullUnit& unit : link.pulls_queued) cut_pull(unit);
    for (PullUnit& unit : link.pulls_in_flight) cut_pull(unit);
  }
  for (auto& [id, pending] : pending_pulls_) {
    pending.result.view = view_;
    std::vector<ShardValue>& shards = pending.result.shards;
    shards.push_back(shards[kept]);
    if (shards[kept].values.empty()) {  // Not answered yet.
      ++pending.missing;
      ++pending
            .missing_of[static_cast<size_t>(view_->shard(ShardId{kept}).table)];
      continue;
    }
    const Payload whole = shards[kept].values;
    shards[kept].values = whole.Slice(0, kept_bytes);
    shards.back().values = whole.Slice(kept_bytes, whole.size() - kept_bytes);
    for (size_t i = 0; i < shards[kept].slots.size(); ++i) {
      const Payload slot = shards[kept].slots[i];
      shards[kept].slots[i] = slot.Slice(0, kept_bytes);
      shards.back().slots[i] = slot.Slice(kept_bytes, slot.size() - kept_bytes);
    }
  }
}

void ClientCore::Reroute(absl::Time now, Effects* effects) {
  struct Strayed {
    std::vector<PushUnit> pushes;
    std::vector<PullUnit> pulls;
  };
  std::map<Owner, Strayed> to;
  const auto take_pushes = [&](Owner here, PushUnit& unit) {
    size_t taken = 0;
    std::erase_if(unit.entries, [&](PushEntry& entry) {
      if (OwnerOf(entry.shard) == here) return false;
      std::vector<PushUnit>& units = to[OwnerOf(entry.shard)].pushes;
      const size_t bytes = entry.bytes();
      if (units.empty() ||
          units.back().bytes + bytes > options_.message_bytes ||
          units.back().entries.size() >= options_.message_entries) {
        units.emplace_back();
      }
      units.back().bytes += bytes;
      units.back().entries.push_back(std::move(entry));
      taken += bytes;
      return true;
    });
    unit.bytes -= taken;
    return taken;
  };
  const auto take_pulls = [&](Owner here, PullUnit& unit) {
    size_t taken = 0;
    std::map<Owner, PullUnit> parts;
    std::erase_if(unit.shards, [&](int32_t shard) {
      if (OwnerOf(shard) == here) return false;
      const size_t bytes = AnswerBytes(shard, unit.kind);
      PullUnit& part = parts[OwnerOf(shard)];
      part.shards.push_back(shard);
      part.bytes += bytes;
      taken += bytes;
      return true;
    });
    unit.bytes -= std::min(unit.bytes, taken);
    for (auto& [owner, part] : parts) {
      part.id = next_request_id_++;
      part.pull_id = unit.pull_id;
      part.kind = unit.kind;
      part.clock = unit.clock;
      part.own_clock = unit.own_clock;
      to[owner].pulls.push_back(std::move(part));
    }
    return taken;
  };
  for (Links::value_type& entry : links_) {
    const Owner here = entry.first;
    Link& link = entry.second;
    Touch(entry);
    // In the order in which they were made, so that each shard's stays.
    for (PushUnit& unit : link.in_flight) {
      const size_t taken = take_pushes(here, unit);
      link.push_bytes_in_flight -= taken;
      // Counted again where they go; this time was in vain.
      bytes_pushed_ -= taken;
      bytes_resent_ += taken;
    }
    for (PushUnit& unit : link.queued) take_pushes(here, unit);
    take_pushes(here, link.open);
    std::erase_if(link.queued,
                  [](const PushUnit& unit) { return unit.entries.empty(); });
    std::erase_if(link.in_flight, [&](const PushUnit& unit) {
      if (unit.entries.empty() && unit.small) --link.small_in_flight;
      return unit.entries.empty();
    });
    DropAcknowledged(link, now);  // Units of which only that is left.
    for (PullUnit& unit : link.pulls_in_flight) {
      link.pull_bytes_in_flight -=
          std::min(link.pull_bytes_in_flight, take_pulls(here, unit));
    }
    for (PullUnit& unit : link.pulls_queued) take_pulls(here, unit);
    const auto empty_pull = [](const PullUnit& u) { return u.shards.empty(); };
    std::erase_if(link.pulls_in_flight, empty_pull);
    std::erase_if(link.pulls_queued, empty_pull);
  }
  for (auto& [owner, strays] : to) {
    Links::value_type& entry = LinkTo(owner);
    Link& link = entry.second;
    Touch(entry);
    for (PushUnit& unit : strays.pushes) link.queued.push_back(std::move(unit));
    // Somebody waits for these.
    link.pulls_queued.insert(link.pulls_queued.begin(),
                             std::make_move_iterator(strays.pulls.begin()),
                             std::make_move_iterator(strays.pulls.end()));
  }
  PumpTouched(now, effects);
}

ClientCore::Links::value_type& ClientCore::LinkTo(Owner owner) {
  const auto known = links_.find(owner);
  if (known != links_.end()) return *known;
  const bool by_socket =
      options_.by_socket != nullptr && options_.by_socket(*view_, owner);
  const size_t bytes = options_.message_bytes;
  return *links_
              .try_emplace(
                  owner,
                  RoundTrip::Options{.timeout_min = options_.retry_initial,
                                     .timeout_max = options_.retry_max},
                  MessageSize::Options{
                      .bytes_min = bytes,
                      .bytes_max =
                          by_socket
                              ? std::max(bytes, options_.socket_message_bytes)
                              : bytes,
                      .time = options_.socket_message_time})
              .first;
}

void ClientCore::Touch(Links::value_type& link) {
  if (link.second.touched) return;
  link.second.touched = true;
  touched_.push_back(&link);
}

void ClientCore::PumpTouched(absl::Time now, Effects* effects) {
  for (Links::value_type* const entry : touched_) {
    entry->second.touched = false;
    Pump(entry->first, entry->second, now, effects);
  }
  touched_.clear();
}

// ---- Push -----------------------------------------------------------------

absl::Status ClientCore::CheckPush(Clock clock, TableId table) const {
  const int index = static_cast<int>(table);
  if (index < 0 || index >= static_cast<int>(table_pushed_.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("push to table ", index, ": the job has ",
                     table_pushed_.size(), " tables"));
  }
  if (clock != push_clock_ || table_pushed_[index]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push to ", view_->table(table).name(), " of clock ", clock,
        ": expected clock ", push_clock_,
        table_pushed_[index] ? ", to which this table was pushed already"
                             : ""));
  }
  return absl::OkStatus();
}

absl::Status ClientCore::Push(Clock clock, TableId table,
                              const CodedGradient& gradient,
                              const StepOptions& options,
                              absl::Span<const Version> base_versions,
                              absl::Time now, Effects* effects) {
  SL_RETURN_IF_ERROR(CheckPush(clock, table));
  const std::string& name = view_->table(table).name();
  const auto elements = static_cast<size_t>(TableElements(view_->table(table)));
  const size_t bytes = gradient.code.Bytes(elements);
  const size_t shards_at_first =
      next_seq_.size() - static_cast<size_t>(view_->proto().split_size());
  if (gradient.bytes.size() != bytes ||
      base_versions.size() < shards_at_first ||
      base_versions.size() > next_seq_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push to ", name, ": gradient of ", gradient.bytes.size(),
        " bytes and ", base_versions.size(), " base versions; the table has ",
        bytes, " bytes and the job ", next_seq_.size(), " shards"));
  }
  SL_RETURN_IF_ERROR(CheckMomentum(options, view_->optimizer(table), name));
  for (const ShardRange& range : view_->ShardsOf(table)) {
    const int32_t shard = static_cast<int32_t>(range.shard);
    // A shard that was cut off since then has the version of its origin.
    ShardId versioned = range.shard;
    while (static_cast<size_t>(versioned) >= base_versions.size())
      versioned = view_->OriginOf(versioned);
    CodedGradient part =
        Slice(gradient, elements, static_cast<size_t>(range.begin),
              static_cast<size_t>(range.elements()));
    Add({.kind = PushEntry::Kind::kGradient,
         .shard = shard,
         .clock = clock,
         .version = base_versions[static_cast<size_t>(versioned)],
         .options = options,
         .code = part.code,
         .elements = static_cast<size_t>(range.elements()),
         .values = std::move(part.bytes),
         .slots = {},
         .then_pull = behind_pushes_});
  }
  EndTable(table, now, effects);
  return absl::OkStatus();
}

absl::Status ClientCore::SkipTable(Clock clock, TableId table, absl::Time now,
                                   Effects* effects) {
  SL_RETURN_IF_ERROR(CheckPush(clock, table));
  for (const ShardRange& range : view_->ShardsOf(table))
    AddAdvance(static_cast<int32_t>(range.shard), clock + 1, behind_pushes_);
  EndTable(table, now, effects);
  return absl::OkStatus();
}

void ClientCore::EndTable(TableId table, absl::Time now, Effects* effects) {
  table_pushed_[static_cast<size_t>(table)] = true;
  if (++tables_pushed_ == static_cast<int>(table_pushed_.size())) {
    std::fill(table_pushed_.begin(), table_pushed_.end(), false);
    tables_pushed_ = 0;
    ++push_clock_;
    behind_pushes_ = 0;
    EndClock(now, effects);
  } else {
    PumpTouched(now, effects);
  }
}

Clock ClientCore::StartAt(const PullResult& joined, absl::Time now,
                          Effects* effects) {
  const Clock start = joined.ShardClocks().second;
  for (int32_t shard = 0; shard < view_->shard_count(); ++shard) {
    ShardId joined_as{shard};  // What it was cut off from since, if it was.
    while (static_cast<size_t>(joined_as) >= joined.shards.size())
      joined_as = view_->OriginOf(joined_as);
    if (joined.shards[static_cast<size_t>(joined_as)].shard_clock != start)
      AddAdvance(shard, start);
  }
  push_clock_ = start;
  EndClock(now, effects);
  return start;
}

bool ClientCore::HasBrought(uint64_t pull_id, TableId table) const {
  const auto pending = pending_pulls_.find(pull_id);
  return pending != pending_pulls_.end() &&
         pending->second.missing_of[static_cast<size_t>(table)] == 0;
}

std::optional<ClientCore::TableValues> ClientCore::BroughtBy(
    uint64_t pull_id, TableId table) const {
  if (!HasBrought(pull_id, table)) return std::nullopt;
  return pending_pulls_.at(pull_id).result.Of(table);
}

void ClientCore::SkipTo(Clock clock, absl::Time now, Effects* effects) {
  SL_CHECK(clock >= push_clock_ && tables_pushed_ == 0,
           "a worker skips clocks that it has pushed");
  for (int32_t shard = 0; shard < view_->shard_count(); ++shard)
    AddAdvance(shard, clock);
  push_clock_ = clock;
  EndClock(now, effects);
}

void ClientCore::AddAdvance(int32_t shard, Clock clock, uint64_t then_pull) {
  Add({.kind = PushEntry::Kind::kAdvance,
       .shard = shard,
       .clock = clock,
       .values = Payload(),
       .slots = {},
       .then_pull = then_pull});
}

void ClientCore::Install(Clock clock, std::vector<InstalledShard> shards,
                         absl::Time now, Effects* effects) {
  for (InstalledShard& installed : shards) {
    ShardValue& state = installed.state;
    const uint64_t hash = StateHash(state.version, state.values, state.slots);
    Add({.kind = PushEntry::Kind::kInstallation,
         .shard = static_cast<int32_t>(installed.shard),
         .clock = clock,
         .version = state.version,
         .values = std::move(state.values),
         .slots = std::move(state.slots),
         .hash = hash});
  }
  push_clock_ = clock;
  EndClock(now, effects);
}

void ClientCore::PushUnit::Add(PushEntry entry, TableId table) {
  if (entry.kind != PushEntry::Kind::kGradient ||
      (gradients.has_value() && gradients->clock != entry.clock)) {
    gradients.reset();
  } else if (entries.empty()) {
    gradients = {.clock = entry.clock, .first = table, .last = table};
  } else if (gradients.has_value()) {
    gradients->first = std::min(gradients->first, table);
    gradients->last = std::max(gradients->last, table);
  }
  bytes += entry.bytes();
  entries.push_back(std::move(entry));
}

void ClientCore::Add(PushEntry entry) {
  entry.seq = next_seq_[entry.shard]++;
  Links::value_type& at = LinkTo(OwnerOf(entry.shard));
  Link& link = at.second;
  Touch(at);
  unacknowledged_bytes_ += entry.bytes();
  const TableId table = view_->shard(ShardId{entry.shard}).table;
  if (!link.open.entries.empty() && !link.queued.empty() &&
      entry.kind == PushEntry::Kind::kGradient) {
    // What would overtake does not join what does not.
    const PushUnit& last = link.queued.back();
    if (last.IsOvertakenBy(PushUnit::Gradients{
            .clock = entry.clock, .first = table, .last = table}) &&
        !last.IsOvertakenBy(link.open.gradients)) {
      CloseOpenUnit(link);
    }
  }
  link.open.Add(std::move(entry), table);
  if (IsFull(link.open, link.message_size.bytes())) CloseOpenUnit(link);
}

void ClientCore::EndClock(absl::Time now, Effects* effects) {
  for (Links::value_type& entry : links_) {
    Link& link = entry.second;
    if (link.open.entries.empty() || link.open_may_go) continue;
    Touch(entry);
    if (!link.queued.empty() &&
        link.queued.back().IsOvertakenBy(link.open.gradients)) {
      CloseOpenUnit(link);
    } else {
      link.open_may_go = true;
    }
  }
  PumpTouched(now, effects);
}

void ClientCore::CloseOpenUnit(Link& link) {
  auto at = link.queued.end();
  while (at != link.queued.begin() &&
         std::prev(at)->IsOvertakenBy(link.open.gradients))
    --at;
  link.queued.insert(at, std::move(link.open));
  link.open = PushUnit();
  link.open_may_go = false;
}

ClientCore::Send ClientCore::NewSend(Owner to) const {
  Send send{.to = to, .message = {}};
  send.message.header.set_view_number(view_->number());
  send.message.header.set_run(options_.run);
  return send;
}

size_t ClientCore::SendPush(Owner to, PushUnit& unit, absl::Time now,
                            Effects* effects) {
  unit.state = PushUnit::State::kSent;
  unit.request_id = next_request_id_++;
  unit.sent = now;
  unit.under_way = 0;
  unit.answered = unit.trial = false;
  Send send = NewSend(to);
  wire::PushRequest& push = *send.message.header.mutable_push_request();
  push.set_request_id(unit.request_id);
  push.set_phases(view_->proto().phase_size());
  push.set_cuts(view_->proto().cut().number());
  size_t bytes = 0;
  for (const PushEntry& entry : unit.entries) {
    if (Acknowledged(entry)) continue;
    bytes += entry.bytes();
    wire::Push& fact = *push.add_push();
    fact.set_shard(entry.shard);
    fact.set_seq(entry.seq);
    fact.set_clock(entry.clock);
    switch (entry.kind) {
      case PushEntry::Kind::kGradient:
        fact.set_gradient(entry.version);
        if (entry.options != StepOptions())
          *fact.mutable_options() = ToWire(entry.options);
        if (!entry.code.whole())
          *fact.mutable_encoding() = EncodingOf(entry.code, entry.elements);
        break;
      case PushEntry::Kind::kAdvance:
        fact.mutable_advance();
        continue;
      case PushEntry::Kind::kInstallation:
        fact.mutable_installation()->set_version(entry.version);
        fact.mutable_installation()->set_hash(entry.hash);
        fact.mutable_installation()->set_slots(
            static_cast<int32_t>(entry.slots.size()));
        break;
    }
    send.message.payloads.push_back(entry.values);
    for (const Payload& slot : entry.slots)
      send.message.payloads.push_back(slot);
  }
  effects->sends.push_back(std::move(send));
  return bytes;
}

void ClientCore::OnPushReply(Owner from, const wire::PushReply& reply,
                             absl::Time now, Effects* effects) {
  FollowRefusals(reply.answer(), now, effects);
  const auto found = links_.find(from);
  Link* const link = found == links_.end() ? nullptr : &found->second;
  // The transmission that this answers, if it is the last one of its message.
  PushUnit* unit = nullptr;
  if (link != nullptr && reply.request_id() != 0) {
    const auto at = std::find_if(
        link->in_flight.begin(), link->in_flight.end(),
        [&](const PushUnit& u) { return u.request_id == reply.request_id(); });
    if (at != link->in_flight.end()) unit = &*at;
  }
  if (unit != nullptr && !unit->answered) {
    unit->answered = true;
    link->round_trip.Add(now - unit->sent);
    link->message_size.Add(unit->under_way, now - unit->sent);
    AnswerTimes& answers = answers_[from.server];
    ++answers.messages;
    answers.time += now - unit->sent;
  }
  for (const wire::PushAnswer& answer : reply.answer()) {
    const int32_t shard = answer.shard();
    if (!view_->HasShard(shard)) continue;
    OnAcknowledged(from, shard, answer.accepted_seq(), now, effects);
    if (!answer.has_refusal()) continue;
    if (EndsHere(from, shard, "push to", answer.refusal(), effects)) return;
    // What goes elsewhere by now is not tried again here.
    if (unit == nullptr || OwnerOf(shard) != from) continue;
    const auto first =
        std::find_if(unit->entries.begin(), unit->entries.end(),
                     [&](const PushEntry& entry) {
                       return entry.shard == shard && !Acknowledged(entry);
                     });
    if (first == unit->entries.end()) continue;
    if (acked_seq_[shard] + 1 == first->seq) {
      unit->state = PushUnit::State::kRefused;
    } else if (unit->state == PushUnit::State::kSent) {
      unit->state = PushUnit::State::kBehind;
    }
  }
  if (link == nullptr) return;
  if (unit != nullptr && unit->trial && Acknowledged(*unit)) {
    link->trials = 0;
    for (PushUnit& other : link->in_flight) {
      if (other.state == PushUnit::State::kRefused)
        other.state = PushUnit::State::kMissing;
    }
  }
  DropAcknowledged(*link, now);
  // Answers come in the order of the questions.
  const bool overtaken = std::any_of(
      link->in_flight.begin(), link->in_flight.end(), [&](const PushUnit& u) {
        return u.state == PushUnit::State::kSent && !u.answered &&
               u.request_id < reply.request_id() &&
               u.request_id > link->last_probe;
      });
  if (overtaken) SendProbe(from, *link, now, effects);
  Pump(from, *link, now, effects);
}

void ClientCore::OnAcknowledged(Owner from, int32_t shard, uint64_t seq,
                                absl::Time now, Effects* effects) {
  if (seq <= acked_seq_[shard]) return;
  acked_seq_[shard] = seq;
  const auto elsewhere = links_.find(OwnerOf(shard));
  if (elsewhere == links_.end() || elsewhere->first == from) return;
  // It has moved since, and its new owner has been or will be sent the same.
  DropAcknowledged(elsewhere->second, now);
  Pump(elsewhere->first, elsewhere->second, now, effects);
}

void ClientCore::OnPulledAt(Owner from, const Link& link, int32_t shard,
                            Clock own_clock, absl::Time now, Effects* effects) {
  // Nearly always: the shard answers the push first.
  if (acked_seq_[shard] + 1 == next_seq_[shard]) return;
  uint64_t accepted = 0;
  for (const PushUnit& unit : link.in_flight) {
    // In the order of their clocks, and nearly always of this one.
    if (unit.entries.front().clock >= own_clock) break;
    for (const PushEntry& entry : unit.entries) {
      if (entry.shard == shard && entry.clock < own_clock &&
          entry.kind != PushEntry::Kind::kInstallation) {
        accepted = std::max(accepted, entry.seq);
      }
    }
  }
  OnAcknowledged(from, shard, accepted, now, effects);
}

bool ClientCore::Acknowledged(const PushUnit& unit) const {
  return std::all_of(
      unit.entries.begin(), unit.entries.end(),
      [&](const PushEntry& entry) { return Acknowledged(entry); });
}

bool ClientCore::IsNext(const PushUnit& unit) const {
  std::map<int32_t, uint64_t> last;  // In the unit so far, by shard.
  for (const PushEntry& entry : unit.entries) {
    if (Acknowledged(entry)) continue;
    const uint64_t before =
        last.try_emplace(entry.shard, acked_seq_[entry.shard]).first->second;
    if (entry.seq != before + 1) return false;
    last[entry.shard] = entry.seq;
  }
  return true;
}

bool ClientCore::DropAcknowledged(Link& link, absl::Time now) {
  const auto drop = [&](const PushUnit& unit) {
    if (!Acknowledged(unit)) return false;
    link.push_bytes_in_flight -= unit.bytes;
    unacknowledged_bytes_ -= unit.bytes;
    if (unit.small) --link.small_in_flight;
    return true;
  };
  const size_t before = link.in_flight.size();
  // Nearly always the oldest ones.
  while (!link.in_flight.empty() && drop(link.in_flight.front()))
    link.in_flight.pop_front();
  std::erase_if(link.in_flight, drop);
  if (link.in_flight.size() == before) return false;
  if (unacknowledged_bytes_ == 0) acknowledged_at_ = now;
  link.push_heard = now;
  link.push_doubts = 0;
  link.push_doubt_at = absl::InfiniteFuture();  // Counts from now on.
  return true;
}

void ClientCore::Repair(Owner to, Link& link, bool trial, absl::Time now,
                        Effects* effects) {
  bool sent_earlier_one = false;
  for (PushUnit& unit : link.in_flight) {
    const bool tried = unit.state == PushUnit::State::kRefused && trial;
    if (!tried && unit.state != PushUnit::State::kMissing &&
        (unit.state != PushUnit::State::kBehind ||
         (!sent_earlier_one && !IsNext(unit)))) {
      continue;
    }
    sent_earlier_one = true;
    bytes_resent_ += SendPush(to, unit, now, effects);
    ++retries_;
    if (!tried) continue;
    unit.trial = true;
    trial = false;
  }
}

absl::Duration ClientCore::RefusedDelay(int refusals) const {
  absl::Duration delay = options_.refused_delay;
  for (int i = 0; i < refusals && delay < options_.retry_max; ++i) delay *= 2;
  return std::max(options_.refused_delay, std::min(delay, options_.retry_max));
}

void ClientCore::SetPushTimers(Link& link, absl::Time now) {
  bool sent = false;
  bool refused = false;
  bool trial = false;
  for (const PushUnit& unit : link.in_flight) {
    sent |= unit.state == PushUnit::State::kSent;
    refused |= unit.state == PushUnit::State::kRefused;
    trial |= unit.trial && unit.state == PushUnit::State::kSent;
  }
  if (!sent) {
    link.push_doubt_at = absl::InfiniteFuture();
  } else if (link.push_doubt_at == absl::InfiniteFuture() && link.probe == 0) {
    link.push_doubt_at = now + link.round_trip.Timeout(link.push_doubts);
  }
  if (!refused) {
    link.trial_at = absl::InfiniteFuture();
  } else if (!trial && link.trial_at == absl::InfiniteFuture()) {
    link.trial_at = now + RefusedDelay(link.trials);
  }
}

// ---- Pull -----------------------------------------------------------------

uint64_t ClientCore::Pull(Clock clock, Clock own_clock, absl::Time now,
                          Effects* effects) {
  return StartPull(PullKind::kStep, clock, own_clock, now, effects);
}

uint64_t ClientCore::PullModel(Clock clock, absl::Time now, Effects* effects) {
  return StartPull(PullKind::kModel, clock, clock, now, effects);
}

uint64_t ClientCore::PullState(Clock clock, absl::Time now, Effects* effects) {
  return StartPull(PullKind::kState, clock, clock, now, effects);
}

uint64_t ClientCore::JoinPull(absl::Time now, Effects* effects) {
  return StartPull(PullKind::kJoin, 0, 0, now, effects);
}

uint64_t ClientCore::NewPull() {
  const uint64_t pull_id = next_pull_id_++;
  PendingPull& pending = pending_pulls_[pull_id];
  pending.result.pull_id = pull_id;
  pending.result.shards.resize(next_seq_.size());
  pending.result.view = view_;
  pending.missing = view_->shard_count();
  for (int table = 0; table < view_->proto().table_size(); ++table) {
    pending.missing_of.push_back(
        static_cast<int32_t>(view_->ShardsOf(TableId{table}).size()));
  }
  return pull_id;
}

uint64_t ClientCore::PullBehindPushes() {
  SL_CHECK(BetweenClocks() && behind_pushes_ == 0,
           "a pull goes behind all pushes of a clock");
  behind_pushes_ = NewPull();
  pending_pulls_[behind_pushes_].clock = push_clock_ + 1;
  return behind_pushes_;
}

void ClientCore::ForgetPull(uint64_t pull_id, absl::Time now,
                            Effects* effects) {
  if (behind_pushes_ == pull_id) behind_pushes_ = 0;
  pending_pulls_.erase(pull_id);
  const auto of_it = [&](const PullUnit& unit) {
    return unit.pull_id == pull_id;
  };
  for (Links::value_type& entry : links_) {
    Link& link = entry.second;
    for (const PullUnit& unit : link.pulls_in_flight) {
      if (of_it(unit)) link.pull_bytes_in_flight -= unit.bytes;
    }
    std::erase_if(link.pulls_in_flight, of_it);
    std::erase_if(link.pulls_queued, of_it);
    Touch(entry);
  }
  PumpTouched(now, effects);
}

uint64_t ClientCore::StartPull(PullKind kind, Clock clock, Clock own_clock,
                               absl::Time now, Effects* effects) {
  const uint64_t pull_id = NewPull();
  std::map<Owner, PullUnit> open;
  const auto close = [&](Owner owner, PullUnit& unit) {
    if (unit.shards.empty()) return;
    unit.id = next_request_id_++;
    unit.pull_id = pull_id;
    unit.kind = kind;
    unit.clock = clock;
    unit.own_clock = own_clock;
    Links::value_type& link = LinkTo(owner);
    link.second.pulls_queued.push_back(std::move(unit));
    Touch(link);
    unit = PullUnit();
  };
  for (int32_t shard = 0; shard < view_->shard_count(); ++shard) {
    const Owner owner = OwnerOf(shard);
    PullUnit& unit = open[owner];
    unit.shards.push_back(shard);
    unit.bytes += AnswerBytes(shard, kind);
    if (unit.bytes >= LinkTo(owner).second.message_size.bytes() ||
        unit.shards.size() >= options_.message_entries) {
      close(owner, unit);
    }
  }
  for (auto& [owner, unit] : open) close(owner, unit);
  PumpTouched(now, effects);
  return pull_id;
}

void ClientCore::SendPull(Owner to, Link& link, PullUnit& unit, absl::Time now,
                          Effects* effects) {
  const bool parked = unit.waiting_rank >= 0;
  unit.asked_as = next_request_id_++;
  unit.doubted = false;
  unit.doubt_at = now + link.round_trip.Timeout(parked ? 0 : unit.doubts);
  unit.resend_at = absl::InfiniteFuture();
  Send send = NewSend(to);
  wire::PullRequest& request = *send.message.header.mutable_pull_request();
  request.set_phases(view_->proto().phase_size());
  request.set_cuts(view_->proto().cut().number());
  wire::Pull& pull = *request.add_pull();
  pull.set_id(unit.id);
  pull.mutable_shard()->Assign(unit.shards.begin(), unit.shards.end());
  switch (unit.kind) {
    case PullKind::kStep:
    case PullKind::kModel:
      pull.mutable_step()->set_clock(unit.clock);
      pull.mutable_step()->set_own_clock(unit.own_clock);
      pull.mutable_step()->set_exact(unit.kind == PullKind::kModel);
      break;
    case PullKind::kJoin:
      pull.mutable_join();
      break;
    case PullKind::kState:
      pull.mutable_state()->set_clock(unit.clock);
      break;
  }
  effects->sends.push_back(std::move(send));
}

void ClientCore::AskAgain(Owner to, Link& link, PullUnit& unit, absl::Time now,
                          Effects* effects) {
  if (unit.waiting_rank < 0) {
    ++unit.unanswered_sends;
    ++retries_;
  }
  SendPull(to, link, unit, now, effects);
}

void ClientCore::OnPullReply(Owner from, const Message& message, absl::Time now,
                             Effects* effects) {
  const wire::PullReply& reply = message.header.pull_reply();
  FollowRefusals(reply.answer(), now, effects);
  const auto found = links_.find(from);
  if (found == links_.end()) return;
  Link& link = found->second;
  PullUnit* unit = nullptr;  // Of the last answer; most are of the same.
  // For whom the pulls wait: for each the one that is furthest behind.
  std::map<PullUnit*, const wire::PullAnswer::Parked*> parked;
  absl::Span<const Payload> frames = message.payloads;
  for (const wire::PullAnswer& answer : reply.answer()) {
    size_t frame_count = answer.has_values() ? 1 : 0;
    if (answer.has_state())
      frame_count = 1 + static_cast<size_t>(answer.state().slots());
    if (frame_count > frames.size()) break;
    const absl::Span<const Payload> tensors = frames.first(frame_count);
    frames.remove_prefix(frame_count);
    if (unit == nullptr || unit->id != answer.pull()) {
      const auto at = std::find_if(
          link.pulls_in_flight.begin(), link.pulls_in_flight.end(),
          [&](const PullUnit& other) { return other.id == answer.pull(); });
      unit = at == link.pulls_in_flight.end() ? nullptr : &*at;
    }
    if (unit == nullptr) continue;  // A repeated answer.
    switch (answer.what_case()) {
      case wire::PullAnswer::kValues:
      case wire::PullAnswer::kState:
        if (!TakeValues(from, link, *unit, answer, tensors,
                        message.header.view_number(), now, effects)) {
          return;
        }
        break;
      case wire::PullAnswer::kParked: {
        const wire::PullAnswer::Parked*& at = parked[unit];
        if (at == nullptr || answer.parked().clock() < at->clock())
          at = &answer.parked();
        break;
      }
      case wire::PullAnswer::kRefusal:
        if (!view_->HasShard(answer.shard())) break;
        if (EndsHere(from, answer.shard(), "pull of", answer.refusal(),
                     effects)) {
          return;
        }
        // What goes elsewhere by now is not asked for here again.
        if (unit->Wants(answer.shard())) SetResend(*unit, now);
        break;
      default:
        break;
    }
  }
  for (const auto& [waiting, at] : parked) OnParked(link, *waiting, *at, now);
  DropAcknowledged(link, now);
  std::erase_if(link.pulls_in_flight,
                [](const PullUnit& u) { return u.shards.empty(); });
  Pump(from, link, now, effects);
}

void ClientCore::SetResend(PullUnit& unit, absl::Time now) {
  if (unit.resend_at == absl::InfiniteFuture())
    unit.resend_at = now + RefusedDelay(unit.refusals);
}

bool ClientCore::TakeValues(Owner from, Link& link, PullUnit& unit,
                            const wire::PullAnswer& answer,
                            absl::Span<const Payload> frames,
                            uint64_t view_number, absl::Time now,
                            Effects* effects) {
  const int32_t shard = answer.shard();
  const auto wanted = std::find(unit.shards.begin(), unit.shards.end(), shard);
  if (wanted == unit.shards.end()) return true;
  if (view_number < view_->RangeSince(ShardId{shard})) {
    SetResend(unit, now);  // Answered before the shard was cut in two.
    return true;
  }
  const auto fail = [&](const absl::Status& why) {
    effects->failure = why;
    return false;
  };
  if (answer.has_state() != (unit.kind == PullKind::kState)) {
    return fail(absl::InternalError(absl::StrCat(
        OwnerName(*view_, from), " answered a pull of ",
        view_->ShardName(ShardId{shard}), " with",
        answer.has_state() ? "" : "out", " the state of the optimizer")));
  }
  const size_t slots = unit.kind == PullKind::kState ? SlotsOf(shard) : 0;
  if (frames.size() != 1 + slots) {
    return fail(absl::InternalError(absl::StrCat(
        OwnerName(*view_, from), " answered a pull of ",
        view_->ShardName(ShardId{shard}), " with ", frames.size() - 1,
        " optimizer slots, the table has ", slots)));
  }
  const wire::PullAnswer::Values& values =
      answer.has_state() ? answer.state().values() : answer.values();
  const wire::Encoding::Kind kind = ValuesOf(shard, unit.kind);
  const size_t bytes = view_->shard(ShardId{shard}).bytes();
  size_t of_frame = AnswerBytes(shard, unit.kind) - slots * bytes;
  for (const Payload& tensor : frames) {
    if (tensor.size() != of_frame || values.kind() != kind) {
      return fail(absl::InternalError(absl::StrCat(
          OwnerName(*view_, from), " answered a pull of ",
          view_->ShardName(ShardId{shard}), " with ", tensor.size(),
          " bytes as ", wire::Encoding::Kind_Name(values.kind()), "; ",
          of_frame, " as ", wire::Encoding::Kind_Name(kind), " are required")));
    }
    of_frame = bytes;  // Of each slot.
  }
  ShardValue value{.version = values.version(),
                   .shard_clock = values.shard_clock(),
                   .values = ExpandParameters(kind, frames.front()),
                   .slots = {frames.begin() + 1, frames.end()},
                   .parked = {}};
  // It cannot have been parked for longer than it was under way.
  if (values.parked_micros() > 0) {
    value.parked.until = now;
    value.parked.from =
        std::max(unit.sent, now - absl::Microseconds(values.parked_micros()));
  }
  if (answer.has_state() && StateHash(value.version, value.values,
                                      value.slots) != answer.state().hash()) {
    return fail(absl::DataLossError(absl::StrCat(
        OwnerName(*view_, from), " sent ", view_->ShardName(ShardId{shard}),
        " of version ", value.version, ", and other bits arrived")));
  }
  if (unit.kind == PullKind::kStep || unit.kind == PullKind::kModel)
    OnPulledAt(from, link, shard, unit.own_clock, now, effects);
  const size_t answered = AnswerBytes(shard, unit.kind);
  unit.shards.erase(wanted);
  unit.bytes -= answered;
  link.pull_bytes_in_flight -= answered;
  bytes_pulled_ += answered;
  unit.waiting_rank = -1;
  unit.doubted = false;
  unit.doubts = unit.refusals = 0;
  unit.doubt_at = now + link.round_trip.Timeout();
  link.pull_heard = now;
  const auto pending = pending_pulls_.find(unit.pull_id);
  pending->second.result.shards[shard] = std::move(value);
  const TableId table = view_->shard(ShardId{shard}).table;
  if (--pending->second.missing_of[static_cast<size_t>(table)] == 0)
    effects->brought.push_back({.pull_id = unit.pull_id, .table = table});
  if (--pending->second.missing > 0) return true;
  effects->pulled.push_back(std::move(pending->second.result));
  pending_pulls_.erase(pending);
  return true;
}

void ClientCore::OnParked(Link& link, PullUnit& unit,
                          const wire::PullAnswer::Parked& at, absl::Time now) {
  // What looked like a retry was a question, and this is its answer.
  retries_ -= unit.unanswered_sends;
  unit.unanswered_sends = 0;
  if (unit.waiting_rank < 0) {
    unit.waiting_since = std::max(unit.sent, link.pull_heard);
  } else if (unit.waiting_rank != at.rank() ||
             unit.waiting_clock != at.clock()) {
    unit.waiting_since = now;
  }
  unit.waiting_rank = at.rank();
  unit.waiting_clock = at.clock();
  unit.doubted = false;
  unit.doubts = 0;
  unit.doubt_at =
      now + std::max(link.round_trip.Timeout(),
                     std::min(options_.parked_delay, options_.retry_max));
}

// ---- Both -----------------------------------------------------------------

bool ClientCore::FitsWindow(const Link& link, const PushUnit& unit) const {
  return link.in_flight.empty() ||
         link.push_bytes_in_flight + unit.bytes <= options_.window_bytes;
}

void ClientCore::SendFirst(Owner to, Link& link, PushUnit unit, absl::Time now,
                           Effects* effects) {
  QueuePullsBehind(link, unit);
  if (link.in_flight.empty()) link.push_heard = now;
  bytes_pushed_ += unit.bytes;
  if (Acknowledged(unit)) {  // By the owner before the last move.
    bytes_resent_ -= unit.bytes;
    unacknowledged_bytes_ -= unit.bytes;
    return;
  }
  link.push_bytes_in_flight += unit.bytes;
  if (unit.small) ++link.small_in_flight;
  bytes_resent_ -= unit.bytes - SendPush(to, unit, now, effects);
  unit.under_way = link.push_bytes_in_flight;
  link.in_flight.push_back(std::move(unit));
}

void ClientCore::QueuePullsBehind(Link& link, PushUnit& unit) {
  PullUnit open;
  const auto close = [&] {
    if (open.shards.empty()) return;
    open.id = next_request_id_++;
    link.pulls_queued.push_back(std::exchange(open, PullUnit()));
  };
  for (PushEntry& entry : unit.entries) {
    const auto pending = pending_pulls_.find(std::exchange(entry.then_pull, 0));
    if (pending == pending_pulls_.end()) continue;
    if (open.pull_id != pending->first) close();
    open.pull_id = pending->first;
    open.kind = PullKind::kStep;
    open.clock = open.own_clock = pending->second.clock;
    open.shards.push_back(entry.shard);
    open.bytes += AnswerBytes(entry.shard, open.kind);
  }
  close();
}

void ClientCore::SendPulls(Owner to, Link& link, absl::Time now,
                           Effects* effects) {
  while (!link.pulls_queued.empty() &&
         (link.pulls_in_flight.empty() ||
          link.pull_bytes_in_flight + link.pulls_queued.front().bytes <=
              options_.window_bytes)) {
    PullUnit& unit =
        link.pulls_in_flight.emplace_back(std::move(link.pulls_queued.front()));
    link.pulls_queued.pop_front();
    link.pull_bytes_in_flight += unit.bytes;
    unit.sent = now;
    SendPull(to, link, unit, now, effects);
  }
}

void ClientCore::Pump(Owner to, Link& link, absl::Time now, Effects* effects) {
  Repair(to, link, /*trial=*/false, now, effects);
  // What comes later would have to be waited for.
  if (IsFull(link.open, options_.message_bytes)) CloseOpenUnit(link);
  while (!link.queued.empty() && FitsWindow(link, link.queued.front())) {
    PushUnit unit = std::move(link.queued.front());
    link.queued.pop_front();
    SendFirst(to, link, std::move(unit), now, effects);
    SendPulls(to, link, now, effects);
  }
  if (link.open_may_go && link.queued.empty() &&
      link.small_in_flight < options_.small_messages_max &&
      FitsWindow(link, link.open)) {
    link.open_may_go = false;
    PushUnit unit = std::exchange(link.open, PushUnit());
    unit.small = true;
    if (!unit.entries.empty())
      SendFirst(to, link, std::move(unit), now, effects);
  }
  SendPulls(to, link, now, effects);
  SetPushTimers(link, now);
  SetWakeup(to, link);
}

void ClientCore::SetWakeup(Owner owner, Link& link) {
  absl::Time next =
      std::min({link.push_doubt_at, link.trial_at, link.probe_again_at});
  for (const PullUnit& unit : link.pulls_in_flight)
    next = std::min({next, unit.doubt_at, unit.resend_at});
  if (next == link.wakeup) return;
  wakeups_.erase({link.wakeup, owner});
  link.wakeup = next;
  if (next < absl::InfiniteFuture()) wakeups_.emplace(next, owner);
}

void ClientCore::SendProbe(Owner to, Link& link, absl::Time now,
                           Effects* effects) {
  Send send = NewSend(to);
  wire::ProbeRequest& probe = *send.message.header.mutable_probe_request();
  std::set<int32_t> shards;
  const auto full = [&] { return shards.size() >= options_.probe_shards_max; };
  for (const PushUnit& unit : link.in_flight) {
    if (full()) break;
    if (unit.state != PushUnit::State::kSent) continue;
    for (const PushEntry& entry : unit.entries) {
      if (!Acknowledged(entry) && !full()) shards.insert(entry.shard);
    }
  }
  for (const PullUnit& unit : link.pulls_in_flight) {
    // Any shard will do: what counts is when the reply comes.
    if (shards.empty() && unit.doubted) shards.insert(unit.shards.front());
  }
  link.probe = 0;
  link.probe_again_at = absl::InfiniteFuture();
  if (shards.empty()) return;
  link.probe = link.last_probe = next_request_id_++;
  link.probe_sent = now;
  link.probe_again_at = now + link.round_trip.Timeout(link.probes_unanswered);
  probe.set_request_id(link.probe);
  for (const int32_t shard : shards) probe.add_shard(shard);
  effects->sends.push_back(std::move(send));
}

void ClientCore::OnProbeReply(Owner from, const wire::ProbeReply& reply,
                              absl::Time now, Effects* effects) {
  FollowRefusals(reply.answer(), now, effects);
  std::set<int32_t> known;
  for (const wire::ProbeAnswer& answer : reply.answer()) {
    const int32_t shard = answer.shard();
    if (!view_->HasShard(shard)) continue;
    if (answer.refusal().has_fenced()) {
      effects->fenced = true;
      return;
    }
    if (answer.what_case() != wire::ProbeAnswer::kAcceptedSeq) continue;
    OnAcknowledged(from, shard, answer.accepted_seq(), now, effects);
    known.insert(shard);
  }
  const auto found = links_.find(from);
  if (found == links_.end()) return;
  Link& link = found->second;
  const uint64_t probe = reply.request_id();
  if (probe == 0 || probe > link.last_probe) return;
  if (probe == link.probe) {
    link.round_trip.Add(now - link.probe_sent);
    link.probe = 0;
    link.probe_again_at = absl::InfiniteFuture();
    link.probes_unanswered = 0;
  }
  bool progress = DropAcknowledged(link, now);
  bool undecided = false;
  for (PushUnit& unit : link.in_flight) {
    if (unit.state != PushUnit::State::kSent || unit.request_id > probe)
      continue;
    for (const PushEntry& entry : unit.entries) {
      if (!Acknowledged(entry) && known.count(entry.shard) > 0)
        unit.state = PushUnit::State::kMissing;
    }
    const bool missing = unit.state == PushUnit::State::kMissing;
    progress |= missing;
    undecided |= !missing;
  }
  if (undecided && !progress) ++link.push_doubts;
  link.push_doubt_at = absl::InfiniteFuture();
  bool in_doubt = false;
  for (PullUnit& unit : link.pulls_in_flight) {
    if (!unit.doubted) continue;
    if (unit.asked_as > probe) {
      in_doubt = true;
      continue;
    }
    ++unit.doubts;
    AskAgain(from, link, unit, now, effects);
  }
  Pump(from, link, now, effects);
  if (in_doubt && link.probe == 0) {
    SendProbe(from, link, now, effects);
    SetWakeup(from, link);
  }
}

void ClientCore::OnMessage(Owner from, const Message& message, absl::Time now,
                           Effects* effects) {
  // Of an earlier job on the same ports.
  if (options_.run != 0 && message.header.run() != 0 &&
      message.header.run() != options_.run) {
    return;
  }
  switch (message.header.body_case()) {
    case wire::Header::kPushReply:
      return OnPushReply(from, message.header.push_reply(), now, effects);
    case wire::Header::kPullReply:
      return OnPullReply(from, message, now, effects);
    case wire::Header::kProbeReply:
      return OnProbeReply(from, message.header.probe_reply(), now, effects);
    case wire::Header::kErrorReply:
      effects->failure = absl::InternalError(absl::StrCat(
          OwnerName(*view_, from), ": ", message.header.error_reply().error()));
      return;
    default:
      return;
  }
}

void ClientCore::OnTick(absl::Time now, Effects* effects) {
  std::vector<Owner> due;
  for (const auto& [at, owner] : wakeups_) {
    if (at > now) break;
    due.push_back(owner);
  }
  for (const Owner owner : due) {
    Link& link = links_.at(owner);
    bool in_doubt = link.push_doubt_at <= now;
    if (in_doubt) link.push_doubt_at = absl::InfiniteFuture();
    for (PullUnit& unit : link.pulls_in_flight) {
      if (unit.resend_at <= now) {
        ++unit.refusals;
        AskAgain(owner, link, unit, now, effects);
      } else if (unit.doubt_at <= now) {
        unit.doubted = true;
        unit.doubt_at = absl::InfiniteFuture();
        in_doubt = true;
      }
    }
    if (link.trial_at <= now) {
      link.trial_at = absl::InfiniteFuture();
      ++link.trials;
      Repair(owner, link, /*trial=*/true, now, effects);
    }
    if (link.probe_again_at <= now) {
      ++link.probes_unanswered;
      SendProbe(owner, link, now, effects);
    } else if (in_doubt && link.probe == 0) {
      SendProbe(owner, link, now, effects);
    }
    SetPushTimers(link, now);
    SetWakeup(owner, link);
  }
}

absl::Time ClientCore::NextWakeup() const {
  return wakeups_.empty() ? absl::InfiniteFuture() : wakeups_.begin()->first;
}

ClientCore::Sizes ClientCore::sizes() const {
  Sizes sizes{.links = links_.size(), .pulls = pending_pulls_.size()};
  for (const auto& [owner, link] : links_) {
    sizes.pull_messages +=
        link.pulls_queued.size() + link.pulls_in_flight.size();
    sizes.push_messages +=
        link.queued.size() + link.in_flight.size() + !link.open.entries.empty();
  }
  return sizes;
}

ClientCore::Waiting ClientCore::WaitingFor(absl::Time now) const {
  // After so many time-outs without an answer, it is not the link that is slow.
  constexpr int kTimeouts = 4;
  Waiting workers;
  Waiting server;
  bool overdue = false;
  const auto ago = [&](absl::Time since) {
    return absl::FormatDuration(
        absl::Trunc(now - since, absl::Milliseconds(1)));
  };
  const auto add_server = [&](Owner owner, const Link& link, Clock clock,
                              absl::Time since, std::string text) {
    if (server.kind == Waiting::Kind::kServer &&
        server.since_progress >= now - since) {
      return;
    }
    overdue = now - since > kTimeouts * link.round_trip.Timeout();
    server = {.kind = Waiting::Kind::kServer,
              .rank = std::nullopt,
              .server = owner.server,
              .clock = clock,
              .since_progress = now - since,
              .text = std::move(text)};
  };
  for (const auto& [owner, link] : links_) {
    for (const PullUnit& unit : link.pulls_in_flight) {
      const std::string what = absl::StrCat(
          "the pull of ", view_->ShardName(ShardId{unit.shards.front()}),
          " at clock ", unit.clock, " from ", OwnerName(*view_, owner));
      if (unit.waiting_rank < 0) {
        const absl::Time since = std::max(unit.sent, link.pull_heard);
        add_server(owner, link, unit.clock, since,
                   absl::StrCat(what, " has no answer for ", ago(since)));
        continue;
      }
      if (workers.kind == Waiting::Kind::kWorkers &&
          workers.clock <= unit.waiting_clock) {
        continue;
      }
      workers = {
          .kind = Waiting::Kind::kWorkers,
          .rank = Rank{unit.waiting_rank},
          .server = owner.server,
          .clock = unit.waiting_clock,
          .since_progress = now - unit.waiting_since,
          .text = absl::StrCat(what, " waits for rank ", unit.waiting_rank,
                               ", whose clock is ", unit.waiting_clock)};
    }
    if (link.in_flight.empty()) continue;
    const PushUnit& unit = link.in_flight.front();
    const Clock clock = unit.entries.front().clock;
    add_server(owner, link, clock, link.push_heard,
               absl::StrCat("pushes of clock ", clock, " to ",
                            OwnerName(*view_, owner),
                            unit.state == PushUnit::State::kSent
                                ? " have no answer for "
                                : " have not been accepted for ",
                            ago(link.push_heard)));
  }
  if (workers.kind == Waiting::Kind::kNothing || overdue) {
    return server.kind == Waiting::Kind::kNothing ? workers : server;
  }
  return workers;
}

}  // namespace slackline
