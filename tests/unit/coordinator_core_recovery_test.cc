// Goal: a coordinator that goes on from what another one has kept holds to what
// that one had said, and refuses a state that makes no sense.
// Method: a job of a few members, played by hand on virtual time; between two
// events the coordinator is replaced.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"
#include "tests/unit/coordinator_core_fixture.h"

namespace slackline::coordinator_core_recovery_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Effects = CoordinatorCore::Effects;

// Two servers of one thread; five shards, 0, 2 and 4 on server 0.
class RecoveryTest : public PlacementTest {
 protected:
  RecoveryTest() {
    options_.checkpoint_root = "runs/a/checkpoints";
    options_.run = 77;
    steps_total_ = 100;
    RestartHere();
  }

  void RestartHere() {
    kept_.clear();
    Restart();
  }

  // What the event has changed is kept.
  Effects Keep(Effects effects) {
    for (const StateChange& change : effects.state) {
      if (change.value.has_value()) {
        kept_[change.key] = *change.value;
      } else {
        kept_.erase(change.key);
      }
    }
    return effects;
  }

  void Begin() {
    for (int i = 0; i < options_.servers; ++i)
      servers_.push_back(JoinKept(Server(i)));
    for (int i = 0; i < options_.workers; ++i)
      workers_.push_back(JoinKept(Worker(i)));
    ASSERT_EQ(core_->state(), wire::RUNNING);
  }

  Incarnation JoinKept(const PeerId& peer) {
    for (const Outgoing& out : Keep(SendJoin(peer, JoinOf(peer))).sends) {
      if (out.message.header.has_join_reply())
        return out.message.header.join_reply().incarnation();
    }
    return 0;
  }

  // The coordinator dies, and another one goes on a moment later.
  Effects Replace() {
    now_ += absl::Milliseconds(300);
    core_.emplace(options_);
    Effects effects;
    const absl::Status recovered = core_->Recover(kept_, now_, &effects);
    EXPECT_TRUE(recovered.ok()) << recovered;
    return Keep(std::move(effects));
  }
  // That fails: why.
  std::string WhyNotReplaced() {
    core_.emplace(options_);
    Effects effects;
    const absl::Status recovered = core_->Recover(kept_, now_, &effects);
    EXPECT_EQ(recovered.code(), absl::StatusCode::kDataLoss) << recovered;
    return std::string(recovered.message());
  }

  Effects WorkerSays(int rank, uint64_t id,
                     const std::function<void(wire::Call&)>& fill) {
    return Keep(
        Call(Worker(rank), workers_[static_cast<size_t>(rank)], id, fill));
  }
  Effects UserSays(uint64_t id, const std::function<void(wire::Call&)>& fill) {
    return Keep(Call(kUser, 0, id, fill));
  }

  CoordinatorState kept_;
};

TEST_F(RecoveryTest, WhetherAllCanConnectIsAskedAgain) {
  options_.try_links = true;
  RestartHere();
  for (const int i : {0, 1}) servers_.push_back(JoinKept(Server(i)));
  for (const int i : {0, 1}) workers_.push_back(JoinKept(Worker(i)));
  EXPECT_EQ(core_->state(), wire::FORMING);
  Replace();
  Effects asks;
  core_->OnTick(now_, &asks);
  uint64_t round = 0;
  int asked = 0;
  for (const Outgoing& out : asks.sends) {
    const wire::Header& header = out.message.header;
    if (!header.heartbeat_reply().has_try_links()) continue;
    round = header.heartbeat_reply().try_links().round();
    ++asked;
  }
  EXPECT_EQ(asked, 4);
  const auto report = [&](const PeerId& peer, Incarnation incarnation) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(incarnation);
    heartbeat.mutable_links_tried()->set_round(round);
    Keep(Send(peer, message));
  };
  for (const int i : {0, 1}) report(Server(i), servers_[i]);
  for (const int i : {0, 1}) report(Worker(i), workers_[i]);
  EXPECT_EQ(core_->state(), wire::RUNNING);
}

TEST_F(RecoveryTest, AJobThatFormsGoesOnForming) {
  servers_.push_back(JoinKept(Server(0)));
  servers_.push_back(JoinKept(Server(1)));
  workers_.push_back(JoinKept(Worker(1)));
  EXPECT_THAT(Replace().sends, IsEmpty());
  EXPECT_EQ(core_->state(), wire::FORMING);
  EXPECT_THAT(core_->Status(now_).missing(), ElementsAre("worker 0"));
  const Incarnation last = JoinKept(Worker(0));
  EXPECT_GT(last, workers_[0]) << "nobody else's";
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(core_->view().worker_size(), 2);
  EXPECT_EQ(core_->view().server_size(), 2);
}

