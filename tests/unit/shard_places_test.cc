// Goal: a shard's place changes as the table in shard_places.h says and in no
// other way, and the sets of shards agree with the places at any time.
// Method: every event in every place; random events against a twin that keeps
// a few words for each shard and computes each set anew; examples for the
// requests that wait.
#include "server/shard/shard_places.h"

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/shard_machine_fixture.h"

namespace slackline::shard_places_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kMove = 7;
constexpr Owner kTarget{1, 0};
const absl::Time kNow = absl::UnixEpoch();

ShardMachine MachineOf(ShardId shard) {
  const ShardMachine machine = NewMachine(kPlainSgd, 1);
  ShardRange range = machine.shard().range();
  range.shard = shard;
  return ShardMachine::Create(machine.rule(), range, machine.Snapshot())
      .value();
}

// One with a follower that has confirmed nothing, to which it may move, or with
// none.
ShardPlaces::Serving ServedOf(ShardId shard, bool followed) {
  const auto rules =
      std::make_shared<const ServedShard::Rules>(ServedShard::Rules{
          .table = "t", .memory = std::make_shared<PayloadMemory>()});
  ShardMachine machine = MachineOf(shard);
  ShardFeeds feeds({}, machine, /*term=*/1, {});
  ServedShard served(rules, std::move(machine), /*term=*/1);
  if (followed) {
    wire::Follower follower;
    follower.set_server(kTarget.server);
    follower.set_thread(kTarget.thread);
    follower.set_since(1);
    feeds.followers().Follow({follower}, /*self=*/{0, 0}, /*keep=*/0,
                             served.machine(), kNow);
  }
  return {.shard = std::move(served), .feeds = std::move(feeds)};
}

LogCopy CopyOf(ShardId shard) {
  wire::Feed feed;
  feed.set_move(kMove);
  return LogCopy(PeerId{.kind = PeerId::Kind::kShardThread}, feed,
                 {2, 2 + kMachineElements}, MachineOf(shard));
}

enum class Place {
  kNone,
  kArriving,
  kServing,
  kLeaving,
  kGone,
  kGoneWithCopy,
  kFollowing
};
constexpr std::array kPlaces = {
    Place::kNone, Place::kArriving,     Place::kServing,  Place::kLeaving,
    Place::kGone, Place::kGoneWithCopy, Place::kFollowing};

enum class Event {
  kBegin,
  kFollow,
  kArrive,
  kOwn,
  kLeave,
  kStay,
  kGo,
  kLose,
  kKeepCopy,
  kGiveUp,
  kUnfollow,
  kDepose
};
constexpr std::array kEvents = {
    Event::kBegin,    Event::kFollow, Event::kArrive,   Event::kOwn,
    Event::kLeave,    Event::kStay,   Event::kGo,       Event::kLose,
    Event::kKeepCopy, Event::kGiveUp, Event::kUnfollow, Event::kDepose};

// The table of shard_places.h. `followed`: by the thread that the shard moves
// to, if the shard is served. nullopt: fatal.
std::optional<Place> After(Place before, Event event, bool followed) {
  using Rows = std::map<Event, std::map<Place, Place>>;
  static const Rows rows = {
      {Event::kBegin, {{Place::kNone, Place::kServing}}},
      {Event::kFollow, {{Place::kNone, Place::kFollowing}}},
      {Event::kArrive, {{Place::kNone, Place::kArriving}}},
      {Event::kOwn,
       {{Place::kArriving, Place::kServing},
        {Place::kGoneWithCopy, Place::kServing},
        {Place::kFollowing, Place::kServing}}},
      {Event::kLeave, {{Place::kServing, Place::kLeaving}}},
      {Event::kStay, {{Place::kLeaving, Place::kServing}}},
      {Event::kGo, {{Place::kLeaving, Place::kGone}}},
      {Event::kLose,
       {{Place::kGone, Place::kGone},
        {Place::kGoneWithCopy, Place::kGoneWithCopy}}},
      {Event::kKeepCopy, {{Place::kGoneWithCopy, Place::kFollowing}}},
      {Event::kGiveUp,
       {{Place::kArriving, Place::kNone},
        {Place::kGone, Place::kNone},
        {Place::kGoneWithCopy, Place::kNone}}},
      {Event::kUnfollow, {{Place::kFollowing, Place::kNone}}},
      {Event::kDepose,
       {{Place::kServing, Place::kNone}, {Place::kLeaving, Place::kNone}}}};
  const std::map<Place, Place>& row = rows.at(event);
  const auto found = row.find(before);
  if (found != row.end() && event == Event::kGo && followed)
    return Place::kGoneWithCopy;
  return found == row.end() ? std::nullopt : std::optional(found->second);
}

