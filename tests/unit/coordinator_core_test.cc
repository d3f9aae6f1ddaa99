// Goal: who is a member, what ends a job and with which sentence, and that
// every call is answered once its time has come. Method: a job of a few
// members, played by hand on virtual time.
#include "server/coordinator/coordinator_core.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

PeerId Worker(int rank, uint64_t token = 0) {
  return {.kind = PeerId::Kind::kWorker,
          .index = rank,
          .instance = token == 0 ? 100 + rank : token};
}
PeerId Server(int index) {
  return {
      .kind = PeerId::Kind::kServer, .index = index, .instance = 200u + index};
}

class CoordinatorCoreTest : public ::testing::Test {
 protected:
  CoordinatorCoreTest() {
    options_.job = "job";
    options_.config_hash = "hash";
    options_.servers = 2;
    options_.workers = 2;
    options_.lease = absl::Seconds(5);
    options_.start_timeout = absl::Seconds(60);
    Restart();
  }

  void Restart() {
    core_.emplace(options_);
    core_->Start(now_);
  }

  wire::JoinRequest JoinOf(const PeerId& peer) {
    wire::JoinRequest join;
    const bool worker = peer.kind == PeerId::Kind::kWorker;
    join.set_role(worker ? wire::JoinRequest::WORKER
                         : wire::JoinRequest::SERVER);
    join.set_index(peer.index);
    join.set_token(peer.instance);
    join.set_job("job");
    join.set_config_hash("hash");
    join.set_host("somewhere");
    join.set_pid(4000 + static_cast<int64_t>(peer.instance));
    if (worker) {
      wire::Table& table = *join.add_table();
      table.set_name("weight");
      table.add_shape(10);
      join.set_steps_total(7);
      join.set_steps_per_epoch(7);
    } else {
      join.add_thread()->set_tcp("tcp://somewhere:1");
    }
    return join;
  }

  CoordinatorCore::Effects Send(const PeerId& from, const Message& message) {
    CoordinatorCore::Effects effects;
    core_->OnMessage(from, message, now_, &effects);
    return effects;
  }

  CoordinatorCore::Effects SendJoin(const PeerId& from,
                                    const wire::JoinRequest& join) {
    Message message;
    *message.header.mutable_join_request() = join;
    return Send(from, message);
  }

  wire::JoinReply Join(const PeerId& from, const wire::JoinRequest& join) {
    const CoordinatorCore::Effects effects = SendJoin(from, join);
    for (const Outgoing& out : effects.sends) {
      if (out.message.header.has_join_reply())
        return out.message.header.join_reply();
    }
    ADD_FAILURE() << "no reply to a join";
    return wire::JoinReply();
  }
  wire::JoinReply Join(const PeerId& from) { return Join(from, JoinOf(from)); }

  // Servers 0 and 1 and workers 0 and 1: the job runs.
  void StartJob() {
    for (int i = 0; i < options_.servers; ++i)
      servers_.push_back(Join(Server(i)).incarnation());
    for (int i = 0; i < options_.workers; ++i)
      workers_.push_back(Join(Worker(i)).incarnation());
    ASSERT_EQ(core_->state(), wire::RUNNING);
  }

  CoordinatorCore::Effects Heartbeat(const PeerId& from,
                                     Incarnation incarnation,
                                     uint64_t view_number = 0) {
    Message message;
    message.header.set_view_number(view_number);
    message.header.mutable_heartbeat()->set_incarnation(incarnation);
    return Send(from, message);
  }

  // Lets time pass in which all are heard but `silent`.
  CoordinatorCore::Effects Pass(absl::Duration time,
                                std::vector<PeerId> silent) {
    CoordinatorCore::Effects effects;
    for (absl::Time end = now_ + time; now_ < end;) {
      now_ += absl::Seconds(1);
      const auto beat = [&](const PeerId& peer, Incarnation incarnation) {
        if (std::find(silent.begin(), silent.end(), peer) == silent.end()) {
          Heartbeat(peer, incarnation);
        }
      };
      for (size_t i = 0; i < servers_.size(); ++i) beat(Server(i), servers_[i]);
      for (size_t i = 0; i < workers_.size(); ++i) beat(Worker(i), workers_[i]);
      core_->OnTick(now_, &effects);
    }
    return effects;
  }

