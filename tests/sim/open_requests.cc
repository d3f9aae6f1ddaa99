#include "tests/sim/open_requests.h"

#include <algorithm>

namespace slackline::sim {

const char* OpenRequests::KindName(Kind kind) {
  constexpr const char* kNames[] = {"pull of shard", "push to shard", "call",
                                    "join", "checkpoint"};
  return kNames[static_cast<int>(kind)];
}

void OpenRequests::Begin(Kind kind, const PeerId& who, uint64_t what,
                         absl::Time now, uint64_t newest) {
  Open& open =
      open_.try_emplace({kind, who, what}, Open{.since = now}).first->second;
  open.newest = std::max(open.newest, newest);
}

void OpenRequests::End(Kind kind, const PeerId& who, uint64_t what) {
  answered_ += static_cast<int64_t>(open_.erase({kind, who, what}));
}

void OpenRequests::OnSent(const PeerId& from, const Message& message,
                          absl::Time now) {
  const wire::Header& header = message.header;
  switch (header.body_case()) {
    case wire::Header::kPullRequest:
      for (const wire::Pull& pull : header.pull_request().pull()) {
        for (const int32_t shard : pull.shard())
          Begin(Kind::kPull, from, static_cast<uint64_t>(shard), now);
      }
      return;
    case wire::Header::kPushRequest:
      for (const wire::Push& push : header.push_request().push()) {
        Begin(Kind::kPush, from, static_cast<uint64_t>(push.shard()), now,
              push.seq());
      }
      return;
    case wire::Header::kCall:
      // That one may wait for the others' last steps, and be given up.
      if (header.call().has_next_examples() ||
          done_.count({from, header.call().call_id()}) > 0) {
        return;
      }
      return Begin(
          header.call().has_checkpoint() ? Kind::kCheckpoint : Kind::kCall,
          from, header.call().call_id(), now);
    case wire::Header::kJoinRequest:
      return Begin(Kind::kJoin, from, header.join_request().token(), now);
    case wire::Header::kHeartbeat:
      // It has joined. After a pause it may have asked once more for what lay
      // there already.
      std::erase_if(open_, [&](const auto& entry) {
        const auto& [kind, who, what] = entry.first;
        return kind == Kind::kJoin && who == from;
      });
      return;
    default:
      return;
  }
}

void OpenRequests::OnReached(const PeerId& to, const Message& message,
                             absl::Time now) {
  const wire::Header& header = message.header;
  switch (header.body_case()) {
    case wire::Header::kPullReply:
      for (const wire::PullAnswer& answer : header.pull_reply().answer()) {
        // It is sent again after RETRY and MOVED, and follows after PARKED.
        if (answer.has_parked() || answer.refusal().has_retry() ||
            answer.refusal().has_moved()) {
          continue;
        }
        End(Kind::kPull, to, static_cast<uint64_t>(answer.shard()));
      }
      return;
    case wire::Header::kPushReply:
      for (const wire::PushAnswer& answer : header.push_reply().answer()) {
        const auto shard = static_cast<uint64_t>(answer.shard());
        const auto open = open_.find({Kind::kPush, to, shard});
        if (open == open_.end()) continue;
        if (answer.accepted_seq() >= open->second.newest ||
            answer.refusal().has_fenced()) {
          End(Kind::kPush, to, shard);
        } else if (answer.accepted_seq() > 0) {
          open->second.since = now;
        }
      }
      return;
    case wire::Header::kErrorReply:
      if (to.kind == PeerId::Kind::kWorker) OnGone(to);
      return;
    case wire::Header::kCallReply:
      if (header.call_reply().code() == wire::OK &&
          to.kind != PeerId::Kind::kObserver) {
        done_.emplace(to, header.call_reply().call_id());
      }
      End(Kind::kCheckpoint, to, header.call_reply().call_id());
      return End(Kind::kCall, to, header.call_reply().call_id());
    case wire::Header::kJoinReply:
      return End(Kind::kJoin, to, header.join_reply().token());
    default:
      return;
  }
}

void OpenRequests::OnGone(const PeerId& who) {
  std::erase_if(open_, [&](const auto& entry) {
    return std::get<PeerId>(entry.first) == who;
  });
  std::erase_if(done_, [&](const auto& call) { return call.first == who; });
}

std::optional<OpenRequests::Waiting> OpenRequests::Oldest(
    bool soon, absl::Time before) const {
  std::optional<Waiting> oldest;
  for (const auto& [key, open] : open_) {
    const auto& [kind, who, what] = key;
    const bool is_soon = kind == Kind::kCall || kind == Kind::kJoin;
    if (is_soon != soon || open.since >= before ||
        (oldest.has_value() && oldest->since <= open.since)) {
      continue;
    }
    oldest =
        Waiting{.kind = kind, .who = who, .what = what, .since = open.since};
  }
  return oldest;
}

}  // namespace slackline::sim