void Do(ShardPlaces& places, Event event, ShardId shard, bool followed,
        ShardPlaces::Requests* waited) {
  ShardPlaces::Left left{.parked = {}, .requests = *waited};
  switch (event) {
    case Event::kBegin:
      places.Begin(ServedOf(shard, followed));
      return;
    case Event::kFollow:
      places.Follow(shard, CopyOf(shard));
      return;
    case Event::kArrive:
      places.Arrive(shard, CopyOf(shard));
      return;
    case Event::kOwn:
      places.Own(ServedOf(shard, followed), waited);
      return;
    case Event::kLeave:
      places.Leave(shard, kMove, kTarget, kNow);
      return;
    case Event::kStay:
      places.Stay(shard, waited);
      return;
    case Event::kGo:
      places.Go(shard, {2, 2 + kMachineElements}, kNow, &left);
      *waited = left.requests;
      return;
    case Event::kLose:
      places.Lose(shard);
      return;
    case Event::kKeepCopy:
      places.KeepCopy(shard);
      return;
    case Event::kGiveUp:
      places.GiveUp(shard, waited);
      return;
    case Event::kUnfollow:
      places.Unfollow(shard);
      return;
    case Event::kDepose:
      places.Depose(shard, &left);
      *waited = left.requests;
      return;
  }
}

Place PlaceOf(const ShardPlaces& places, ShardId shard) {
  if (!places.Has(shard)) return Place::kNone;
  if (places.IsArriving(shard)) return Place::kArriving;
  if (places.IsFollowing(shard)) return Place::kFollowing;
  if (places.FindLeaving(shard) != nullptr) return Place::kLeaving;
  if (const ShardPlaces::Gone* const gone = places.FindGone(shard))
    return gone->copy.has_value() ? Place::kGoneWithCopy : Place::kGone;
  return Place::kServing;
}

// Brings a shard that has no place there by the shortest way. `followed` is as
// that of After().
void BringTo(ShardPlaces& places, Place place, ShardId shard, bool followed) {
  static const std::map<Place, std::vector<Event>> ways = {
      {Place::kNone, {}},
      {Place::kArriving, {Event::kArrive}},
      {Place::kServing, {Event::kBegin}},
      {Place::kLeaving, {Event::kBegin, Event::kLeave}},
      {Place::kGone, {Event::kBegin, Event::kLeave, Event::kGo}},
      {Place::kGoneWithCopy, {Event::kBegin, Event::kLeave, Event::kGo}},
      {Place::kFollowing, {Event::kFollow}}};
  ShardPlaces::Requests waited;
  if (place == Place::kGone) followed = false;
  if (place == Place::kGoneWithCopy) followed = true;
  for (const Event event : ways.at(place))
    Do(places, event, shard, followed, &waited);
}

TEST(ShardPlacesTest, EachEventInEachPlaceDoesWhatTheTableSays) {
  const ShardId shard{3};
  for (const Place before : kPlaces) {
    for (const Event event : kEvents) {
      for (const bool followed : {false, true}) {
        SCOPED_TRACE(absl::StrCat("place ", static_cast<int>(before),
                                  ", event ", static_cast<int>(event),
                                  followed ? ", followed" : ""));
        ShardPlaces places;
        BringTo(places, before, shard, followed);
        ASSERT_EQ(PlaceOf(places, shard), before);
        ShardPlaces::Requests waited;
        const std::optional<Place> after = After(before, event, followed);
        if (after.has_value()) {
          Do(places, event, shard, followed, &waited);
          EXPECT_EQ(PlaceOf(places, shard), *after);
        } else if (!followed) {  // One death of each pair is enough.
          EXPECT_DEATH(Do(places, event, shard, followed, &waited), "shard");
        }
      }
    }
  }
}

// What a shard thread has to know of one shard, with each fact by itself.
struct Twin {
  Place place = Place::kNone;
  bool followed = false;
  bool to_pump = false;
  bool unconfirmed = false;
  bool served() const {
    return place == Place::kServing || place == Place::kLeaving;
  }
  bool moving() const {
    return place == Place::kArriving || place == Place::kLeaving ||
           place == Place::kGone || place == Place::kGoneWithCopy;
  }
};

