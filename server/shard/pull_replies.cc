#include "server/shard/pull_replies.h"

#include <utility>

#include "server/shard/shard_peers.h"

namespace slackline {

wire::PullAnswer& PullReplies::Add(const PeerId& to, uint64_t pull,
                                   ShardId shard) {
  last_ = ReplyTo(to);
  wire::PullAnswer& answer =
      *replies_[last_].out.message.header.mutable_pull_reply()->add_answer();
  answer.set_pull(pull);
  answer.set_shard(static_cast<int32_t>(shard));
  return answer;
}

void PullReplies::Answer(ShardId shard, const ServedShard::Answer& told,
                         absl::Time now) {
  wire::PullAnswer& answer =
      Add(PeerOf(told.pull), told.pull.request_id, shard);
  wire::PullAnswer::Values& values =
      told.pull.asked->has_state() ? *answer.mutable_state()->mutable_values()
                                   : *answer.mutable_values();
  values.set_version(told.version);
  values.set_shard_clock(told.shard_clock);
  if (told.pull.since < now) {
    values.set_parked_micros(absl::ToInt64Microseconds(now - told.pull.since));
  }
  if (told.kind.has_value()) values.set_kind(*told.kind);
  Attach(told.values);
  if (!answer.has_state()) return;
  answer.mutable_state()->set_hash(told.hash);
  answer.mutable_state()->set_slots(static_cast<int>(told.slots.size()));
  for (const Payload& slot : told.slots) Attach(slot);
}

void PullReplies::Remind(ShardId shard, const ServedShard::StillParked& still) {
  wire::PullAnswer::Parked& parked =
      *Add(PeerOf(still.pull), still.pull.request_id, shard).mutable_parked();
  if (!still.waits_for.has_value()) return;
  parked.set_rank(static_cast<int32_t>(still.waits_for->first));
  parked.set_clock(still.waits_for->second);
}

void PullReplies::Attach(const Payload& payload) {
  Reply& reply = replies_[last_];
  reply.out.message.payloads.push_back(payload);
  reply.bytes += payload.size();
  bytes_ += payload.size();
}

std::vector<Outgoing> PullReplies::Take() {
  std::vector<Outgoing> messages;
  messages.reserve(replies_.size());
  for (Reply& reply : replies_) messages.push_back(std::move(reply.out));
  replies_.clear();
  last_to_.clear();
  bytes_ = 0;
  return messages;
}

size_t PullReplies::ReplyTo(const PeerId& to) {
  const auto [at, added] = last_to_.try_emplace(to, replies_.size());
  if (!added) {
    const Reply& reply = replies_[at->second];
    if (reply.bytes < bytes_max_ &&
        reply.out.message.header.pull_reply().answer_size() < kAnswersMax) {
      return at->second;
    }
    at->second = replies_.size();
  }
  replies_.emplace_back().out.to = to;
  return at->second;
}

}  // namespace slackline
