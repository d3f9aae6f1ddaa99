#include "server/shard/pull_replies.h"

#include <utility>

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

size_t PullReplies::Attach(const Payload& payload) {
  Reply& reply = replies_[last_];
  reply.out.message.payloads.push_back(payload);
  reply.bytes += payload.size();
  bytes_ += payload.size();
  return payload.size();
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