class ShardPlacesProperty : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ShardPlacesProperty, TheSetsAgreeWithThePlacesAfterRandomEvents) {
  SCOPED_TRACE(absl::StrCat("seed ", GetParam()));
  Rng rng(GetParam());
  ShardPlaces places;
  FeedLink link{FeedLink::Options()};
  std::map<ShardId, Twin> twins;
  for (int i = 0; i < 6; ++i) twins[ShardId{i}];
  for (int step = 0; step < 200; ++step) {
    const ShardId shard{static_cast<int32_t>(rng.Below(twins.size()))};
    Twin& twin = twins[shard];
    switch (rng.Below(5)) {
      case 0:
        if (!twin.served()) break;
        places.ChangeFollowers(shard);
        twin.to_pump = true;
        break;
      case 1: {
        std::set<ShardId> to_pump;
        for (auto& [id, other] : twins) {
          if (std::exchange(other.to_pump, false)) to_pump.insert(id);
        }
        EXPECT_EQ(places.TakeToPump(), to_pump);
        break;
      }
      case 2:
        if (!twin.served()) break;
        places.PumpFollowers(
            shard, kNow, [&](Owner) -> FeedLink& { return link; },
            [](Owner, const Message&) {});
        twin.unconfirmed = twin.followed;
        break;
      default: {
        const Event event = kEvents[rng.Below(kEvents.size())];
        const std::optional<Place> after =
            After(twin.place, event, twin.followed);
        if (!after.has_value()) continue;
        const bool followed = rng.Chance(0.5);
        ShardPlaces::Requests waited;
        Do(places, event, shard, followed, &waited);
        twin.place = *after;
        if (event == Event::kBegin || event == Event::kOwn) {
          twin.followed = followed;
          twin.to_pump = true;
        }
        if (!twin.served()) twin.to_pump = twin.unconfirmed = false;
      }
    }
    std::set<ShardId> moving;
    std::set<ShardId> unconfirmed;
    std::vector<ShardId> served;
    size_t copies = 0;
    bool all_confirmed = true;
    for (const auto& [id, other] : twins) {
      EXPECT_EQ(PlaceOf(places, id), other.place);
      if (other.moving()) moving.insert(id);
      if (other.unconfirmed) unconfirmed.insert(id);
      if (other.served()) served.push_back(id);
      copies += other.place == Place::kFollowing ||
                other.place == Place::kGoneWithCopy;
      all_confirmed = all_confirmed && !other.to_pump && !other.unconfirmed;
    }
    EXPECT_EQ(places.moving(), moving);
    EXPECT_EQ(places.unconfirmed(), unconfirmed);
    EXPECT_EQ(places.copies_count(), copies);
    EXPECT_EQ(places.AllConfirmed(), all_confirmed);
    std::vector<ShardId> all;
    for (const ServedShard* const shard_of : places.AllServed())
      all.push_back(shard_of->range().shard);
    EXPECT_EQ(all, served);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ShardPlacesProperty,
                         ::testing::Range<uint64_t>(0, 50));

TEST(ShardPlacesTest, RequestsThatWaitAreHandedBackInOrderWhenTheOwnerIsClear) {
  struct Case {
    Place place;
    Event event;
    bool followed = false;
  };
  for (const Case& c :
       {Case{Place::kArriving, Event::kOwn},
        Case{Place::kArriving, Event::kGiveUp},
        Case{Place::kLeaving, Event::kStay}, Case{Place::kLeaving, Event::kGo},
        Case{Place::kLeaving, Event::kGo, /*followed=*/true},
        Case{Place::kLeaving, Event::kDepose}}) {
    SCOPED_TRACE(absl::StrCat("place ", static_cast<int>(c.place), ", event ",
                              static_cast<int>(c.event)));
    ShardPlaces places;
    BringTo(places, c.place, ShardId{3}, c.followed);
    ASSERT_NE(places.WaitingFor(ShardId{3}), nullptr);
    for (const int rank : {4, 5}) {
      places.Wait(ShardId{3}, {.to = {.index = rank}, .message = {}},
                  /*bytes=*/10);
    }
    EXPECT_EQ(places.waiting_count(), 2u);
    EXPECT_EQ(places.waiting_bytes(), 20u);
    ShardPlaces::Requests waited;
    waited.push_back({.to = {.index = 3}, .message = {}});
    Do(places, c.event, ShardId{3}, /*followed=*/false, &waited);
    ASSERT_THAT(waited, SizeIs(3)) << "behind those that were there";
    EXPECT_EQ(waited[1].to.index, 4);
    EXPECT_EQ(waited[2].to.index, 5);
    EXPECT_EQ(places.waiting_count(), 0u);
  }
}

TEST(ShardPlacesTest, WhoIsJustServedOrFollowedLetsNothingWait) {
  ShardPlaces places;
  places.Begin(ServedOf(ShardId{0}, false));
  places.Follow(ShardId{1}, CopyOf(ShardId{1}));
  EXPECT_EQ(places.WaitingFor(ShardId{0}), nullptr);
  EXPECT_EQ(places.WaitingFor(ShardId{1}), nullptr);
  EXPECT_EQ(places.WaitingFor(ShardId{2}), nullptr);
  EXPECT_THAT(places.moving(), IsEmpty());
  places.Leave(ShardId{0}, kMove, kTarget, kNow);
  EXPECT_THAT(places.moving(), ElementsAre(ShardId{0}));
  EXPECT_EQ(places.MoveOf(ShardId{0}), kMove);
}

}  // namespace slackline::shard_places_test