  CoordinatorCore::Effects Call(const PeerId& from, Incarnation incarnation,
                                uint64_t id,
                                const std::function<void(wire::Call&)>& fill,
                                Payload value = Payload()) {
    Message message;
    wire::Call& call = *message.header.mutable_call();
    call.set_call_id(id);
    call.set_incarnation(incarnation);
    fill(call);
    if (!value.empty()) message.payloads.push_back(std::move(value));
    return Send(from, message);
  }
  CoordinatorCore::Effects Barrier(int rank, const std::string& name,
                                   uint64_t id = 1) {
    return Call(Worker(rank), workers_[rank], id, [&](wire::Call& call) {
      call.mutable_barrier()->set_name(name);
    });
  }
  CoordinatorCore::Effects Leave(int rank, bool with_result = false) {
    return Call(Worker(rank), workers_[rank], 50, [&](wire::Call& call) {
      call.mutable_leave();
      if (with_result) call.mutable_leave()->mutable_result()->set_steps(7);
    });
  }

  // "worker.0.100:7 OK", one for each answered call.
  static std::vector<std::string> Answers(
      const CoordinatorCore::Effects& effects) {
    std::vector<std::string> answers;
    for (const Outgoing& out : effects.sends) {
      if (!out.message.header.has_call_reply()) continue;
      const wire::CallReply& reply = out.message.header.call_reply();
      answers.push_back(absl::StrCat(out.to.ToString(), ":", reply.call_id(),
                                     " ", wire::Code_Name(reply.code())));
    }
    return answers;
  }

  static const wire::View* ViewFor(const CoordinatorCore::Effects& effects,
                                   const PeerId& peer) {
    const wire::View* view = nullptr;
    for (const Outgoing& out : effects.sends) {
      if (out.to == peer && out.message.header.has_view())
        view = &out.message.header.view();
    }
    return view;
  }

  CoordinatorCore::Options options_;
  absl::Time now_ = absl::UnixEpoch();
  std::optional<CoordinatorCore> core_;
  std::vector<Incarnation> servers_;
  std::vector<Incarnation> workers_;
};

// ---- Start ------------------------------------------------------------------

TEST_F(CoordinatorCoreTest, RunsWhenAllHaveJoinedAndTellsAll) {
  for (const PeerId& peer : {Worker(1), Server(1), Worker(0)}) {
    EXPECT_EQ(Join(peer).code(), wire::OK);
    EXPECT_EQ(core_->state(), wire::FORMING);
  }
  const CoordinatorCore::Effects effects =
      SendJoin(Server(0), JoinOf(Server(0)));
  EXPECT_EQ(core_->state(), wire::RUNNING);
  for (const PeerId& peer : {Worker(0), Worker(1), Server(0), Server(1)}) {
    const wire::View* const view = ViewFor(effects, peer);
    ASSERT_NE(view, nullptr) << peer.ToString();
    EXPECT_TRUE(View::Create(*view).ok());
    EXPECT_EQ(view->worker_size(), 2);
    EXPECT_TRUE(view->worker(0).founder());
    EXPECT_EQ(view->steps_total(), 7);
  }
}

TEST_F(CoordinatorCoreTest, TheStartTimeoutNamesWhoIsMissing) {
  options_.lease = absl::Hours(1);
  Restart();
  Join(Server(0));
  Join(Worker(1));
  EXPECT_THAT(core_->Status(now_).missing(),
              ElementsAre("server 1", "worker 0"));
  EXPECT_LE(core_->NextWakeup(), now_ + absl::Seconds(61));
  now_ += absl::Seconds(61);
  CoordinatorCore::Effects effects;
  core_->OnTick(now_, &effects);
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              HasSubstr("server 1, worker 0 did not join within 60000 ms"));
  const wire::View* const view = ViewFor(effects, Worker(1));
  ASSERT_NE(view, nullptr) << "who did join is told";
  EXPECT_EQ(view->reason(), core_->reason());
}

