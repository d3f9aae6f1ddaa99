#include "worker/client/push_lane.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace slackline {

// ---- What waits -----------------------------------------------------------

void PushLane::Add(PushEntry entry, TableId table, size_t full_bytes) {
  if (!open_.entries.empty() && !queued_.empty() &&
      entry.kind == PushEntry::Kind::kGradient) {
    // What would overtake does not join what does not.
    const PushUnit& last = queued_.back();
    if (last.IsOvertakenBy(PushUnit::Gradients{
            .clock = entry.clock, .first = table, .last = table}) &&
        !last.IsOvertakenBy(open_.gradients)) {
      CloseOpen();
    }
  }
  open_.Add(std::move(entry), table);
  if (IsFull(open_, full_bytes)) CloseOpen();
}

bool PushLane::EndClock() {
  if (open_.entries.empty() || open_may_go_) return false;
  if (!queued_.empty() && queued_.back().IsOvertakenBy(open_.gradients)) {
    CloseOpen();
  } else {
    open_may_go_ = true;
  }
  return true;
}

void PushLane::CloseOpen() {
  auto at = queued_.end();
  while (at != queued_.begin() && std::prev(at)->IsOvertakenBy(open_.gradients))
    --at;
  queued_.insert(at, std::move(open_));
  open_ = PushUnit();
  open_may_go_ = false;
}

std::optional<PushUnit> PushLane::TakeNext() {
  // What comes later would have to be waited for.
  if (IsFull(open_, options_.message_bytes)) CloseOpen();
  if (!queued_.empty()) {
    if (!FitsWindow(queued_.front())) return std::nullopt;
    PushUnit unit = std::move(queued_.front());
    queued_.pop_front();
    return unit;
  }
  if (!open_may_go_ || small_in_flight_ >= options_.small_messages_max ||
      !FitsWindow(open_)) {
    return std::nullopt;
  }
  open_may_go_ = false;
  PushUnit unit = std::exchange(open_, PushUnit());
  unit.small = true;
  if (unit.entries.empty()) return std::nullopt;
  return unit;
}

// ---- What is in flight ----------------------------------------------------

