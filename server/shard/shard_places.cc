#include "server/shard/shard_places.h"

#include <algorithm>
#include <iterator>

#include "common/status.h"
#include "server/shard/shard_peers.h"

namespace slackline {
namespace {

void Append(ShardPlaces::Waiting waiting, ShardPlaces::Requests* waited) {
  std::move(waiting.requests.begin(), waiting.requests.end(),
            std::back_inserter(*waited));
}

// `waiting` is nullptr if the shard does not leave.
void TakeLeft(ServedShard& shard, ShardPlaces::Waiting* waiting,
              ShardPlaces::Left* left) {
  left->parked = shard.TakeParked();
  if (waiting != nullptr) Append(std::move(*waiting), &left->requests);
}

}  // namespace

// ---- Where a shard is -------------------------------------------------------

ShardPlaces::Place* ShardPlaces::Find(ShardId shard) {
  const auto found = places_.find(shard);
  return found == places_.end() ? nullptr : &found->second;
}

const ShardPlaces::Place* ShardPlaces::Find(ShardId shard) const {
  const auto found = places_.find(shard);
  return found == places_.end() ? nullptr : &found->second;
}

template <typename State>
State* ShardPlaces::FindAs(ShardId shard) {
  return std::get_if<State>(Find(shard));
}

template <typename State>
const State* ShardPlaces::FindAs(ShardId shard) const {
  return std::get_if<State>(Find(shard));
}

ShardPlaces::Serving* ShardPlaces::FindServed(ShardId shard) {
  Place* const place = Find(shard);
  auto* const leaving = std::get_if<Leaving>(place);
  return leaving != nullptr ? &leaving->served : std::get_if<Serving>(place);
}

ServedShard* ShardPlaces::Served(ShardId shard) {
  Serving* const served = FindServed(shard);
  return served == nullptr ? nullptr : &served->shard;
}

const ServedShard* ShardPlaces::Served(ShardId shard) const {
  return const_cast<ShardPlaces*>(this)->Served(shard);
}

const ShardFeeds* ShardPlaces::Feeds(ShardId shard) const {
  const Serving* const served =
      const_cast<ShardPlaces*>(this)->FindServed(shard);
  return served == nullptr ? nullptr : &served->feeds;
}

LogCopy* ShardPlaces::Copy(ShardId shard) {
  Place* const place = Find(shard);
  if (auto* const following = std::get_if<Following>(place))
    return &following->copy;
  auto* const gone = std::get_if<Gone>(place);
  return gone == nullptr || !gone->copy.has_value() ? nullptr : &*gone->copy;
}

const LogCopy* ShardPlaces::Copy(ShardId shard) const {
  return const_cast<ShardPlaces*>(this)->Copy(shard);
}

const ShardMachine* ShardPlaces::WholeCopy(ShardId shard) const {
  const LogCopy* const copy = Copy(shard);
  return copy == nullptr ? nullptr : copy->machine();
}

LogCopy* ShardPlaces::Arriving(ShardId shard) {
  auto* const arrival = FindAs<Arrival>(shard);
  return arrival == nullptr ? nullptr : &arrival->copy;
}

const ShardPlaces::Leaving* ShardPlaces::FindLeaving(ShardId shard) const {
  return FindAs<Leaving>(shard);
}

const ShardPlaces::Gone* ShardPlaces::FindGone(ShardId shard) const {
  return FindAs<Gone>(shard);
}

bool ShardPlaces::IsArriving(ShardId shard) const {
  return FindAs<Arrival>(shard) != nullptr;
}

bool ShardPlaces::IsFollowing(ShardId shard) const {
  return FindAs<Following>(shard) != nullptr;
}

LogFeed* ShardPlaces::MoveFeed(ShardId shard) {
  Place* const place = Find(shard);
  if (auto* const leaving = std::get_if<Leaving>(place))
    return leaving->served.feeds.move_feed();
  auto* const gone = std::get_if<Gone>(place);
  return gone == nullptr ? nullptr : &gone->feed;
}

const LogFeed* ShardPlaces::MoveFeed(ShardId shard) const {
  return const_cast<ShardPlaces*>(this)->MoveFeed(shard);
}

ShardPlaces::Waiting* ShardPlaces::FindWaiting(ShardId shard) {
  Place* const place = Find(shard);
  if (auto* const leaving = std::get_if<Leaving>(place))
    return &leaving->waiting;
  auto* const arrival = std::get_if<Arrival>(place);
  return arrival == nullptr ? nullptr : &arrival->waiting;
}

const ShardPlaces::Waiting* ShardPlaces::WaitingFor(ShardId shard) const {
  return const_cast<ShardPlaces*>(this)->FindWaiting(shard);
}

uint64_t ShardPlaces::MoveOf(ShardId shard) const {
  if (const auto* const leaving = FindAs<Leaving>(shard)) return leaving->move;
  if (const auto* const gone = FindAs<Gone>(shard)) return gone->move;
  const auto* const arrival = FindAs<Arrival>(shard);
  SL_CHECK(arrival != nullptr, "a shard that is not on its way");
  return arrival->copy.feed().move();
}

std::vector<ServedShard*> ShardPlaces::AllServed() {
  std::vector<ServedShard*> served;
  for (const auto& [id, place] : places_) {
    if (ServedShard* const shard = Served(id)) served.push_back(shard);
  }
  std::sort(served.begin(), served.end(),
            [](const ServedShard* a, const ServedShard* b) {
              return a->range().shard < b->range().shard;
            });
  return served;
}

std::vector<const ServedShard*> ShardPlaces::AllServed() const {
  const std::vector<ServedShard*> served =
      const_cast<ShardPlaces*>(this)->AllServed();
  return {served.begin(), served.end()};
}

size_t ShardPlaces::copies_count() const {
  return static_cast<size_t>(std::count_if(
      places_.begin(), places_.end(),
      [&](const auto& entry) { return Copy(entry.first) != nullptr; }));
}

size_t ShardPlaces::waiting_count() const {
  size_t count = 0;
  for (const ShardId shard : moving_) {
    if (const Waiting* const waiting = WaitingFor(shard))
      count += waiting->requests.size();
  }
  return count;
}

size_t ShardPlaces::waiting_bytes() const {
  size_t bytes = 0;
  for (const ShardId shard : moving_) {
    if (const Waiting* const waiting = WaitingFor(shard))
      bytes += waiting->bytes;
  }
  return bytes;
}

void ShardPlaces::Report(run::ServerStats* stats) const {
  size_t held = 0;
  Clock reached = 0;
  int64_t parked = 0;
  const std::vector<const ServedShard*> served = AllServed();
  for (const ServedShard* const shard : served) {
    held += shard->machine().waiting_count();
    const bool more = !shard->machine().held().empty();
    reached =
        std::max(reached, shard->machine().complete_clock() + (more ? 1 : 0));
    parked += static_cast<int64_t>(shard->gate().parked_count());
    Feeds(shard->range().shard)->followers().Report(stats);
  }
  for (const ShardId shard : moving_) {
    const Leaving* const leaving = FindLeaving(shard);
    const LogFeed* const feed =
        leaving == nullptr ? MoveFeed(shard)
                           : leaving->served.feeds.FeedTo(leaving->target);
    if (feed == nullptr) continue;
    run::HandOverState& state = *stats->add_hand_over();
    state = feed->Report();
    state.set_move(MoveOf(shard));
    const Gone* const gone = FindGone(shard);
    state.set_state(gone != nullptr && gone->lost ? run::HandOverState::LOST
                    : feed->owned_by_target()     ? run::HandOverState::DONE
                                              : run::HandOverState::COPYING);
  }
  std::sort(stats->mutable_follower()->begin(),
            stats->mutable_follower()->end(),
            [](const run::FollowerState& a, const run::FollowerState& b) {
              return std::pair(a.shard(), a.server()) <
                     std::pair(b.shard(), b.server());
            });
  stats->set_shards(static_cast<int32_t>(served.size()));
  stats->set_copies(static_cast<int32_t>(copies_count()));
  stats->set_held(held);
  stats->set_reached_clock(reached);
  stats->set_pulls_parked(parked);
}

// ---- Events -----------------------------------------------------------------

ShardPlaces::Place& ShardPlaces::Put(ShardId shard, Place place) {
  const auto [entry, added] = places_.try_emplace(shard, std::move(place));
  SL_CHECK(added, "the shard has a place already");
  Classify(shard);
  return entry->second;
}

ShardPlaces::Place& ShardPlaces::Become(ShardId shard, Place place) {
  Place& present = places_.at(shard);
  present = std::move(place);
  Classify(shard);
  return present;
}

void ShardPlaces::End(ShardId shard) {
  places_.erase(shard);
  Classify(shard);
}

void ShardPlaces::Classify(ShardId shard) {
  const Place* const place = Find(shard);
  const bool served = Served(shard) != nullptr;
  if (place == nullptr || std::holds_alternative<Serving>(*place) ||
      std::holds_alternative<Following>(*place)) {
    moving_.erase(shard);
  } else {
    moving_.insert(shard);
  }
  if (served) return;
  to_pump_.erase(shard);
  unconfirmed_.erase(shard);
}

ServedShard& ShardPlaces::Begin(Serving shard) {
  const ShardId id = shard.shard.range().shard;
  Put(id, std::move(shard));
  to_pump_.insert(id);
  return *Served(id);
}

LogCopy& ShardPlaces::Follow(ShardId shard, LogCopy copy) {
  return std::get<Following>(Put(shard, Following{std::move(copy)})).copy;
}

LogCopy& ShardPlaces::Arrive(ShardId shard, LogCopy copy) {
  return std::get<Arrival>(Put(shard, Arrival{.copy = std::move(copy)})).copy;
}

ServedShard& ShardPlaces::Own(Serving shard, Requests* waited) {
  const ShardId id = shard.shard.range().shard;
  SL_CHECK(IsArriving(id) || Copy(id) != nullptr,
           "a shard to own of which there is no copy");
  if (auto* const arrival = FindAs<Arrival>(id))
    Append(std::move(arrival->waiting), waited);
  Become(id, std::move(shard));
  to_pump_.insert(id);
  return *Served(id);
}

void ShardPlaces::Leave(ShardId shard, uint64_t move, Owner target,
                        absl::Time now) {
  auto* const serving = FindAs<Serving>(shard);
  SL_CHECK(serving != nullptr, "a shard to leave that is not just served");
  serving->feeds.BeginMove(target, move, serving->shard.machine(), now);
  Serving served = std::move(*serving);
  Become(shard,
         Leaving{.served = std::move(served), .move = move, .target = target});
}

void ShardPlaces::Stay(ShardId shard, Requests* waited) {
  auto* const leaving = FindAs<Leaving>(shard);
  SL_CHECK(leaving != nullptr, "a shard to stay that does not leave");
  Append(std::move(leaving->waiting), waited);
  leaving->served.feeds.EndMove();
  Serving served = std::move(leaving->served);
  Become(shard, std::move(served));
}

LogFeed& ShardPlaces::Go(ShardId shard, const Region& most, absl::Time now,
                         Left* left) {
  auto* const leaving = FindAs<Leaving>(shard);
  SL_CHECK(leaving != nullptr, "a shard to go that does not leave");
  TakeLeft(leaving->served.shard, &leaving->waiting, left);
  const bool swap = leaving->served.feeds.move_feed() == nullptr;
  Gone gone{
      .feed = leaving->served.feeds.Go(leaving->target, leaving->move, now),
      .move = leaving->move};
  if (swap) {
    wire::Feed name;
    name.set_follower(leaving->move);
    gone.copy.emplace(PeerOf(leaving->target), name, most,
                      leaving->served.shard.TakeMachine());
  }
  return std::get<Gone>(Become(shard, std::move(gone))).feed;
}

void ShardPlaces::Lose(ShardId shard) {
  auto* const gone = FindAs<Gone>(shard);
  SL_CHECK(gone != nullptr, "a shard to lose that has not gone");
  gone->lost = true;
}

void ShardPlaces::KeepCopy(ShardId shard) {
  auto* const gone = FindAs<Gone>(shard);
  SL_CHECK(gone != nullptr && gone->copy.has_value(),
           "a shard to keep a copy of, of which there is none");
  LogCopy copy = *std::move(gone->copy);
  Become(shard, Following{std::move(copy)});
}

void ShardPlaces::GiveUp(ShardId shard, Requests* waited) {
  SL_CHECK(IsArriving(shard) || FindGone(shard) != nullptr,
           "a shard to give up that neither arrives nor has gone");
  if (auto* const arrival = FindAs<Arrival>(shard))
    Append(std::move(arrival->waiting), waited);
  End(shard);
}

void ShardPlaces::Unfollow(ShardId shard) {
  SL_CHECK(IsFollowing(shard), "a shard to follow no more that is not");
  End(shard);
}

void ShardPlaces::Depose(ShardId shard, Left* left) {
  ServedShard* const served = Served(shard);
  SL_CHECK(served != nullptr, "a shard to depose that is not served");
  TakeLeft(*served, FindWaiting(shard), left);
  End(shard);
}

void ShardPlaces::Wait(ShardId shard, Outgoing request, size_t bytes) {
  Waiting* const waiting = FindWaiting(shard);
  SL_CHECK(waiting != nullptr, "a shard to wait for whose owner is clear");
  waiting->requests.push_back(std::move(request));
  waiting->bytes += bytes;
}

// ---- Feeds ------------------------------------------------------------------

void ShardPlaces::OnRecord(const Called& called, const ShardRecord& record,
                           const ShardOutcome& outcome, absl::Time now) {
  Serving& served = called.served_;
  served.feeds.OnRecord(record, outcome, served.shard.machine(), now);
  if (!served.feeds.followers().empty())
    to_pump_.insert(served.shard.range().shard);
}

FollowerFeeds& ShardPlaces::ChangeFollowers(ShardId shard) {
  to_pump_.insert(shard);
  return FindServed(shard)->feeds.followers();
}

size_t ShardPlaces::PumpFollowers(
    ShardId shard, absl::Time now, absl::FunctionRef<FeedLink&(Owner)> link_to,
    absl::FunctionRef<void(Owner, Message)> send) {
  FollowerFeeds& followers = FindServed(shard)->feeds.followers();
  const size_t again = followers.Pump(now, link_to, send);
  if (followers.AllConfirmed()) {
    unconfirmed_.erase(shard);
  } else {
    unconfirmed_.insert(shard);
  }
  return again;
}

absl::Time ShardPlaces::WakeFollowers(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (const ShardId shard : unconfirmed_) {
    const absl::Time wakeup = FindServed(shard)->feeds.followers().NextWakeup();
    if (wakeup <= now) {
      to_pump_.insert(shard);
    } else {
      next = std::min(next, wakeup);
    }
  }
  return next;
}

}  // namespace slackline