TEST_F(RecoveryTest, MembersStayMembersAndGetANewerView) {
  Begin();
  const uint64_t before = core_->view().number();
  const Effects effects = Replace();
  EXPECT_EQ(core_->view().number(), before + 1);
  for (const PeerId& peer : {Server(0), Server(1), Worker(0), Worker(1)}) {
    const wire::View* const view = ViewFor(effects, peer);
    ASSERT_NE(view, nullptr) << peer.ToString();
    EXPECT_EQ(view->number(), before + 1);
    EXPECT_EQ(view->owner_server_size(), 5);
  }
  for (int rank = 0; rank < 2; ++rank) {
    const Effects heard = Heartbeat(Worker(rank), workers_[rank]);
    EXPECT_EQ(heard.sends[0].message.header.heartbeat_reply().code(), wire::OK);
    // Its join was answered before; the answer may be lost.
    EXPECT_EQ(JoinKept(Worker(rank)), workers_[rank]);
  }
}

TEST_F(RecoveryTest, AWholeLeaseBeginsForEverybody) {
  Begin();
  now_ += absl::Minutes(10);
  Replace();
  Effects effects;
  TickUntil(now_ + options_.lease() - absl::Milliseconds(10), &effects);
  EXPECT_EQ(core_->view().worker_size(), 2);
  TickUntil(now_ + absl::Seconds(3), &effects);
  EXPECT_EQ(core_->state(), wire::FAILED) << "nobody was heard since then";
}

TEST_F(RecoveryTest, WhoHasGoneDoesNotComeBack) {
  Begin();
  const PeerId late = Worker(1, 777);
  Keep(Pass(absl::Seconds(7), {Worker(1)}));
  ASSERT_EQ(core_->view().worker_size(), 1);
  Replace();
  // A late copy of its request is told of the life that is over.
  EXPECT_EQ(JoinKept(Worker(1)), workers_[1]);
  EXPECT_EQ(core_->view().worker_size(), 1);
  EXPECT_GT(JoinKept(late), workers_[1]);
  EXPECT_EQ(core_->view().worker_size(), 2);
  EXPECT_THAT(core_->Summary().workers_lost(),
              ElementsAre(HasSubstr("worker 1")));
}

TEST_F(RecoveryTest, RecordsThatWereAcknowledgedAreNotTakenAgain) {
  Begin();
  const auto say = [&] {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(workers_[0]);
    for (const double loss : {0.5, 0.4}) {
      run::MetricRecord& record = *heartbeat.add_record();
      record.set_kind(run::MetricRecord::TRAIN);
      record.set_loss(loss);
    }
    return Keep(Send(Worker(0), message));
  };
  EXPECT_EQ(say().records.size(), 2u);
  Replace();
  const Effects again = say();
  EXPECT_THAT(again.records, IsEmpty());
  EXPECT_EQ(again.sends[0].message.header.heartbeat_reply().records_acked(),
            2u);
}

TEST_F(RecoveryTest, AUsersCallIsCarriedOutOnce) {
  Begin();
  const Effects asked = UserSays(1, Moving({0, 2}, 1));
  const wire::CallReply said = ReplyIn(asked);
  ASSERT_EQ(said.code(), wire::OK);
  Replace();
  const Effects again = UserSays(1, Moving({0, 2}, 1));
  EXPECT_EQ(ReplyIn(again).SerializeAsString(), said.SerializeAsString());
  EXPECT_THAT(MovesOf(core_->view()), ElementsAre("0>1.0", "2>1.0"));
  EXPECT_EQ(core_->Status(now_).plan().move_size(), 2);
  // Whose moves they are goes on as if nothing had been.
  Keep(Done(0));
  EXPECT_THAT(Owners(), ElementsAre(1, 1, 0, 1, 0));
  Replace();
  Keep(Done(2));
  EXPECT_THAT(Owners(), ElementsAre(1, 1, 1, 1, 0));
  EXPECT_EQ(core_->Summary().shards_moved(), 2);
}

TEST_F(RecoveryTest, MovesThatWaitForTheirTurnAreOrderedLater) {
  options_.config.mutable_rebalance()->set_concurrent_moves(1);
  RestartHere();
  Begin();
  UserSays(1, Moving({0, 2, 4}, 1));
  ASSERT_THAT(MovesOf(core_->view()), ElementsAre("0>1.0"));
  Replace();
  Keep(Done(0));
  EXPECT_THAT(MovesOf(core_->view()), ElementsAre("2>1.0"));
  Replace();
  Keep(Done(2));
  Keep(Done(4));
  EXPECT_THAT(Owners(), ElementsAre(1, 1, 1, 1, 1));
}