TEST_F(CoordinatorCoreTest, AJoinThatDoesNotFitIsRefusedWithTheReason) {
  Join(Worker(0));
  using Spoil = std::function<void(wire::JoinRequest&)>;
  const std::vector<std::pair<Spoil, std::string>> cases = {
      {[](auto& join) { join.set_job("other"); },
       "worker 1 belongs to job 'other'"},
      {[](auto& join) { join.set_config_hash("x"); },
       "another config than the coordinator"},
      {[](auto& join) { join.set_index(2); }, "the index must be in [0, 2)"},
      {[](auto& join) { join.set_index(-1); }, "the index must be in [0, 2)"},
      {[](auto& join) { join.clear_role(); }, "not in role 0"},
      {[](auto& join) { join.clear_table(); }, "a model without tables"},
      {[](auto& join) { join.set_steps_total(0); }, "0 steps to do"},
      {[](auto& join) { join.set_steps_total(8); },
       "must train on the same data"},
      {[](auto& join) { join.mutable_table(0)->set_shape(0, 11); },
       "worker 1 has weight[11] where worker 0"},
      {[](auto& join) { join.mutable_table(0)->set_shape(0, 0); },
       "extents of at least 1"},
      {[](auto& join) {
         for (int i = 0; i < 3; ++i) {
           join.mutable_table(0)->add_shape(
               std::numeric_limits<int64_t>::max());
         }
       },
       "at most 1099511627776 elements"},
      {[](auto& join) { join.mutable_table(0)->set_shard_elements(-4); },
       "in shards of -4 elements"},
      {[](auto& join) {
         join.mutable_table(0)->set_shape(0, 1 << 30);
         join.mutable_table(0)->set_shard_elements(1);
       },
       "more than 1048576 shards"},
  };
  for (const auto& [spoil, reason] : cases) {
    wire::JoinRequest join = JoinOf(Worker(1));
    spoil(join);
    const wire::JoinReply reply = Join(Worker(1), join);
    EXPECT_EQ(reply.code(), wire::REJECTED) << reason;
    EXPECT_THAT(reply.error(), HasSubstr(reason));
  }
  wire::JoinRequest server = JoinOf(Server(0));
  server.clear_thread();
  EXPECT_THAT(Join(Server(0), server).error(),
              HasSubstr("offers no shard threads"));
  EXPECT_THAT(core_->Status(now_).missing(),
              ElementsAre("server 0", "server 1", "worker 1"));
}

TEST_F(CoordinatorCoreTest, ASecondCopyOfARankWaitsForTheFirstOnesLease) {
  StartJob();
  const wire::JoinReply copy = Join(Worker(1, 777));
  EXPECT_EQ(copy.code(), wire::RETRY);
  EXPECT_THAT(
      copy.error(),
      AllOf(HasSubstr("worker 1 (pid 4101 on somewhere) holds this place"),
            HasSubstr("lease of 5000 ms")));
  Pass(absl::Seconds(6), {Worker(1)});
  const wire::JoinReply next = Join(Worker(1, 777));
  EXPECT_EQ(next.code(), wire::OK);
  EXPECT_GT(next.incarnation(), workers_[1]);
}

TEST_F(CoordinatorCoreTest,
       ARepeatedJoinGetsTheSameIncarnationAndRenewsTheLease) {
  StartJob();
  now_ += absl::Seconds(4);
  EXPECT_EQ(Join(Worker(0)).incarnation(), workers_[0]);
  now_ += absl::Seconds(4);
  Heartbeat(Server(0), servers_[0]);
  CoordinatorCore::Effects effects;
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.log, Not(testing::Contains(HasSubstr("worker 0"))));
}

// A late copy must not make a member that no process knows to be.
TEST_F(CoordinatorCoreTest, AJoinOfAPastLifeMakesNoNewMember) {
  StartJob();
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(Join(Worker(1)).incarnation(), workers_[1]);
  EXPECT_THAT(core_->Status(now_).worker(), SizeIs(1));
  const CoordinatorCore::Effects effects = Heartbeat(Worker(1), workers_[1]);
  EXPECT_EQ(effects.sends.at(0).message.header.heartbeat_reply().code(),
            wire::FENCED);
}

