#include "worker/client/client_core.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "common/io/state_hash.h"
#include "common/status.h"

namespace slackline {
namespace {

std::string OwnerName(const View& view, Owner owner) {
  for (const wire::ServerMember& server : view.proto().server()) {
    if (server.index() == owner.server && owner.thread < server.thread_size()) {
      return absl::StrCat("server ", owner.server, " thread ", owner.thread,
                          " (", server.thread(owner.thread).tcp(), ")");
    }
  }
  return absl::StrCat("server ", owner.server, " thread ", owner.thread);
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

ClientCore::ClientCore(const Options& options, std::shared_ptr<const View> view)
    : options_(options),
      view_(std::move(view)),
      next_seq_(view_->shard_count(), 1),
      acked_seq_(view_->shard_count(), 0),
      table_pushed_(view_->proto().table_size(), false) {
  for (int32_t shard = 0; shard < view_->shard_count(); ++shard) {
    routes_.push_back(RouteIn(*view_, shard));
  }
}

// ---- Moves and splits -----------------------------------------------------

ClientCore::Route ClientCore::RouteIn(const View& view, int32_t shard) const {
  const wire::Move* const move = view.FindMove(ShardId{shard});
  return {.owner = view.OwnerOf(ShardId{shard}),
          .as_of = move == nullptr ? view.number() : move->id() - 1};
}

void ClientCore::OnView(std::shared_ptr<const View> view, absl::Time now,
                        Effects* effects) {
  if (view->number() <= view_->number()) return;
  const int splits_known = view_->proto().split_size();
  view_ = std::move(view);
  if (view_->FindWorker(options_.rank, options_.incarnation) == nullptr)
    effects->fenced = true;
  for (int i = splits_known; i < view_->proto().split_size(); ++i) {
    const wire::Split& split = view_->proto().split(i);
    // Where the kept part begins does not change; where it ends may, later.
    const int64_t begin = view_->shard(ShardId{split.shard()}).begin;
    ApplySplit(split, static_cast<int32_t>(routes_.size()),
               static_cast<size_t>(split.at() - begin) * sizeof(float));
  }
  std::vector<int32_t> moved;
  for (int32_t shard = 0; shard < view_->shard_count(); ++shard) {
    const Route route = RouteIn(*view_, shard);
    Route& known = routes_[shard];
    if (route.as_of < known.as_of) continue;
    if (route.owner != known.owner) moved.push_back(shard);
    known = route;
  }
  Reroute(moved, now, effects);
}

void ClientCore::OnRelocations(
    const google::protobuf::RepeatedPtrField<wire::Relocation>& relocations,
    absl::Time now, Effects* effects) {
  std::vector<int32_t> moved;
  for (const wire::Relocation& relocation : relocations) {
    const int32_t shard = relocation.shard();
    const Owner owner{relocation.server(), relocation.thread()};
    if (!view_->HasShard(shard)) continue;
    const wire::ServerMember* const server = view_->FindServer(owner.server);
    if (server == nullptr || owner.thread < 0 ||
        owner.thread >= server->thread_size()) {
      continue;  // A server that our view does not have yet.
    }
    Route& known = routes_[shard];
    if (relocation.as_of() <= known.as_of) continue;
    known.as_of = relocation.as_of();
    if (known.owner == owner) continue;
    known.owner = owner;
    moved.push_back(shard);
  }
  Reroute(moved, now, effects);
}

void ClientCore::ApplySplit(const wire::Split& split, int32_t new_shard,
                            size_t kept_bytes) {
  const int32_t kept = split.shard();
  routes_.push_back(routes_[kept]);
  next_seq_.push_back(next_seq_[kept]);
  acked_seq_.push_back(acked_seq_[kept]);
  const auto cut_push = [&](PushUnit& unit) {
    std::vector<PushEntry> entries;
    for (PushEntry& entry : unit.entries) {
      if (entry.shard != kept || unit.advance) {
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
      const auto cut = [&](Payload& kept_part, Payload& cut_part) {
        cut_part = kept_part.Slice(kept_bytes, kept_part.size() - kept_bytes);
        kept_part = kept_part.Slice(0, kept_bytes);
      };
      cut(entry.gradient, rest.gradient);
      for (size_t i = 0; i < entry.slots.size(); ++i)
        cut(entry.slots[i], rest.slots[i]);
      if (unit.install) {
        for (PushEntry* const part : {&entry, &rest}) {
          part->hash =
              StateHash(part->base_version, part->gradient, part->slots);
        }
      }
      entries.push_back(std::move(entry));
      entries.push_back(std::move(rest));
    }
    unit.entries = std::move(entries);
  };
  const auto cut_pull = [&](PullUnit& unit) {
    if (std::find(unit.shards.begin(), unit.shards.end(), kept) ==
        unit.shards.end()) {
      return;
    }
    unit.shards.push_back(new_shard);
    ++pending_pulls_[unit.pull_id].missing;
  };
  for (auto& [owner, link] : links_) {
    cut_push(link.open);
    for (PushUnit& unit : link.queued) cut_push(unit);
    for (PushUnit& unit : link.in_flight) cut_push(unit);
    for (PullUnit& unit : link.pulls_queued) cut_pull(unit);
    for (PullUnit& unit : link.pulls_in_flight) cut_pull(unit);
  }
  for (auto& [id, pending] : pending_pulls_) {
    pending.result.view = view_;
    std::vector<ShardValue>& shards = pending.result.shards;
    shards.push_back(shards[kept]);
    if (shards[kept].values.empty()) continue;  // Not answered yet.
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

void ClientCore::Reroute(const std::vector<int32_t>& shards, absl::Time now,
                         Effects* effects) {
  if (shards.empty()) return;
  const auto strayed = [&](Owner here, int32_t shard) {
    return OwnerOf(shard) != here &&
           std::find(shards.begin(), shards.end(), shard) != shards.end();
  };
  struct Strayed {
    std::vector<PushUnit> pushes;
    std::vector<PullUnit> pulls;
  };
  std::map<Owner, Strayed> to;
  const auto take_pushes = [&](Owner here, PushUnit& unit) {
    size_t taken = 0;
    std::erase_if(unit.entries, [&](PushEntry& entry) {
      if (!strayed(here, entry.shard)) return false;
      std::vector<PushUnit>& units = to[OwnerOf(entry.shard)].pushes;
      const size_t bytes = entry.bytes();
      if (units.empty() || !units.back().SameKind(unit) ||
          units.back().bytes + bytes > options_.message_bytes) {
        units.emplace_back();
        units.back().clock = unit.clock;
        units.back().advance = unit.advance;
        units.back().install = unit.install;
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
      if (!strayed(here, shard)) return false;
      const size_t bytes = AnswerBytes(shard, unit.state);
      PullUnit& part = parts[OwnerOf(shard)];
      part.shards.push_back(shard);
      part.bytes += bytes;
      taken += bytes;
      return true;
    });
    unit.bytes -= std::min(unit.bytes, taken);
    for (auto& [owner, part] : parts) {
      part.request_id = next_request_id_++;
      part.pull_id = unit.pull_id;
      part.clock = unit.clock;
      part.own_clock = unit.own_clock;
      part.join = unit.join;
      part.state = unit.state;
      to[owner].pulls.push_back(std::move(part));
    }
    return taken;
  };
  for (auto& [here, link] : links_) {
    // In the order in which they were made, so that each shard's stays.
    for (PushUnit& unit : link.in_flight) {
      const size_t taken = take_pushes(here, unit);
      link.push_bytes_in_flight -= taken;
      bytes_pushed_ -= taken;  // Counted again where they go.
    }
    for (PushUnit& unit : link.queued) take_pushes(here, unit);
    take_pushes(here, link.open);
    const auto empty = [](const PushUnit& unit) {
      return unit.entries.empty();
    };
    std::erase_if(link.queued, empty);
    std::erase_if(link.in_flight, empty);
    if (link.in_flight.empty()) link.push_resend_at = absl::InfiniteFuture();
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
    Link& link = links_[owner];
    for (PushUnit& unit : strays.pushes) link.queued.push_back(std::move(unit));
    // Somebody waits for these.
    link.pulls_queued.insert(link.pulls_queued.begin(),
                             std::make_move_iterator(strays.pulls.begin()),
                             std::make_move_iterator(strays.pulls.end()));
  }
  PumpAll(now, effects);
}

void ClientCore::PumpAll(absl::Time now, Effects* effects) {
  for (auto& [owner, link] : links_) Pump(owner, link, now, effects);
}

// ---- Push -----------------------------------------------------------------

absl::Status ClientCore::Push(Clock clock, TableId table,
                              const Payload& gradient,
                              absl::Span<const Version> base_versions,
                              absl::Time now, Effects* effects) {
  const int index = static_cast<int>(table);
  if (index < 0 || index >= static_cast<int>(table_pushed_.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("push to table ", index, ": the job has ",
                     table_pushed_.size(), " tables"));
  }
  const std::string& name = view_->table(table).name();
  const size_t bytes =
      static_cast<size_t>(TableElements(view_->table(table))) * sizeof(float);
  if (clock != push_clock_ || table_pushed_[index]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push to ", name, " of clock ", clock, ": expected clock ", push_clock_,
        table_pushed_[index] ? ", to which this table was pushed already"
                             : ""));
  }
  const size_t shards_at_first =
      next_seq_.size() - static_cast<size_t>(view_->proto().split_size());
  if (gradient.size() != bytes || base_versions.size() < shards_at_first ||
      base_versions.size() > next_seq_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push to ", name, ": gradient of ", gradient.size(), " bytes and ",
        base_versions.size(), " base versions; the table has ", bytes,
        " bytes and the job ", next_seq_.size(), " shards"));
  }
  for (const ShardRange& range : view_->ShardsOf(table)) {
    const int32_t shard = static_cast<int32_t>(range.shard);
    Link& link = links_[OwnerOf(shard)];
    // A shard that was cut off since then has the version of its origin.
    ShardId versioned = range.shard;
    while (static_cast<size_t>(versioned) >= base_versions.size())
      versioned = view_->OriginOf(versioned);
    link.open.clock = clock;
    link.open.entries.push_back(
        {.shard = shard,
         .seq = next_seq_[shard]++,
         .base_version = base_versions[static_cast<size_t>(versioned)],
         .gradient = gradient.Slice(
             static_cast<size_t>(range.begin) * sizeof(float), range.bytes()),
         .slots = {}});
    link.open.bytes += range.bytes();
    if (link.open.bytes >= options_.message_bytes) CloseOpenUnit(link);
  }
  table_pushed_[index] = true;
  if (++tables_pushed_ == static_cast<int>(table_pushed_.size())) {
    for (auto& [owner, link] : links_) CloseOpenUnit(link);
    std::fill(table_pushed_.begin(), table_pushed_.end(), false);
    tables_pushed_ = 0;
    ++push_clock_;
  }
  unacknowledged_bytes_ += bytes;
  PumpAll(now, effects);
  return absl::OkStatus();
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
  CloseOpenUnits(now, effects);
  push_clock_ = start;
  return start;
}

void ClientCore::SkipTo(Clock clock, absl::Time now, Effects* effects) {
  SL_CHECK(clock >= push_clock_ && tables_pushed_ == 0,
           "a worker skips clocks that it has pushed");
  for (int32_t shard = 0; shard < view_->shard_count(); ++shard)
    AddAdvance(shard, clock);
  CloseOpenUnits(now, effects);
  push_clock_ = clock;
}

void ClientCore::AddAdvance(int32_t shard, Clock clock) {
  Link& link = links_[OwnerOf(shard)];
  link.open.clock = clock;
  link.open.advance = true;
  link.open.entries.push_back({.shard = shard,
                               .seq = next_seq_[shard]++,
                               .base_version = 0,
                               .gradient = Payload(),
                               .slots = {}});
}

void ClientCore::CloseOpenUnits(absl::Time now, Effects* effects) {
  for (auto& [owner, link] : links_) CloseOpenUnit(link);
  PumpAll(now, effects);
}

void ClientCore::Install(Clock clock, std::vector<InstalledShard> shards,
                         absl::Time now, Effects* effects) {
  for (InstalledShard& installed : shards) {
    ShardValue& state = installed.state;
    const int32_t shard = static_cast<int32_t>(installed.shard);
    Link& link = links_[OwnerOf(shard)];
    PushEntry entry{.shard = shard,
                    .seq = next_seq_[shard]++,
                    .base_version = state.version,
                    .gradient = std::move(state.values),
                    .slots = std::move(state.slots)};
    entry.hash = StateHash(entry.base_version, entry.gradient, entry.slots);
    link.open.clock = clock;
    link.open.install = true;
    link.open.bytes += entry.bytes();
    unacknowledged_bytes_ += entry.bytes();
    link.open.entries.push_back(std::move(entry));
    if (link.open.bytes >= options_.message_bytes) CloseOpenUnit(link);
  }
  for (auto& [owner, link] : links_) CloseOpenUnit(link);
  push_clock_ = clock;
  PumpAll(now, effects);
}

void ClientCore::CloseOpenUnit(Link& link) {
  if (link.open.entries.empty()) return;
  link.queued.push_back(std::move(link.open));
  link.open = PushUnit();
}

void ClientCore::SendPush(Owner to, const PushUnit& unit,
                          Effects* effects) const {
  Send send{.to = to, .message = {}};
  send.message.header.set_view_number(view_->number());
  wire::PushRequest& push = *send.message.header.mutable_push_request();
  push.set_clock(unit.clock);
  push.set_advance(unit.advance);
  push.set_install(unit.install);
  push.set_phases(view_->proto().phase_size());
  for (const PushEntry& entry : unit.entries) {
    push.add_shard(entry.shard);
    push.add_seq(entry.seq);
    if (unit.advance) continue;
    push.add_base_version(entry.base_version);
    send.message.payloads.push_back(entry.gradient);
    if (!unit.install) continue;
    push.add_hash(entry.hash);
    for (const Payload& slot : entry.slots)
      send.message.payloads.push_back(slot);
  }
  effects->sends.push_back(std::move(send));
}

void ClientCore::OnPushReply(Owner from, const wire::PushReply& reply,
                             absl::Time now, Effects* effects) {
  OnRelocations(reply.relocation(), now, effects);
  Link& link = links_[from];
  for (int i = 0; i < reply.shard_size(); ++i) {
    const int32_t shard = reply.shard(i);
    if (!view_->HasShard(shard) || i >= reply.code_size() ||
        i >= reply.acked_seq_size())
      continue;
    switch (reply.code(i)) {
      case wire::OK:
      case wire::RETRY:
      case wire::MOVED:
        acked_seq_[shard] = std::max(acked_seq_[shard], reply.acked_seq(i));
        // What goes elsewhere by now is not repeated here.
        if (reply.code(i) != wire::OK && OwnerOf(shard) == from &&
            acked_seq_[shard] + 1 < next_seq_[shard]) {
          link.push_resend_at =
              std::min(link.push_resend_at, now + options_.refused_delay);
        }
        break;
      case wire::FENCED:
        effects->fenced = true;
        return;
      default:
        effects->failure = absl::InternalError(
            absl::StrCat(OwnerName(*view_, from), " refused a push to ",
                         view_->ShardName(ShardId{shard}), ": ",
                         reply.error().empty() ? wire::Code_Name(reply.code(i))
                                               : reply.error()));
        return;
    }
  }
  if (DropAcknowledged(link, now)) Pump(from, link, now, effects);
}

bool ClientCore::DropAcknowledged(Link& link, absl::Time now) {
  bool progress = false;
  while (!link.in_flight.empty()) {
    const PushUnit& unit = link.in_flight.front();
    const bool done = std::all_of(unit.entries.begin(), unit.entries.end(),
                                  [&](const PushEntry& entry) {
                                    return entry.seq <= acked_seq_[entry.shard];
                                  });
    if (!done) break;
    link.push_bytes_in_flight -= unit.bytes;
    unacknowledged_bytes_ -= unit.bytes;
    link.in_flight.pop_front();
    progress = true;
  }
  if (progress) {
    link.push_heard = now;
    link.push_backoff = options_.retry_initial;
    link.push_resend_at = link.in_flight.empty() ? absl::InfiniteFuture()
                                                 : now + link.push_backoff;
  }
  return progress;
}

// ---- Pull -----------------------------------------------------------------

uint64_t ClientCore::Pull(Clock clock, Clock own_clock, absl::Time now,
                          Effects* effects) {
  return StartPull(PullKind::kStep, clock, own_clock, now, effects);
}

uint64_t ClientCore::PullState(Clock clock, absl::Time now, Effects* effects) {
  return StartPull(PullKind::kState, clock, clock, now, effects);
}

uint64_t ClientCore::JoinPull(absl::Time now, Effects* effects) {
  return StartPull(PullKind::kJoin, 0, 0, now, effects);
}

uint64_t ClientCore::StartPull(PullKind kind, Clock clock, Clock own_clock,
                               absl::Time now, Effects* effects) {
  const bool state = kind == PullKind::kState;
  const uint64_t pull_id = next_pull_id_++;
  PendingPull& pending = pending_pulls_[pull_id];
  pending.result.pull_id = pull_id;
  pending.result.shards.resize(next_seq_.size());
  pending.result.view = view_;
  pending.missing = view_->shard_count();
  std::map<Owner, PullUnit> open;
  const auto close = [&](Owner owner, PullUnit& unit) {
    if (unit.shards.empty()) return;
    unit.request_id = next_request_id_++;
    unit.pull_id = pull_id;
    unit.clock = clock;
    unit.own_clock = own_clock;
    unit.join = kind == PullKind::kJoin;
    unit.state = state;
    links_[owner].pulls_queued.push_back(std::move(unit));
    unit = PullUnit();
  };
  for (int32_t shard = 0; shard < view_->shard_count(); ++shard) {
    const Owner owner = OwnerOf(shard);
    PullUnit& unit = open[owner];
    unit.shards.push_back(shard);
    unit.bytes += AnswerBytes(shard, state);
    if (unit.bytes >= options_.message_bytes) close(owner, unit);
  }
  for (auto& [owner, unit] : open) close(owner, unit);
  PumpAll(now, effects);
  return pull_id;
}

void ClientCore::SendPull(Owner to, const PullUnit& unit,
                          Effects* effects) const {
  Send send{.to = to, .message = {}};
  send.message.header.set_view_number(view_->number());
  wire::PullRequest& pull = *send.message.header.mutable_pull_request();
  pull.set_request_id(unit.request_id);
  pull.set_clock(unit.clock);
  pull.set_own_clock(unit.own_clock);
  pull.set_join(unit.join);
  pull.set_state(unit.state);
  pull.set_phases(view_->proto().phase_size());
  for (const int32_t shard : unit.shards) pull.add_shard(shard);
  effects->sends.push_back(std::move(send));
}

void ClientCore::OnPullReply(Owner from, const Message& message, absl::Time now,
                             Effects* effects) {
  const wire::PullReply& reply = message.header.pull_reply();
  OnRelocations(reply.relocation(), now, effects);
  Link& link = links_[from];
  const auto unit = std::find_if(
      link.pulls_in_flight.begin(), link.pulls_in_flight.end(),
      [&](const PullUnit& u) { return u.request_id == reply.request_id(); });
  if (unit == link.pulls_in_flight.end()) return;  // A repeated answer.
  PendingPull& pending = pending_pulls_[unit->pull_id];
  size_t next_payload = 0;
  for (int i = 0; i < reply.shard_size(); ++i) {
    const int32_t shard = reply.shard(i);
    if (i >= reply.code_size() || i >= reply.version_size() ||
        i >= reply.shard_clock_size() || !view_->HasShard(shard)) {
      break;
    }
    switch (reply.code(i)) {
      case wire::OK: {
        const size_t frames =
            unit->state ? 1 + static_cast<size_t>(options_.slot_count) : 1;
        if (next_payload + frames > message.payloads.size()) return;
        const auto first = message.payloads.begin() +
                           static_cast<std::ptrdiff_t>(next_payload);
        next_payload += frames;
        const auto last = first + static_cast<std::ptrdiff_t>(frames);
        const auto wanted =
            std::find(unit->shards.begin(), unit->shards.end(), shard);
        const size_t bytes = view_->shard(ShardId{shard}).bytes();
        if (wanted == unit->shards.end()) break;
        if (message.header.view_number() < view_->RangeSince(ShardId{shard})) {
          // Answered before the shard was cut in two.
          unit->resend_at =
              std::min(unit->resend_at, now + options_.refused_delay);
          break;
        }
        const auto wrong = std::find_if(
            first, last,
            [&](const Payload& tensor) { return tensor.size() != bytes; });
        if (wrong != last) {
          effects->failure = absl::InternalError(
              absl::StrCat(OwnerName(*view_, from), " answered a pull of ",
                           view_->ShardName(ShardId{shard}), " with ",
                           wrong->size(), " bytes, the shard has ", bytes));
          return;
        }
        ShardValue value{.version = reply.version(i),
                         .shard_clock = reply.shard_clock(i),
                         .values = *first,
                         .slots = {first + 1, last}};
        const uint64_t hash = i < reply.hash_size() ? reply.hash(i) : 0;
        if (unit->state &&
            StateHash(value.version, value.values, value.slots) != hash) {
          effects->failure = absl::DataLossError(
              absl::StrCat(OwnerName(*view_, from), " sent ",
                           view_->ShardName(ShardId{shard}), " of version ",
                           value.version, ", and other bits arrived"));
          return;
        }
        const size_t answered = AnswerBytes(shard, unit->state);
        unit->shards.erase(wanted);
        unit->bytes -= answered;
        link.pull_bytes_in_flight -= answered;
        bytes_pulled_ += answered;
        pending.result.shards[shard] = std::move(value);
        --pending.missing;
        unit->waiting_rank = -1;
        break;
      }
      case wire::PARKED:
        // What looked like a retry was a question, and this is its answer.
        retries_ -= unit->unanswered_sends;
        unit->unanswered_sends = 0;
        unit->waiting_rank = reply.waiting_rank();
        unit->waiting_clock = reply.waiting_clock();
        break;
      case wire::RETRY:
      case wire::MOVED:
        // What goes elsewhere by now is not asked for here again.
        if (std::find(unit->shards.begin(), unit->shards.end(), shard) ==
            unit->shards.end()) {
          break;
        }
        unit->resend_at =
            std::min(unit->resend_at, now + options_.refused_delay);
        break;
      case wire::FENCED:
        effects->fenced = true;
        return;
      default:
        effects->failure = absl::InternalError(
            absl::StrCat(OwnerName(*view_, from), " refused a pull of ",
                         view_->ShardName(ShardId{shard}), ": ",
                         reply.error().empty() ? wire::Code_Name(reply.code(i))
                                               : reply.error()));
        return;
    }
  }
  if (pending.missing == 0) {
    effects->pulled.push_back(std::move(pending.result));
    pending_pulls_.erase(unit->pull_id);
  }
  if (unit->shards.empty()) link.pulls_in_flight.erase(unit);
  Pump(from, link, now, effects);
}

// ---- Both -----------------------------------------------------------------

void ClientCore::Pump(Owner to, Link& link, absl::Time now, Effects* effects) {
  while (!link.queued.empty() &&
         (link.in_flight.empty() ||
          link.push_bytes_in_flight + link.queued.front().bytes <=
              options_.window_bytes)) {
    if (link.in_flight.empty()) {
      link.push_heard = now;
      link.push_backoff = options_.retry_initial;
      link.push_resend_at = now + link.push_backoff;
    }
    link.in_flight.push_back(std::move(link.queued.front()));
    link.queued.pop_front();
    link.push_bytes_in_flight += link.in_flight.back().bytes;
    bytes_pushed_ += link.in_flight.back().bytes;
    SendPush(to, link.in_flight.back(), effects);
  }
  while (!link.pulls_queued.empty() &&
         (link.pulls_in_flight.empty() ||
          link.pull_bytes_in_flight + link.pulls_queued.front().bytes <=
              options_.window_bytes)) {
    PullUnit& unit =
        link.pulls_in_flight.emplace_back(std::move(link.pulls_queued.front()));
    link.pulls_queued.pop_front();
    link.pull_bytes_in_flight += unit.bytes;
    unit.sent = now;
    unit.backoff = options_.retry_initial;
    unit.resend_at = now + unit.backoff;
    SendPull(to, unit, effects);
  }
}

void ClientCore::OnMessage(Owner from, const Message& message, absl::Time now,
                           Effects* effects) {
  switch (message.header.body_case()) {
    case wire::Header::kPushReply:
      return OnPushReply(from, message.header.push_reply(), now, effects);
    case wire::Header::kPullReply:
      return OnPullReply(from, message, now, effects);
    case wire::Header::kErrorReply:
      effects->failure = absl::InternalError(absl::StrCat(
          OwnerName(*view_, from), ": ", message.header.error_reply().error()));
      return;
    default:
      return;
  }
}

void ClientCore::OnTick(absl::Time now, Effects* effects) {
  for (auto& [owner, link] : links_) {
    if (link.push_resend_at <= now) {
      link.push_backoff = std::min(link.push_backoff * 2, options_.retry_max);
      link.push_resend_at = now + link.push_backoff;
      for (const PushUnit& unit : link.in_flight)
        SendPush(owner, unit, effects);
      retries_ += link.in_flight.size();
    }
    for (PullUnit& unit : link.pulls_in_flight) {
      if (unit.resend_at > now) continue;
      unit.backoff = std::min(unit.backoff * 2, options_.retry_max);
      unit.resend_at = now + unit.backoff;
      ++unit.unanswered_sends;
      ++retries_;
      SendPull(owner, unit, effects);
    }
  }
}

absl::Time ClientCore::NextWakeup() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [owner, link] : links_) {
    next = std::min(next, link.push_resend_at);
    for (const PullUnit& unit : link.pulls_in_flight)
      next = std::min(next, unit.resend_at);
  }
  return next;
}

std::string ClientCore::WaitingFor(absl::Time now) const {
  for (const auto& [owner, link] : links_) {
    for (const PullUnit& unit : link.pulls_in_flight) {
      const std::string what = absl::StrCat(
          "the pull of ", view_->ShardName(ShardId{unit.shards.front()}),
          " at clock ", unit.clock, " from ", OwnerName(*view_, owner));
      if (unit.waiting_rank >= 0) {
        return absl::StrCat(what, " waits for rank ", unit.waiting_rank,
                            ", whose clock is ", unit.waiting_clock);
      }
      return absl::StrCat(what, " has no answer for ",
                          absl::FormatDuration(absl::Trunc(
                              now - unit.sent, absl::Milliseconds(1))));
    }
    if (!link.in_flight.empty()) {
      return absl::StrCat("pushes of clock ", link.in_flight.front().clock,
                          " to ", OwnerName(*view_, owner),
                          " have no answer for ",
                          absl::FormatDuration(absl::Trunc(
                              now - link.push_heard, absl::Milliseconds(1))));
    }
  }
  return "nothing";
}

}  // namespace slackline