TEST_F(RecoveryTest, AChangeOfTheModeGoesOnHalfWay) {
  Begin();
  UserSays(1, [](wire::Call& call) {
    *call.mutable_set_mode()->mutable_mode() = ModeOf("asp");
  });
  const auto promise = [&](int rank, uint64_t id, Clock clock) {
    WorkerSays(rank, id, [&](wire::Call& call) {
      call.mutable_step_limit()->set_change(core_->view().change().id());
      call.mutable_step_limit()->set_clock(clock);
    });
  };
  ASSERT_TRUE(core_->view().has_change());
  promise(0, 10, 17);
  Replace();
  ASSERT_TRUE(core_->view().has_change());
  promise(1, 10, 12);
  ASSERT_EQ(core_->view().phase_size(), 2);
  EXPECT_EQ(core_->view().phase(1).from(), 17) << "both promises hold";
  const auto enter = [&](int rank) {
    WorkerSays(rank, 20,
               [&](wire::Call& call) { call.mutable_entered()->set_from(17); });
  };
  enter(1);
  Replace();
  EXPECT_EQ(core_->view().entered(), 0);
  enter(0);
  EXPECT_EQ(core_->view().entered(), 1);
  EXPECT_EQ(core_->Summary().mode_changes(), 1);
}

TEST_F(RecoveryTest, ACheckpointUnderWayIsGivenUpAndTakenAgain) {
  Begin();
  const auto ask = [](wire::Call& call) { call.mutable_checkpoint(); };
  UserSays(1, ask);
  for (const int rank : {0, 1}) {
    WorkerSays(rank, 10, [&](wire::Call& call) {
      call.mutable_step_limit()->set_change(core_->view().change().id());
      call.mutable_step_limit()->set_clock(17);
    });
  }
  ASSERT_EQ(core_->view().cut().number(), 1);
  const Effects effects = Replace();
  EXPECT_EQ(effects.give_up, 1);
  EXPECT_THAT(core_->Status(now_).checkpoint_failed(),
              HasSubstr("started again"));
  UserSays(1, ask);  // Who waits for it repeats its call.
  EXPECT_TRUE(core_->view().change().has_cutting());
  EXPECT_EQ(core_->Summary().checkpoints_failed(), 1);
}

TEST_F(RecoveryTest, WhoseWorkIsDoneNeedNotDoItAgain) {
  Begin();
  Keep(Leave(1));
  Replace();
  EXPECT_TRUE(core_->view().worker(1).done());
  EXPECT_EQ(core_->state(), wire::RUNNING);
  Keep(Leave(0, /*with_result=*/true));
  EXPECT_EQ(core_->state(), wire::FINISHED);
  // It may have died before anybody heard of the end.
  const Effects effects = Replace();
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_EQ(core_->Summary().steps(), 7);
  ASSERT_FALSE(core_->Over(now_));
  for (int rank = 0; rank < 2; ++rank)
    Heartbeat(Worker(rank), workers_[rank], core_->view().number());
  for (int index = 0; index < 2; ++index)
    Heartbeat(Server(index), servers_[index], core_->view().number());
  EXPECT_TRUE(core_->Over(now_));
}

// The server beside it has the lease of the one before to wait for, and may not
// even have asked for a place when all workers have done their last step.
TEST_F(RecoveryTest, ItStaysUntilTheServerOfItsProcessKnowsTheEnd) {
  Begin();
  Replace();
  Leave(1);
  Leave(0, /*with_result=*/true);
  ASSERT_EQ(core_->state(), wire::FINISHED);
  for (int i = 0; i < 2; ++i) {
    Heartbeat(Worker(i), workers_[i], core_->view().number());
    Heartbeat(Server(i), servers_[i], core_->view().number());
  }
  EXPECT_FALSE(core_->Over(now_));
  PeerId again = Server(0);
  again.instance = 999;
  EXPECT_EQ(Join(again).obstacle(), wire::JoinReply::JOB_ENDED);
  Effects effects;
  TickUntil(now_ + absl::Milliseconds(1001), &effects);
  EXPECT_TRUE(core_->Over(now_));
}