TEST_F(CoordinatorCoreTest, AMemberThatFailsBeforeTheStartEndsTheJob) {
  const Incarnation worker = Join(Worker(0)).incarnation();
  Call(Worker(0), worker, 1, [](wire::Call& call) {
    call.mutable_leave()->set_failure("no data folder");
  });
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              AllOf(HasSubstr("worker 0"), HasSubstr("no data folder")));
}

// ---- Leases -----------------------------------------------------------------

TEST_F(CoordinatorCoreTest, ASilentWorkerLeavesTheViewAndTheOthersGoOn) {
  options_.mode = wire::BSP;
  Restart();
  StartJob();
  const CoordinatorCore::Effects effects = Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  const wire::View* const view = ViewFor(effects, Server(1));
  ASSERT_NE(view, nullptr);
  ASSERT_EQ(view->worker_size(), 1);
  EXPECT_EQ(view->worker(0).rank(), 0);
  EXPECT_THAT(core_->Summary().workers_lost(),
              ElementsAre(HasSubstr(
                  "worker 1 (pid 4101 on somewhere) is dead or cut off")));
}

TEST_F(CoordinatorCoreTest, ALeaseLastsToItsEndAndNoLonger) {
  StartJob();
  now_ += absl::Seconds(5);
  CoordinatorCore::Effects effects;
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.log, IsEmpty());
  now_ = core_->NextWakeup();
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.log, Not(IsEmpty()));
}

TEST_F(CoordinatorCoreTest, ALateWorkerTakesPartFromItsJoinPull) {
  StartJob();
  Pass(absl::Seconds(6), {Worker(1)});
  const PeerId again = Worker(1, 777);
  const CoordinatorCore::Effects effects = SendJoin(again, JoinOf(again));
  const wire::View* const view = ViewFor(effects, again);
  ASSERT_NE(view, nullptr);
  ASSERT_EQ(view->worker_size(), 2);
  EXPECT_TRUE(view->worker(0).founder());
  EXPECT_FALSE(view->worker(1).founder());
}

TEST_F(CoordinatorCoreTest, AnAllReduceJobFailsWithTheNameOfTheDeadWorker) {
  options_.mode = wire::ALLREDUCE;
  Restart();
  StartJob();
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              AllOf(HasSubstr("worker 1 (pid 4101"),
                    HasSubstr("an all-reduce needs every rank")));
}

TEST_F(CoordinatorCoreTest, AnAllReduceJobSurvivesADoneWorkersDeath) {
  options_.mode = wire::ALLREDUCE;
  Restart();
  StartJob();
  Leave(1);
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  Leave(0, /*with_result=*/true);
  EXPECT_EQ(core_->state(), wire::FINISHED);
}