size_t PushLane::Send(PushUnit& unit, const ClientParts& parts) {
  unit.state = PushUnit::State::kSent;
  unit.request_id = parts.numbers.Next();
  unit.sent = parts.now;
  unit.under_way = 0;
  unit.answered = unit.trial = false;
  ClientSend send = parts.NewSend(to_);
  const wire::View& view = parts.routes.view().proto();
  wire::PushRequest& push = *send.message.header.mutable_push_request();
  push.set_request_id(unit.request_id);
  push.set_phases(view.phase_size());
  push.set_cuts(view.cut().number());
  size_t bytes = 0;
  for (const PushEntry& entry : unit.entries) {
    if (entry.AcceptedIn(parts.sequences)) continue;
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
  parts.effects.sends.push_back(std::move(send));
  return bytes;
}

void PushLane::SendFirst(PushUnit unit, const ClientParts& parts) {
  if (in_flight_.empty()) heard_ = parts.now;
  size_t again = 0;
  for (PushEntry& entry : unit.entries) {
    if (std::exchange(entry.sent, true) && !entry.AcceptedIn(parts.sequences))
      again += entry.bytes();
  }
  parts.counts.SentFirst(unit.bytes, again);
  if (unit.AcceptedIn(parts.sequences)) {  // By the owner before the last move.
    parts.counts.Accepted(unit.bytes);
    return;
  }
  bytes_in_flight_ += unit.bytes;
  if (unit.small) ++small_in_flight_;
  Send(unit, parts);
  unit.under_way = bytes_in_flight_;
  in_flight_.push_back(std::move(unit));
}

void PushLane::Repair(bool trial, const ClientParts& parts) {
  bool sent_earlier_one = false;
  for (PushUnit& unit : in_flight_) {
    const bool tried = unit.state == PushUnit::State::kRefused && trial;
    if (!tried && unit.state != PushUnit::State::kMissing &&
        (unit.state != PushUnit::State::kBehind ||
         (!sent_earlier_one && !unit.IsNextIn(parts.sequences)))) {
      continue;
    }
    sent_earlier_one = true;
    parts.counts.SentAgain(Send(unit, parts));
    if (!tried) continue;
    unit.trial = true;
    trial = false;
  }
}

PushUnit* PushLane::Find(uint64_t request_id) {
  if (request_id == 0) return nullptr;
  const auto at = std::find_if(
      in_flight_.begin(), in_flight_.end(),
      [&](const PushUnit& unit) { return unit.request_id == request_id; });
  return at == in_flight_.end() ? nullptr : &*at;
}

const PushUnit* PushLane::OnReply(uint64_t request_id) {
  PushUnit* const unit = Find(request_id);
  if (unit == nullptr || unit->answered) return nullptr;
  unit->answered = true;
  return unit;
}

void PushLane::OnRefused(uint64_t request_id, int32_t shard,
                         const PushSequences& sequences) {
  PushUnit* const unit = Find(request_id);
  if (unit != nullptr) unit->Refuse(shard, sequences);
}

void PushLane::OnReplyEnd(uint64_t request_id, const PushSequences& sequences) {
  const PushUnit* const unit = Find(request_id);
  if (unit == nullptr || !unit->trial || !unit->AcceptedIn(sequences)) return;
  trials_ = 0;
  for (PushUnit& other : in_flight_) {
    if (other.state == PushUnit::State::kRefused)
      other.state = PushUnit::State::kMissing;
  }
}

bool PushLane::DropAccepted(const PushSequences& sequences,
                            ClientCounts& counts, absl::Time now) {
  const auto drop = [&](const PushUnit& unit) {
    if (!unit.AcceptedIn(sequences)) return false;
    bytes_in_flight_ -= unit.bytes;
    counts.Accepted(unit.bytes);
    if (unit.small) --small_in_flight_;
    return true;
  };
  const size_t before = in_flight_.size();
  // Nearly always the oldest ones.
  while (!in_flight_.empty() && drop(in_flight_.front()))
    in_flight_.pop_front();
  std::erase_if(in_flight_, drop);
  if (in_flight_.size() == before) return false;
  counts.AcceptedInFlight(now);
  heard_ = now;
  doubts_ = 0;
  doubt_at_ = absl::InfiniteFuture();  // Counts from now on.
  return true;
}

bool PushLane::HasOvertaken(uint64_t request_id, uint64_t last_probe) const {
  return std::any_of(
      in_flight_.begin(), in_flight_.end(), [&](const PushUnit& unit) {
        return unit.state == PushUnit::State::kSent && !unit.answered &&
               unit.request_id < request_id && unit.request_id > last_probe;
      });
}

void PushLane::OnProbeReply(uint64_t probe, const std::set<int32_t>& answered,
                            const ClientParts& parts) {
  bool progress = DropAccepted(parts.sequences, parts.counts, parts.now);
  bool undecided = false;
  for (PushUnit& unit : in_flight_) {
    if (unit.state != PushUnit::State::kSent || unit.request_id > probe)
      continue;
    for (const PushEntry& entry : unit.entries) {
      if (!entry.AcceptedIn(parts.sequences) &&
          answered.count(entry.shard) > 0) {
        unit.state = PushUnit::State::kMissing;
      }
    }
    const bool missing = unit.state == PushUnit::State::kMissing;
    progress |= missing;
    undecided |= !missing;
  }
  if (undecided && !progress) ++doubts_;
  doubt_at_ = absl::InfiniteFuture();
}

void PushLane::AddShardsInDoubt(size_t max, const PushSequences& sequences,
                                std::set<int32_t>* shards) const {
  for (const PushUnit& unit : in_flight_) {
    if (shards->size() >= max) return;
    if (unit.state != PushUnit::State::kSent) continue;
    for (const PushEntry& entry : unit.entries) {
      if (!entry.AcceptedIn(sequences) && shards->size() < max)
        shards->insert(entry.shard);
    }
  }
}

uint64_t PushLane::LastBefore(int32_t shard, Clock clock) const {
  uint64_t last = 0;
  for (const PushUnit& unit : in_flight_) {
    // Units are nearly always in the order of their clocks. One that came from
    // another link may stand behind a later one: its own answer accepts it.
    if (unit.entries.front().clock >= clock) break;
    for (const PushEntry& entry : unit.entries) {
      if (entry.shard == shard && entry.clock < clock &&
          entry.kind != PushEntry::Kind::kInstallation) {
        last = std::max(last, entry.seq);
      }
    }
  }
  return last;
}

// ---- Timers ---------------------------------------------------------------

void PushLane::SetTimers(const RoundTrip& round_trip, bool probe_under_way,
                         const ClientParts& parts) {
  bool sent = false;
  bool refused = false;
  bool trial = false;
  for (const PushUnit& unit : in_flight_) {
    sent |= unit.state == PushUnit::State::kSent;
    refused |= unit.state == PushUnit::State::kRefused;
    trial |= unit.trial && unit.state == PushUnit::State::kSent;
  }
  if (!sent) {
    doubt_at_ = absl::InfiniteFuture();
  } else if (doubt_at_ == absl::InfiniteFuture() && !probe_under_way) {
    doubt_at_ = parts.now + round_trip.Timeout(doubts_);
  }
  if (!refused) {
    trial_at_ = absl::InfiniteFuture();
  } else if (!trial && trial_at_ == absl::InfiniteFuture()) {
    trial_at_ = parts.now + parts.RefusedDelay(trials_);
  }
}

bool PushLane::OnTick(const ClientParts& parts) {
  const bool in_doubt = doubt_at_ <= parts.now;
  if (in_doubt) doubt_at_ = absl::InfiniteFuture();
  if (trial_at_ <= parts.now) {
    trial_at_ = absl::InfiniteFuture();
    ++trials_;
    Repair(/*trial=*/true, parts);
  }
  return in_doubt;
}

void PushLane::OnNewView(absl::Time soon) {
  trials_ = 0;
  if (trial_at_ < absl::InfiniteFuture()) trial_at_ = std::min(trial_at_, soon);
}

// ---- Moves and splits -----------------------------------------------------

void PushLane::TakeStrays(const ClientParts& parts, StraysByOwner* strays) {
  const auto take = [&](PushUnit& unit) {
    size_t taken = 0;
    std::erase_if(unit.entries, [&](PushEntry& entry) {
      const Owner owner = parts.routes.OwnerOf(entry.shard);
      if (owner == to_) return false;
      std::vector<PushUnit>& units = (*strays)[owner].pushes;
      const size_t bytes = entry.bytes();
      if (units.empty() ||
          units.back().bytes + bytes > parts.options.message_bytes ||
          units.back().entries.size() >= parts.options.message_entries) {
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
  // In the order in which they were made, so that each shard's stays.
  for (PushUnit& unit : in_flight_) {
    const size_t taken = take(unit);
    bytes_in_flight_ -= taken;
    parts.counts.Rerouted(taken);
  }
  for (PushUnit& unit : queued_) take(unit);
  take(open_);
  std::erase_if(queued_,
                [](const PushUnit& unit) { return unit.entries.empty(); });
  std::erase_if(in_flight_, [&](const PushUnit& unit) {
    if (unit.entries.empty() && unit.small) --small_in_flight_;
    return unit.entries.empty();
  });
  // Units of which only that is left.
  DropAccepted(parts.sequences, parts.counts, parts.now);
}

void PushLane::Split(const ShardSplit& split, ClientCounts& counts) {
  counts.Grown(open_.SplitAt(split));
  for (PushUnit& unit : queued_) counts.Grown(unit.SplitAt(split));
  for (PushUnit& unit : in_flight_) {
    const size_t more = unit.SplitAt(split);
    bytes_in_flight_ += more;
    counts.GrownInFlight(more);
  }
}

}  // namespace slackline