TEST_F(RecoveryTest, CollectivesGiveWhatTheyGave) {
  Begin();
  Keep(Gather(0, 3, "a"));
  Keep(Gather(1, 3, "b"));
  Replace();
  const Effects again = Keep(Gather(0, 3, "a"));
  ASSERT_FALSE(again.sends.empty());
  EXPECT_EQ(TextOf(again.sends[0]), "0:a 1:b");
  // Who waits calls again, and is waited for.
  Keep(Gather(0, 4, "c", 2));
  Replace();
  EXPECT_THAT(Answers(Keep(Gather(1, 4, "d", 2))), IsEmpty());
  EXPECT_THAT(Answers(Keep(Gather(0, 4, "c", 2))), Not(IsEmpty()));
}

TEST_F(RecoveryTest, TimeGoesOn) {
  options_.config.mutable_train()->mutable_stop()->set_wall_seconds(100);
  RestartHere();
  Begin();
  Keep(Pass(absl::Seconds(60), {}));
  Replace();
  EXPECT_NEAR(core_->Status(now_).run_seconds(), 60.3, 1e-3);
  Keep(Pass(absl::Seconds(41), {}));
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::STOP_RULE);
}

TEST_F(RecoveryTest, OnAnotherHostTimeGoesOnByTheClockOnTheWall) {
  options_.clock = {.name = "a", .to_wall = absl::Hours(7)};
  RestartHere();
  Begin();
  Keep(Pass(absl::Seconds(60), {}));
  for (const absl::Duration behind : {absl::Hours(2), -absl::Hours(3)}) {
    SCOPED_TRACE(absl::FormatDuration(behind));
    const double before = core_->Status(now_).run_seconds();
    options_.clock.name += "b";
    options_.clock.to_wall += behind;
    now_ -= behind;
    Replace();
    EXPECT_NEAR(core_->Status(now_).run_seconds(), before + 0.3, 1e-3);
  }
}

TEST_F(RecoveryTest, WhoHasToFindItHasALongerLease) {
  Begin();
  options_.found_within = absl::Seconds(2);
  options_.host_has_joined = true;
  Replace();
  Effects effects;
  TickUntil(now_ + options_.lease() + absl::Seconds(1), &effects);
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(core_->view().worker_size(), 2);
  TickUntil(now_ + absl::Seconds(4), &effects);
  EXPECT_EQ(core_->state(), wire::FAILED) << "nobody was heard since then";
}

// Else they would look for it in vain until they give up, in a job that is
// well.
TEST_F(RecoveryTest, WhoHasToFindItHearsThatTheJobHasEnded) {
  Begin();
  options_.found_within = absl::Seconds(2);
  options_.host_has_joined = true;
  Replace();
  Effects effects;
  core_->Fail("the test ends it", now_, &effects);
  const absl::Time end = now_ + options_.lease();
  TickUntil(end + absl::Seconds(1), &effects);
  EXPECT_FALSE(core_->Over(now_));
  while (now_ < end + absl::Seconds(3) && !core_->Over(now_)) {
    now_ += absl::Milliseconds(100);
    core_->OnTick(now_, &effects);
  }
  EXPECT_TRUE(core_->Over(now_));
}

// The process of server 0 that comes is in the place of the one that had it.
TEST_F(RecoveryTest, TheServerWhosePlaceItTakesHasNoLongerLease) {
  Begin();
  options_.found_within = absl::Seconds(2);
  Replace();
  Effects effects;
  TickUntil(now_ + options_.lease() + absl::Seconds(1), &effects);
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(), HasSubstr("server 0"));
}

TEST_F(RecoveryTest, InAnotherServerThatOneHasToStay) {
  Begin();
  options_.host_server = 1;
  options_.host_has_joined = true;
  Replace();
  EXPECT_EQ(core_->Status(now_).coordinator_server(), 1);
  for (int i = 0; i < 2; ++i) Keep(Heartbeat(Server(i), servers_[i]));
  const auto drain = [&](int server) {
    const Effects effects = UserSays(
        static_cast<uint64_t>(10 + server),
        [&](wire::Call& call) { call.mutable_drain()->set_server(server); });
    return effects.sends[0].message.header.call_reply();
  };
  EXPECT_EQ(drain(1).code(), wire::REJECTED);
  EXPECT_THAT(drain(1).error(), HasSubstr("server 1 hosts the coordinator"));
  // Where its shards may go is not known before the servers have said more.
  EXPECT_EQ(drain(0).code(), wire::BUSY);
}