TEST_F(CoordinatorCoreTest, ASilentServerFailsTheJobAndAllAreTold) {
  StartJob();
  const CoordinatorCore::Effects effects = Pass(absl::Seconds(6), {Server(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(), AllOf(HasSubstr("server 1 (pid 4201"),
                                     HasSubstr("its shards are lost")));
  const wire::View* const view = ViewFor(effects, Worker(0));
  ASSERT_NE(view, nullptr);
  EXPECT_TRUE(View::Create(*view).ok()) << "the members can read it";
}

TEST_F(CoordinatorCoreTest, TheLastWorkersDeathFailsTheJob) {
  StartJob();
  Pass(absl::Seconds(6), {Worker(0), Worker(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(), HasSubstr("no worker is left"));
}

TEST_F(CoordinatorCoreTest, WhoLostItsLeaseIsFenced) {
  StartJob();
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_THAT(Answers(Barrier(1, "b")), ElementsAre("worker.1.101:1 FENCED"));
  // Nor may another process use a living one's incarnation.
  const CoordinatorCore::Effects effects =
      Heartbeat(Worker(0, 999), workers_[0]);
  EXPECT_EQ(effects.sends.at(0).message.header.heartbeat_reply().code(),
            wire::FENCED);
}

TEST_F(CoordinatorCoreTest, AHeartbeatThatKnowsAnOlderViewIsSentTheNewOne) {
  StartJob();
  EXPECT_NE(ViewFor(Heartbeat(Worker(0), workers_[0], 1), Worker(0)), nullptr);
  const uint64_t number = core_->Status(now_).view().number();
  EXPECT_EQ(ViewFor(Heartbeat(Worker(0), workers_[0], number), Worker(0)),
            nullptr);
}

TEST_F(CoordinatorCoreTest, RecordsAreKeptExactlyOnce) {
  StartJob();
  Message message;
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat.set_incarnation(workers_[0]);
  for (const int step : {10, 20}) {
    run::MetricRecord& record = *heartbeat.add_record();
    record.set_kind(run::MetricRecord::TRAIN);
    record.set_step(step);
  }
  EXPECT_THAT(Send(Worker(0), message).records, SizeIs(2));
  heartbeat.add_record()->set_step(30);
  CoordinatorCore::Effects effects = Send(Worker(0), message);
  ASSERT_THAT(effects.records, SizeIs(1));
  EXPECT_EQ(effects.records[0].step(), 30);
  EXPECT_EQ(
      effects.sends.at(0).message.header.heartbeat_reply().records_acked(), 3u);
}

// ---- Calls ------------------------------------------------------------------

TEST_F(CoordinatorCoreTest, ABarrierOpensForAllWhenTheLastEnters) {
  StartJob();
  EXPECT_THAT(Answers(Barrier(0, "b", 7)), IsEmpty());
  EXPECT_THAT(Answers(Barrier(0, "b", 7)), IsEmpty())
      << "repeated, still alone";
  EXPECT_THAT(Answers(Barrier(1, "b", 9)),
              ElementsAre("worker.0.100:7 OK", "worker.1.101:9 OK"));
  EXPECT_THAT(Answers(Barrier(0, "b", 7)), ElementsAre("worker.0.100:7 OK"))
      << "its answer was lost";
}

TEST_F(CoordinatorCoreTest, ABarrierDoesNotWaitForTheDead) {
  StartJob();
  Barrier(0, "b", 7);
  EXPECT_THAT(Answers(Pass(absl::Seconds(6), {Worker(1)})),
              ElementsAre("worker.0.100:7 OK"));
}

TEST_F(CoordinatorCoreTest, ABarrierDoesNotWaitForWhoIsDone) {
  StartJob();
  Barrier(0, "b", 7);
  EXPECT_THAT(Answers(Leave(1)),
              ElementsAre("worker.1.101:50 OK", "worker.0.100:7 OK"));
}

TEST_F(CoordinatorCoreTest, ALostAnswerOfTheLatestOfManyBarriersIsGivenAgain) {
  StartJob();
  for (int i = 3000; i > 0; --i) {  // Names in falling order.
    const std::string name = absl::StrCat("b", 1000 + i);
    Barrier(0, name, i);
    ASSERT_THAT(Answers(Barrier(1, name, i)), SizeIs(2));
    ASSERT_THAT(Answers(Barrier(1, name, i)), SizeIs(1)) << name;
  }
}

TEST_F(CoordinatorCoreTest, TheDeadLeaveNoCallsBehind) {
  options_.parked_calls_max = 3;
  Restart();
  StartJob();
  const auto get = [&](const PeerId& from, Incarnation incarnation,
                       uint64_t id) {
    return Answers(Call(from, incarnation, id, [&](wire::Call& call) {
      call.mutable_store_get()->set_key(absl::StrCat("key", id));
    }));
  };
  for (uint64_t id = 1; id <= 3; ++id) get(Worker(1), workers_[1], id);
  EXPECT_THAT(get(Worker(0), workers_[0], 4),
              ElementsAre("worker.0.100:4 RETRY"))
      << "full";
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_THAT(get(Worker(0), workers_[0], 5), IsEmpty())
      << "there is room again";
}

TEST_F(CoordinatorCoreTest, AStoredValueIsFoundWhicheverComesFirst) {
  StartJob();
  const auto put = [&](const std::string& key, const char* value) {
    return Call(
        Worker(0), workers_[0], 1,
        [&](wire::Call& call) { call.mutable_store_put()->set_key(key); },
        Payload::Copy(value, 3));
  };
  const auto get = [&](const std::string& key) {
    return Call(Worker(1), workers_[1], 2, [&](wire::Call& call) {
      call.mutable_store_get()->set_key(key);
    });
  };
  const auto value_of = [](const CoordinatorCore::Effects& effects) {
    const Message& message = effects.sends.back().message;
    return message.payloads.empty()
               ? std::string("none")
               : std::string(
                     reinterpret_cast<const char*>(message.payloads[0].data()),
                     message.payloads[0].size());
  };
  EXPECT_THAT(Answers(put("a", "one")), ElementsAre("worker.0.100:1 OK"));
  EXPECT_EQ(value_of(get("a")), "one");

  EXPECT_THAT(Answers(get("b")), IsEmpty());
  const CoordinatorCore::Effects both = put("b", "two");
  EXPECT_THAT(Answers(both),
              ElementsAre("worker.0.100:1 OK", "worker.1.101:2 OK"));
  EXPECT_EQ(value_of(both), "two");

  put("b", "new");  // A repeated call; the first value stays.
  EXPECT_EQ(value_of(get("b")), "two");
}

TEST_F(CoordinatorCoreTest, TheStoreRefusesMoreThanItsBound) {
  options_.store_bytes_max = 10;
  Restart();
  StartJob();
  const CoordinatorCore::Effects effects = Call(
      Worker(0), workers_[0], 1,
      [](wire::Call& call) { call.mutable_store_put()->set_key("key"); },
      Payload::Copy("12345678", 8));
  const wire::CallReply& reply =
      effects.sends.at(0).message.header.call_reply();
  EXPECT_EQ(reply.code(), wire::REJECTED);
  EXPECT_THAT(reply.error(), HasSubstr("8 more exceed its bound of 10"));
}

TEST_F(CoordinatorCoreTest, AMessageThatIsNoneOfItsIsAnError) {
  Message message;
  message.header.mutable_push_request();
  const CoordinatorCore::Effects effects = Send(Worker(0), message);
  EXPECT_THAT(effects.sends.at(0).message.header.error_reply().error(),
              HasSubstr("joins, heartbeats and calls"));
}

// ---- The end ----------------------------------------------------------------

TEST_F(CoordinatorCoreTest, FinishesWhenAllAreDoneAndTheChiefHasReported) {
  StartJob();
  Leave(0);
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_TRUE(core_->Status(now_).view().worker(0).done());
  Leave(1);
  EXPECT_EQ(core_->state(), wire::RUNNING) << "the result is missing";
  const CoordinatorCore::Effects effects = Leave(0, /*with_result=*/true);
  EXPECT_EQ(core_->state(), wire::FINISHED);
  ASSERT_NE(ViewFor(effects, Server(1)), nullptr);
  EXPECT_EQ(core_->Summary().steps(), 7);
}

TEST_F(CoordinatorCoreTest, StaysUntilAllKnowTheEndOrALeaseHasPassed) {
  StartJob();
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  EXPECT_FALSE(core_->Over(now_));
  const uint64_t number = core_->Status(now_).view().number();
  for (int i : {0, 1}) Heartbeat(Server(i), servers_[i], number);
  Heartbeat(Worker(0), workers_[0], number);
  EXPECT_FALSE(core_->Over(now_));
  EXPECT_TRUE(core_->Over(now_ + absl::Seconds(6))) << "worker 1 had its time";
  Heartbeat(Worker(1), workers_[1], number);
  EXPECT_TRUE(core_->Over(now_));
}

TEST_F(CoordinatorCoreTest, AUserMayStopTheJob) {
  StartJob();
  const PeerId user{.kind = PeerId::Kind::kObserver, .instance = 5};
  EXPECT_THAT(
      Answers(Call(user, 0, 1,
                   [](wire::Call& call) {
                     call.mutable_stop()->set_reason("stopped by the user");
                   })),
      ElementsAre("observer.0.5:1 OK"));
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->reason(), "stopped by the user");
  EXPECT_EQ(Join(Worker(0, 999)).code(), wire::REJECTED);
}

}  // namespace
}  // namespace slackline
