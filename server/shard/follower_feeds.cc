#include "server/shard/follower_feeds.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "common/status.h"

namespace slackline {
FollowerFeeds::FollowerFeeds(const LogFeedOptions& options, ShardId shard,
                             const LogPosition& begins_at, uint64_t term,
                             std::vector<Known> awaited)
    : options_(options),
      shard_(shard),
      begins_at_(begins_at),
      term_(term),
      newest_(begins_at.index),
      awaited_(std::move(awaited)),
      gather_max_(options.gather_max) {}

void FollowerFeeds::Begin(Owner follower, uint64_t since, bool awaited,
                          bool known, const ShardMachine& shard,
                          absl::Time now) {
  SendEach();  // A snapshot of now has these.
  wire::Feed feed;
  feed.set_follower(since);
  feed.set_term(term_);
  // Whoever follows the shard already has it as it was when the term began,
  // unless it has missed something; then it says so.
  const bool resumes = shard.position().index == begins_at_.index;
  members_.push_back(
      {.feed = resumes
                   ? LogFeed(options_, follower, feed, shard_, begins_at_, now)
                   : LogFeed(options_, follower, feed, shard, now),
       .who = {.server = follower.server, .since = since},
       .awaited_from =
           awaited ? std::optional(shard.position().index) : std::nullopt,
       .known = known});
}

void FollowerFeeds::Follow(absl::Span<const wire::Follower> listed, Owner self,
                           uint64_t keep, const ShardMachine& shard,
                           absl::Time now) {
  std::erase_if(members_, [&](const Member& member) {
    return member.who.since != keep &&
           std::none_of(
               listed.begin(), listed.end(), [&](const wire::Follower& entry) {
                 return member.who == Known{entry.server(), entry.since()};
               });
  });
  for (const wire::Follower& entry : listed) {
    if (entry.server() == self.server) continue;
    const Known who{.server = entry.server(), .since = entry.since()};
    const auto member =
        std::find_if(members_.begin(), members_.end(),
                     [&](const Member& other) { return other.who == who; });
    if (member == members_.end()) {
      const bool awaited =
          entry.in_sync() || absl::c_linear_search(awaited_, who);
      Begin({entry.server(), entry.thread()}, entry.since(), awaited,
            entry.in_sync(), shard, now);
    } else if (entry.in_sync()) {
      member->known = true;
      if (!member->awaited_from.has_value())
        member->awaited_from = shard.position().index;
    }
  }
}

void FollowerFeeds::Add(Owner follower, uint64_t since,
                        const ShardMachine& shard, absl::Time now) {
  Begin(follower, since, /*awaited=*/true, /*known=*/true, shard, now);
}

void FollowerFeeds::OnRecord(const ShardRecord& record,
                             const ShardOutcome& outcome,
                             const ShardMachine& shard, absl::Time now) {
  newest_ = shard.position().index;
  if (empty()) return;
  const auto* const gradient = std::get_if<GradientRecord>(&record);
  if (gradient == nullptr || !gradient->held) {
    SendEach();
    return AddToFeeds(record, shard.position());
  }
  gathered_.push_back({.record = *gradient, .after = shard.position()});
  gather_until_ = now + gather_max_;
  const bool complete = !outcome.updates.empty();
  const size_t of_clock =
      complete ? outcome.updates.front().ranks.size() : shard.held().size();
  if (of_clock > gathered_.size() || (complete && of_clock == 1)) {
    SendEach();  // Some of the clock have been sent, so a sum is of no use.
  } else if (complete) {
    SendSum(outcome.updates.front().sum);
  }
}

void FollowerFeeds::SendEach() {
  for (const Gathered& gathered : std::exchange(gathered_, {}))
    AddToFeeds(gathered.record, gathered.after);
  gather_until_ = absl::InfiniteFuture();
}

void FollowerFeeds::SendSum(const Payload& sum) {
  const LogPosition after = gathered_.back().after;
  const GradientRecord first =
      std::ranges::min(gathered_, {}, [](const Gathered& gathered) {
        return gathered.record.who.rank;
      }).record;
  SumRecord record{.clock = first.clock,
                   .who = {},
                   .sum = sum,
                   .spare = first.spare,
                   .options = first.options,
                   .rms = {}};
  bool measured = false;
  std::ranges::sort(gathered_, {}, [](const Gathered& gathered) {
    return gathered.record.who.rank;
  });
  for (const Gathered& gathered : gathered_) {
    record.who.push_back(gathered.record.who);
    if (gathered.record.rms != 0) measured = true;
    record.rms.push_back(gathered.record.rms);
  }
  if (!measured) record.rms.clear();
  gathered_.clear();
  gather_until_ = absl::InfiniteFuture();
  AddToFeeds(record, after);
}

void FollowerFeeds::AddToFeeds(const ShardRecord& record,
                               const LogPosition& after) {
  for (Member& member : members_) {
    member.feed.OnRecord(record, after);
    // What was applied since, and gathered, somebody may have been told.
    if (member.feed.TooFarBehind() && !member.awaited_from.has_value())
      member.awaited_from = newest_;
  }
}

const LogFeed* FollowerFeeds::FeedTo(Owner follower) const {
  for (const Member& member : members_) {
    if (member.feed.target() == follower) return &member.feed;
  }
  return nullptr;
}

LogFeed* FollowerFeeds::FindFeed(Owner follower) {
  return const_cast<LogFeed*>(std::as_const(*this).FeedTo(follower));
}

bool FollowerFeeds::OnReply(Owner follower, const wire::HandOverReply& reply,
                            const ShardMachine& shard, absl::Time now) {
  LogFeed* const feed = FindFeed(follower);
  if (feed == nullptr) return false;
  if (reply.lacks()) SendEach();  // A snapshot of now has these.
  feed->OnReply(reply, &shard, now);
  bool news = false;
  for (Member& member : members_) {
    if (!member.feed.confirmed().has_value()) continue;
    if (!member.awaited_from.has_value())
      member.awaited_from = shard.position().index;
    news |= member.InSync() && !member.known &&
            !std::exchange(member.reported, true);
  }
  return news;
}

bool FollowerFeeds::Have(uint64_t index) const {
  return std::all_of(
      members_.begin(), members_.end(), [&](const Member& member) {
        return !member.awaited_from.has_value() || member.Has(index);
      });
}

size_t FollowerFeeds::Pump(absl::Time now,
                           absl::FunctionRef<FeedLink&(Owner)> link_to,
                           absl::FunctionRef<void(Owner, Message)> send) {
  if (now >= gather_until_) SendEach();
  size_t again = 0;
  std::vector<Message> messages;
  absl::Duration round_trip;
  for (Member& member : members_) {
    const Owner target = member.feed.target();
    FeedLink& link = link_to(target);
    round_trip = std::max(round_trip, link.round_trip().smoothed());
    again += member.feed.Pump(link, now, &messages);
    for (Message& message : messages) send(target, std::move(message));
    messages.clear();
  }
  gather_max_ = std::max(options_.gather_max,
                         std::min(4 * round_trip, options_.gather_limit));
  return again;
}

void FollowerFeeds::BeginMove(Owner target, absl::Time now) {
  if (LogFeed* const feed = FindFeed(target)) feed->BeginMove(now);
}

absl::Time FollowerFeeds::NextWakeup() const {
  absl::Time next = gather_until_;
  for (const Member& member : members_)
    next = std::min(next, member.feed.NextWakeup());
  return next;
}

bool FollowerFeeds::AllConfirmed() const {
  return gathered_.empty() &&
         absl::c_all_of(members_, [](const Member& member) {
           return member.feed.CaughtUp();
         });
}

wire::Go FollowerFeeds::GoTo(Owner target, uint64_t move) const {
  wire::Go go;
  go.set_move(move);
  for (const Member& member : members_) {
    if (!member.awaited_from.has_value() || member.feed.target() == target)
      continue;
    wire::Go::InSync& in_sync = *go.add_in_sync();
    in_sync.set_server(member.feed.target().server);
    in_sync.set_thread(member.feed.target().thread);
    in_sync.set_since(member.who.since);
  }
  return go;
}

LogFeed FollowerFeeds::Take(Owner follower) {
  const auto member = std::find_if(
      members_.begin(), members_.end(),
      [&](const Member& other) { return other.feed.target() == follower; });
  SL_CHECK(member != members_.end() && gathered_.empty(),
           "not one of the followers, or it has not caught up");
  LogFeed feed = std::move(member->feed);
  members_.erase(member);
  return feed;
}

std::vector<FollowerFeeds::Known> FollowerFeeds::Awaited() const {
  std::vector<Known> awaited;
  for (const Member& member : members_) {
    if (member.awaited_from.has_value()) awaited.push_back(member.who);
  }
  return awaited;
}

void FollowerFeeds::Report(run::ServerStats* stats) const {
  for (const Member& member : members_) {
    if (member.known) continue;
    run::FollowerState& state = *stats->add_follower();
    state = member.feed.ReportFollower();
    state.set_in_sync(member.InSync());
  }
}

}  // namespace slackline
