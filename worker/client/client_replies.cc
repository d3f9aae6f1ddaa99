#include "worker/client/client_replies.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/client/shard_tensors.h"

namespace slackline {

template <typename Answers>
void ClientReplies::FollowRefusals(const Answers& answers) const {
  bool moved = false;
  for (const auto& answer : answers) {
    if (answer.refusal().moved().has_to())
      moved |= routes.Relocate(answer.shard(), answer.refusal().moved().to());
  }
  if (moved) links.Reroute(parts);
}

bool ClientReplies::EndsHere(int32_t shard, const char* what,
                             const wire::Refusal& refusal) const {
  switch (refusal.why_case()) {
    case wire::Refusal::kRetry:
    case wire::Refusal::kMoved:
      return false;
    case wire::Refusal::kFenced:
      parts.effects.fenced = true;
      return true;
    default:
      parts.effects.failure = absl::InternalError(
          absl::StrCat(routes.NameOf(from), " refused a ", what, " ",
                       routes.view().ShardName(ShardId{shard}), ": ",
                       refusal.rejected().empty() ? "it does not say why"
                                                  : refusal.rejected()));
      return true;
  }
}

// ---- Pushes -----------------------------------------------------------------

void ClientReplies::OnPushReply(const wire::PushReply& reply) const {
  FollowRefusals(reply.answer());
  ClientLink* const link = links.Find(from);
  if (link != nullptr) link->OnPushReply(reply.request_id(), parts);
  for (const wire::PushAnswer& answer : reply.answer()) {
    const int32_t shard = answer.shard();
    if (!routes.view().HasShard(shard)) continue;
    OnAccepted(shard, answer.accepted_seq());
    if (!answer.has_refusal()) continue;
    if (EndsHere(shard, "push to", answer.refusal())) return;
    // What goes elsewhere by now is not tried again here.
    if (link != nullptr && routes.OwnerOf(shard) == from)
      link->OnPushRefused(reply.request_id(), shard, parts);
  }
  if (link == nullptr) return;
  link->OnPushReplyEnd(reply.request_id(), parts);
  links.SetWakeup(*link);
}

void ClientReplies::OnAccepted(int32_t shard, uint64_t seq) const {
  if (!sequences.Accept(shard, seq)) return;
  const Owner owner = routes.OwnerOf(shard);
  if (owner == from) return;
  // It has moved since, and its new owner has been or will be sent the same.
  ClientLink* const elsewhere = links.Find(owner);
  if (elsewhere == nullptr) return;
  elsewhere->DropAccepted(parts);
  elsewhere->Pump(parts);
  links.SetWakeup(*elsewhere);
}

// ---- Pulls ------------------------------------------------------------------

void ClientReplies::OnPullReply(const Message& message) const {
  const wire::PullReply& reply = message.header.pull_reply();
  FollowRefusals(reply.answer());
  ClientLink* const link = links.Find(from);
  if (link == nullptr) return;
  PullUnit* unit = nullptr;  // The last answer was of it; the next likely is.
  // For whom the pulls wait: for each the one that is furthest behind.
  std::map<uint64_t, const wire::PullAnswer::Parked*> parked;
  absl::Span<const Payload> frames = message.payloads;
  for (const wire::PullAnswer& answer : reply.answer()) {
    size_t frame_count = answer.has_values() ? 1 : 0;
    if (answer.has_state())
      frame_count = 1 + static_cast<size_t>(answer.state().slots());
    if (frame_count > frames.size()) break;
    const absl::Span<const Payload> tensors = frames.first(frame_count);
    frames.remove_prefix(frame_count);
    if (unit == nullptr || unit->id != answer.pull())
      unit = link->FindPull(answer.pull());
    if (unit == nullptr) continue;  // A repeated answer.
    switch (answer.what_case()) {
      case wire::PullAnswer::kValues:
      case wire::PullAnswer::kState:
        if (!TakeValues(*link, *unit, answer, tensors,
                        message.header.view_number())) {
          return;
        }
        break;
      case wire::PullAnswer::kParked: {
        const wire::PullAnswer::Parked*& at = parked[unit->id];
        if (at == nullptr || answer.parked().clock() < at->clock())
          at = &answer.parked();
        break;
      }
      case wire::PullAnswer::kRefusal:
        if (!routes.view().HasShard(answer.shard())) break;
        if (EndsHere(answer.shard(), "pull of", answer.refusal())) return;
        // What goes elsewhere by now is not asked for here again.
        if (unit->Wants(answer.shard())) link->OnPullRefused(*unit, parts);
        break;
      default:
        break;
    }
  }
  for (const auto& [id, at] : parked)
    link->OnParked(*link->FindPull(id), *at, parts);
  link->OnPullReplyEnd(parts);
  links.SetWakeup(*link);
}

bool ClientReplies::TakeValues(ClientLink& link, PullUnit& unit,
                               const wire::PullAnswer& answer,
                               absl::Span<const Payload> frames,
                               uint64_t view_number) const {
  const int32_t shard = answer.shard();
  if (!unit.Wants(shard)) return true;
  if (view_number < routes.view().RangeSince(ShardId{shard})) {
    // It was answered before the shard was split in two.
    link.OnPullRefused(unit, parts);
    return true;
  }
  absl::StatusOr<ShardValue> value =
      ValueOf(answer, frames, *unit.asked, routes, from);
  if (!value.ok()) {
    parts.effects.failure = value.status();
    return false;
  }
  // It cannot have been parked for longer than it was under way.
  if (const int64_t parked = ValuesIn(answer).parked_micros(); parked > 0) {
    value->parked.until = parts.now;
    value->parked.from =
        std::max(unit.sent, parts.now - absl::Microseconds(parked));
  }
  // A shard answers the pull of a worker that is at own_clock when it has the
  // gradients of earlier clocks, though the replies to these may be lost.
  // Nearly always it has answered the push first.
  if (unit.asked->has_step() && !sequences.AllAccepted(shard)) {
    OnAccepted(shard,
               link.pushes().LastBefore(shard, unit.asked->step().own_clock()));
  }
  link.OnValues(unit, shard, parts);
  for (const Payload& frame : frames) parts.counts.Pulled(frame.size());
  pulls.Bring(unit.pull_id, shard, *std::move(value), &parts.effects);
  return true;
}

// ---- Probes -----------------------------------------------------------------

void ClientReplies::OnProbeReply(const wire::ProbeReply& reply) const {
  FollowRefusals(reply.answer());
  std::set<int32_t> answered;
  for (const wire::ProbeAnswer& answer : reply.answer()) {
    const int32_t shard = answer.shard();
    if (!routes.view().HasShard(shard)) continue;
    if (answer.refusal().has_fenced()) {
      parts.effects.fenced = true;
      return;
    }
    if (answer.what_case() != wire::ProbeAnswer::kAcceptedSeq) continue;
    OnAccepted(shard, answer.accepted_seq());
    answered.insert(shard);
  }
  ClientLink* const link = links.Find(from);
  if (link == nullptr) return;
  link->OnProbeReply(reply.request_id(), answered, parts);
  links.SetWakeup(*link);
}

}  // namespace slackline