TEST_F(RecoveryTest, SaysWhatTheCoordinatorBeforeWas) {
  checkpoint::Manifest manifest;
  manifest.set_run(5);
  Begin();
  const absl::StatusOr<KeptJob> kept = KeptJobIn(kept_);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->job, "job");
  EXPECT_EQ(kept->run, 77u);
  EXPECT_EQ(kept->config_hash, "hash");
  EXPECT_EQ(kept->resume, nullptr);
  EXPECT_FALSE(kept->ended);
  Effects effects;
  core_->Fail("it has to end", now_, &effects);
  Keep(std::move(effects));
  EXPECT_TRUE(KeptJobIn(kept_)->ended);
  EXPECT_EQ(KeptJobIn({}).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RecoveryTest, WhatIsKeptDoesNotGrowWithTime) {
  Begin();
  std::optional<size_t> keys, bytes;
  for (int round = 0; round < 40; ++round) {
    Keep(Pass(absl::Seconds(10), {}));
    UserSays(static_cast<uint64_t>(100 + round), Moving({0}, 1 - round % 2));
    Keep(Done(0));
    size_t size = 0;
    for (const auto& [key, value] : kept_) size += key.size() + value.size();
    if (round == 20) {
      keys = kept_.size();
      bytes = size;
    }
    if (round > 20) {
      // The last 1,000 moves are kept, and changes of the view for a while.
      EXPECT_LE(kept_.size(), *keys + 64);
      EXPECT_LE(size, 2 * *bytes);
    }
  }
  Replace();
  EXPECT_EQ(core_->Summary().shards_moved(), 40);
}

TEST_F(RecoveryTest, AKeyThatIsBrokenIsNamed) {
  Begin();
  const CoordinatorState whole = kept_;
  kept_["members"] = "\xff\xff\xff";
  EXPECT_THAT(WhyNotReplaced(), HasSubstr("'members'"));
  kept_ = whole;
  kept_.erase("model");
  EXPECT_THAT(WhyNotReplaced(), HasSubstr("'member/"));
  kept_ = whole;
  kept_.erase(NumberedKey("member", workers_[0]));
  EXPECT_THAT(WhyNotReplaced(), HasSubstr("'view'"));
  kept_ = whole;
  kept_["modes"].clear();
  EXPECT_THAT(WhyNotReplaced(), HasSubstr("'modes'"));
}

// Whatever a file may hold: it is refused, or the job goes on somehow.
TEST_F(RecoveryTest, NoStateAbortsTheProcess) {
  options_.config.mutable_train()->mutable_stop()->set_wall_seconds(1000);
  RestartHere();
  Begin();
  UserSays(1, Moving({0, 2}, 1));
  UserSays(2, [](wire::Call& call) {
    *call.mutable_set_mode()->mutable_mode() = ModeOf("asp");
  });
  UserSays(3, [](wire::Call& call) { call.mutable_checkpoint(); });
  Keep(Gather(0, 3, "a"));
  Keep(Gather(1, 3, "b"));
  const CoordinatorState whole = kept_;
  const google::protobuf::LogSilencer quiet;
  Rng rng(1);
  int refused = 0, taken = 0;
  for (int i = 0; i < 20000; ++i) {
    kept_ = whole;
    for (int64_t left = rng.Between(1, 3); left > 0; --left) {
      auto at = kept_.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(rng.Below(kept_.size())));
      std::string& value = at->second;
      switch (rng.Below(4)) {
        case 0:
          kept_.erase(at);
          break;
        case 1:
          value.resize(rng.Below(value.size() + 1));
          break;
        case 2:
          if (value.empty()) break;
          value[rng.Below(value.size())] ^=
              static_cast<char>(1 << rng.Below(8));
          break;
        default: {
          auto other = kept_.begin();
          std::advance(other,
                       static_cast<std::ptrdiff_t>(rng.Below(kept_.size())));
          value = other->second;
        }
      }
      if (kept_.empty()) break;
    }
    core_.emplace(options_);
    Effects effects;
    if (!core_->Recover(kept_, now_, &effects).ok()) {
      ++refused;
      continue;
    }
    ++taken;
    const absl::Time before = now_;
    for (int rank = 0; rank < 2; ++rank)
      Heartbeat(Worker(rank), workers_[rank], core_->view().number());
    const absl::Time end = now_ + absl::Seconds(8);
    while (now_ < end && !core_->Over(now_)) {
      now_ = std::min(core_->NextWakeup(), end);
      core_->OnTick(now_, &effects);
    }
    (void)core_->Summary();
    (void)core_->Status(now_);
    now_ = before;
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(taken, 1000);
}

}  // namespace slackline::coordinator_core_recovery_test
