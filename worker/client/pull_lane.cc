#include "worker/client/pull_lane.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "worker/client/shard_tensors.h"

namespace slackline {
namespace {

bool HasNoShards(const PullUnit& unit) { return unit.shards.empty(); }

}  // namespace

// ---- What waits -----------------------------------------------------------

void PullLane::QueueFirst(std::vector<PullUnit> units) {
  queued_.insert(queued_.begin(), std::make_move_iterator(units.begin()),
                 std::make_move_iterator(units.end()));
}

void PullLane::QueueBehind(PushUnit* pushes, const ClientParts& parts) {
  PullUnit open;
  const auto close = [&] {
    if (open.shards.empty()) return;
    open.id = parts.numbers.Next();
    Queue(std::exchange(open, PullUnit()));
  };
  for (PushEntry& entry : pushes->entries) {
    const uint64_t pull_id = std::exchange(entry.then_pull, 0);
    const std::optional<Clock> clock = parts.pulls.ClockOf(pull_id);
    if (!clock.has_value()) continue;
    if (open.pull_id != pull_id) close();
    if (open.asked == nullptr) {
      open.pull_id = pull_id;
      open.asked = AskForStep(*clock, *clock);
    }
    open.shards.push_back(entry.shard);
    open.bytes += AnswerBytes(parts.routes.view(), entry.shard, *open.asked);
  }
  close();
}

void PullLane::SendWhatFits(const RoundTrip& round_trip,
                            const ClientParts& parts) {
  while (!queued_.empty() &&
         (in_flight_.empty() || bytes_in_flight_ + queued_.front().bytes <=
                                    parts.options.window_bytes)) {
    PullUnit& unit = in_flight_.emplace_back(std::move(queued_.front()));
    queued_.pop_front();
    bytes_in_flight_ += unit.bytes;
    unit.sent = parts.now;
    Send(unit, round_trip, parts);
  }
}

// ---- What is in flight ----------------------------------------------------

void PullLane::Send(PullUnit& unit, const RoundTrip& round_trip,
                    const ClientParts& parts) const {
  unit.asked_as = parts.numbers.Next();
  unit.doubted = false;
  unit.doubt_at =
      parts.now + round_trip.Timeout(unit.parked() ? 0 : unit.doubts);
  unit.resend_at = absl::InfiniteFuture();
  ClientSend send = parts.NewSend(to_);
  const wire::View& view = parts.routes.view().proto();
  wire::PullRequest& request = *send.message.header.mutable_pull_request();
  request.set_phases(view.phase_size());
  request.set_cuts(view.cut().number());
  wire::Pull& pull = *request.add_pull();
  pull = *unit.asked;
  pull.set_id(unit.id);
  pull.mutable_shard()->Assign(unit.shards.begin(), unit.shards.end());
  parts.effects.sends.push_back(std::move(send));
}

void PullLane::AskAgain(PullUnit& unit, const RoundTrip& round_trip,
                        const ClientParts& parts) const {
  if (!unit.parked()) {
    ++unit.unanswered_sends;
    parts.counts.AskedAgain();
  }
  Send(unit, round_trip, parts);
}

PullUnit* PullLane::Find(uint64_t id) {
  const auto at =
      std::find_if(in_flight_.begin(), in_flight_.end(),
                   [&](const PullUnit& unit) { return unit.id == id; });
  return at == in_flight_.end() ? nullptr : &*at;
}

void PullLane::OnValues(PullUnit& unit, int32_t shard,
                        const RoundTrip& round_trip, const ClientParts& parts) {
  const size_t answered = AnswerBytes(parts.routes.view(), shard, *unit.asked);
  unit.TakeOut(shard, answered);
  bytes_in_flight_ -= answered;
  unit.waiting_rank = -1;
  unit.doubted = false;
  unit.doubts = unit.refusals = 0;
  unit.doubt_at = parts.now + round_trip.Timeout();
  heard_ = parts.now;
}

void PullLane::OnRefused(PullUnit& unit, const ClientParts& parts) const {
  if (unit.resend_at == absl::InfiniteFuture())
    unit.resend_at = parts.now + parts.RefusedDelay(unit.refusals);
}

void PullLane::OnParked(PullUnit& unit, const wire::PullAnswer::Parked& at,
                        const RoundTrip& round_trip,
                        const ClientParts& parts) const {
  // What looked like a retry was a question, and this is its answer.
  parts.counts.WereQuestions(std::exchange(unit.unanswered_sends, 0));
  if (!unit.parked()) {
    unit.waiting_since = std::max(unit.sent, heard_);
  } else if (unit.waiting_rank != at.rank() ||
             unit.waiting_clock != at.clock()) {
    unit.waiting_since = parts.now;
  }
  unit.waiting_rank = at.rank();
  unit.waiting_clock = at.clock();
  unit.doubted = false;
  unit.doubts = 0;
  unit.doubt_at = parts.now + std::max(round_trip.Timeout(),
                                       std::min(parts.options.parked_delay,
                                                parts.options.retry_max));
}

void PullLane::DropAnswered() { std::erase_if(in_flight_, HasNoShards); }

void PullLane::ForgetPull(uint64_t pull_id) {
  const auto of_pull = [&](const PullUnit& unit) {
    return unit.pull_id == pull_id;
  };
  for (const PullUnit& unit : in_flight_) {
    if (of_pull(unit)) bytes_in_flight_ -= unit.bytes;
  }
  std::erase_if(in_flight_, of_pull);
  std::erase_if(queued_, of_pull);
}

bool PullLane::OnProbeReply(uint64_t probe, const RoundTrip& round_trip,
                            const ClientParts& parts) {
  bool in_doubt = false;
  for (PullUnit& unit : in_flight_) {
    if (!unit.doubted) continue;
    if (unit.asked_as > probe) {
      in_doubt = true;
      continue;
    }
    ++unit.doubts;
    AskAgain(unit, round_trip, parts);
  }
  return in_doubt;
}

const int32_t* PullLane::ShardInDoubt() const {
  for (const PullUnit& unit : in_flight_) {
    if (unit.doubted) return &unit.shards.front();
  }
  return nullptr;
}

// ---- Timers ---------------------------------------------------------------

bool PullLane::OnTick(const RoundTrip& round_trip, const ClientParts& parts) {
  bool in_doubt = false;
  for (PullUnit& unit : in_flight_) {
    if (unit.resend_at <= parts.now) {
      ++unit.refusals;
      AskAgain(unit, round_trip, parts);
    } else if (unit.doubt_at <= parts.now) {
      unit.doubted = true;
      unit.doubt_at = absl::InfiniteFuture();
      in_doubt = true;
    }
  }
  return in_doubt;
}

void PullLane::OnNewView(absl::Time soon) {
  for (PullUnit& unit : in_flight_) {
    unit.refusals = 0;
    if (unit.resend_at < absl::InfiniteFuture())
      unit.resend_at = std::min(unit.resend_at, soon);
  }
}

absl::Time PullLane::NextWakeup() const {
  absl::Time next = absl::InfiniteFuture();
  for (const PullUnit& unit : in_flight_)
    next = std::min({next, unit.doubt_at, unit.resend_at});
  return next;
}

// ---- Moves and splits -----------------------------------------------------

void PullLane::TakeStrays(const ClientParts& parts, StraysByOwner* strays) {
  const auto take = [&](PullUnit& unit) {
    size_t taken = 0;
    std::map<Owner, PullUnit> parts_of_unit;
    std::erase_if(unit.shards, [&](int32_t shard) {
      const Owner owner = parts.routes.OwnerOf(shard);
      if (owner == to_) return false;
      const size_t bytes = AnswerBytes(parts.routes.view(), shard, *unit.asked);
      PullUnit& part =
          parts_of_unit.try_emplace(owner, unit.Sibling()).first->second;
      part.shards.push_back(shard);
      part.bytes += bytes;
      taken += bytes;
      return true;
    });
    unit.bytes -= std::min(unit.bytes, taken);
    for (auto& [owner, part] : parts_of_unit) {
      part.id = parts.numbers.Next();
      (*strays)[owner].pulls.push_back(std::move(part));
    }
    return taken;
  };
  for (PullUnit& unit : in_flight_)
    bytes_in_flight_ -= std::min(bytes_in_flight_, take(unit));
  for (PullUnit& unit : queued_) take(unit);
  std::erase_if(in_flight_, HasNoShards);
  std::erase_if(queued_, HasNoShards);
}

void PullLane::Split(const ShardSplit& split) {
  for (PullUnit& unit : queued_) unit.SplitAt(split);
  for (PullUnit& unit : in_flight_) unit.SplitAt(split);
}

}  // namespace slackline
