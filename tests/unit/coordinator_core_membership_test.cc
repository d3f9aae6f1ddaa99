// Goal: who becomes a member and who remains one: joins, leases, restarts, and
// members that hold others up. Method: a job of a few members, played by hand
// on virtual time.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator_core_fixture.h"

namespace slackline::coordinator_core_membership_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

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
  options_.config.mutable_limits()->set_lease_ms(3600000);
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
  EXPECT_EQ(view->end().cause(), wire::JobEnd::NOT_FORMED);
  EXPECT_THAT(view->end().server(), ElementsAre(1));
  EXPECT_THAT(view->end().worker(), ElementsAre(0));
  EXPECT_EQ(view->end().reason(), core_->reason());
}

TEST_F(CoordinatorCoreTest, WhoIsMissingIsNamedWithItsHostAndWhyItCannotJoin) {
  options_.config.mutable_limits()->set_lease_ms(3600000);
  options_.server_hosts = {"a", "b"};
  options_.worker_hosts = {"b", "c"};
  Restart();
  Join(Server(0));
  const auto cannot = [&](int index, const std::string& job,
                          const std::string& reason) {
    return Call(kObserver, 0, 7, [&](wire::Call& call) {
      wire::CannotJoin& of = *call.mutable_cannot_join();
      of.set_job(job);
      of.set_role(wire::JoinRequest::WORKER);
      of.set_index(index);
      of.set_host("c");
      of.set_pid(9);
      of.set_reason(reason);
    });
  };
  const std::string sentence =
      "worker 1 (pid 9 on c) cannot join: there is no data in /nowhere";
  CoordinatorCore::Effects effects =
      cannot(1, "job", "there is no data in /nowhere");
  EXPECT_THAT(effects.warnings, ElementsAre(sentence));
  EXPECT_THAT(Answers(effects), ElementsAre("observer.0.9:7 OK"));
  EXPECT_THAT(cannot(1, "job", "there is no data in /nowhere").warnings,
              IsEmpty())
      << "said once";
  EXPECT_THAT(cannot(1, "other", "x").warnings, IsEmpty());
  EXPECT_THAT(cannot(2, "job", "x").warnings, IsEmpty());
  EXPECT_THAT(cannot(-1, "job", "x").warnings, IsEmpty());
  EXPECT_THAT(core_->Status(now_).missing(),
              ElementsAre("server 1 on b", "worker 0 on b", "worker 1 on c"));
  EXPECT_THAT(core_->Status(now_).held_up(), ElementsAre(sentence));
  now_ += absl::Seconds(61);
  core_->OnTick(now_, &effects);
  EXPECT_THAT(core_->reason(),
              HasSubstr(absl::StrCat(
                  "server 1 on b, worker 0 on b, worker 1 on c did not join "
                  "within 60000 ms; ",
                  sentence, "; look at their logs")));
}

TEST_F(CoordinatorCoreTest, WhatAProcessSaysOfItselfIsBounded) {
  const CoordinatorCore::Effects effects =
      Call(kObserver, 0, 7, [&](wire::Call& call) {
        wire::CannotJoin& of = *call.mutable_cannot_join();
        of.set_job("job");
        of.set_role(wire::JoinRequest::SERVER);
        of.set_index(1);
        of.set_host(std::string(1 << 20, 'h'));
        of.set_reason(std::string(1 << 20, 'r'));
      });
  ASSERT_THAT(effects.warnings, SizeIs(1));
  EXPECT_LT(effects.warnings[0].size(), 1500);
}

TEST_F(CoordinatorCoreTest, WhoWasRefusedAndComesAgainIsNotNamedAnyMore) {
  wire::JoinRequest join = JoinOf(Worker(1));
  join.set_config_hash("x");
  const CoordinatorCore::Effects effects = SendJoin(Worker(1), join);
  ASSERT_THAT(effects.warnings, SizeIs(1));
  EXPECT_THAT(effects.warnings[0],
              HasSubstr("worker 1 (pid 4101 on somewhere) cannot join: worker "
                        "1 was started with another config"));
  EXPECT_THAT(core_->Status(now_).held_up(), SizeIs(1));
  EXPECT_THAT(SendJoin(Worker(1), join).warnings, IsEmpty()) << "said once";
  EXPECT_EQ(Join(Worker(1)).code(), wire::OK);
  EXPECT_THAT(core_->Status(now_).held_up(), IsEmpty());
}

TEST_F(CoordinatorCoreTest, OfAnotherConfigTheFieldIsNamed) {
  options_.config.add_server();
  options_.config.mutable_train()->set_seed(1);
  Restart();
  config::ClusterConfig other = options_.config;
  other.mutable_train()->set_seed(2);
  wire::JoinRequest join = JoinOf(Worker(1));
  join.set_config_hash("x");
  join.set_config(other.SerializeAsString());
  EXPECT_THAT(Join(Worker(1), join).error(),
              HasSubstr("another config than the coordinator: train.seed: its "
                        "value is 2, the coordinator's is 1; start all"));
  join.set_config("no config at all");
  EXPECT_THAT(Join(Worker(1), join).error(),
              HasSubstr("another config than the coordinator; start all"));
  // It is not kept.
  join = JoinOf(Worker(1));
  join.set_config(options_.config.SerializeAsString());
  const CoordinatorCore::Effects effects = SendJoin(Worker(1), join);
  for (const StateChange& change : effects.state) {
    coordinator::MemberState state;
    if (change.key.substr(0, 7) != "member/" || !change.value.has_value())
      continue;
    ASSERT_TRUE(state.ParseFromString(*change.value));
    EXPECT_EQ(state.join().config(), "");
  }
}

// ---- Links -----------------------------------------------------------------

class LinksTest : public CoordinatorCoreTest {
 protected:
  LinksTest() {
    options_.try_links = true;
    Restart();
  }
  // All join; what the last one's join has caused.
  CoordinatorCore::Effects JoinAll() {
    for (const int i : {0, 1})
      servers_.push_back(Join(Server(i)).incarnation());
    workers_.push_back(Join(Worker(0)).incarnation());
    CoordinatorCore::Effects effects = SendJoin(Worker(1), JoinOf(Worker(1)));
    for (const Outgoing& out : effects.sends) {
      if (out.message.header.has_join_reply())
        workers_.push_back(out.message.header.join_reply().incarnation());
    }
    return effects;
  }
  // What the member is to try: "server 1".
  static std::vector<std::string> Asked(const CoordinatorCore::Effects& effects,
                                        const PeerId& peer, uint64_t* round) {
    std::vector<std::string> asked;
    for (const Outgoing& out : effects.sends) {
      if (out.to != peer ||
          !out.message.header.heartbeat_reply().has_try_links())
        continue;
      const wire::TryLinks& links =
          out.message.header.heartbeat_reply().try_links();
      *round = links.round();
      for (const wire::ServerMember& server : links.server())
        asked.push_back(absl::StrCat("server ", server.index()));
      for (const wire::Door& door : links.worker())
        asked.push_back(absl::StrCat("worker ", door.rank()));
    }
    return asked;
  }
  CoordinatorCore::Effects Report(
      const PeerId& from, Incarnation incarnation, uint64_t round,
      const std::vector<std::pair<bool, int>>& unreached = {}) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(incarnation);
    heartbeat.mutable_links_tried()->set_round(round);
    for (const auto& [worker, index] : unreached) {
      wire::Unreached& of = *heartbeat.mutable_links_tried()->add_unreached();
      of.set_worker(worker);
      of.set_index(index);
    }
    return Send(from, message);
  }
};

TEST_F(LinksTest, TheJobBeginsWhenAllCanConnectWithEachOther) {
  const CoordinatorCore::Effects effects = JoinAll();
  EXPECT_EQ(core_->state(), wire::FORMING);
  uint64_t round = 0;
  EXPECT_THAT(Asked(effects, Server(0), &round), ElementsAre("server 1"));
  EXPECT_THAT(Asked(effects, Server(1), &round), ElementsAre("server 0"));
  EXPECT_THAT(Asked(effects, Worker(1), &round),
              ElementsAre("server 0", "server 1"));
  EXPECT_THAT(Asked(Heartbeat(Worker(0), workers_[0]), Worker(0), &round),
              ElementsAre("server 0", "server 1"))
      << "again, since it may be lost";
  Report(Server(0), servers_[0], round);
  Report(Server(1), servers_[1], round);
  Report(Worker(0), workers_[0], round, {{false, 1}});
  Report(Worker(1), workers_[1], round);
  EXPECT_THAT(Asked(Heartbeat(Worker(0), workers_[0]), Worker(0), &round),
              IsEmpty())
      << "it has said something";
  Report(Worker(0), workers_[0], round - 1);
  EXPECT_EQ(core_->state(), wire::FORMING) << "that was of another round";
  Report(Worker(0), workers_[0], round);
  EXPECT_EQ(core_->state(), wire::RUNNING);
}

// A firewall lets server 1 connect to all, and nobody to server 1.
TEST_F(LinksTest, EachPairThatCannotConnectIsNamedOnceAndTheJobEnds) {
  JoinAll();
  uint64_t round = 0;
  Asked(Heartbeat(Worker(0), workers_[0]), Worker(0), &round);
  const auto report = [&] {
    Report(Server(1), servers_[1], round);
    Report(Server(0), servers_[0], round, {{false, 1}});
    Report(Worker(0), workers_[0], round, {{false, 1}});
    Report(Worker(1), workers_[1], round);
  };
  CoordinatorCore::Effects effects;
  std::vector<std::string> warnings;
  std::vector<std::string> held_up;
  while (core_->state() == wire::FORMING &&
         now_ < absl::UnixEpoch() + absl::Minutes(5)) {
    now_ += absl::Seconds(1);
    report();
    effects = {};
    core_->OnTick(now_, &effects);
    for (const std::string& warning : effects.warnings)
      warnings.push_back(warning);
    if (core_->state() != wire::FORMING) break;
    const wire::StatusReply status = core_->Status(now_);
    held_up = {status.held_up().begin(), status.held_up().end()};
  }
  const std::string worker =
      "worker 0 (pid 4100 on somewhere) cannot connect to server 1 (pid 4201 "
      "on somewhere) at tcp://somewhere:1";
  EXPECT_THAT(held_up,
              ElementsAre(HasSubstr("server 0 (pid 4200 on somewhere) cannot "
                                    "connect to server 1"),
                          worker));
  EXPECT_THAT(warnings,
              ElementsAre(HasSubstr("so no shard can move between them"),
                          worker, HasSubstr("the job has failed: not all")));
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::NOT_FORMED);
  EXPECT_THAT(core_->reason(), HasSubstr(worker));
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Seconds(61));
}

TEST_F(LinksTest, ServersThatNeedEachOtherOnlyOnDemandHoldUpNobody) {
  JoinAll();
  uint64_t round = 0;
  Asked(Heartbeat(Worker(0), workers_[0]), Worker(0), &round);
  Report(Server(1), servers_[1], round);
  Report(Server(0), servers_[0], round, {{false, 1}});
  for (const int i : {0, 1}) Report(Worker(i), workers_[i], round);
  EXPECT_EQ(core_->state(), wire::FORMING);
  const CoordinatorCore::Effects effects = Pass(absl::Seconds(6), {});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_THAT(effects.warnings,
              ElementsAre(HasSubstr("so no shard can move between them")));
}

TEST_F(LinksTest, WithCopiesServersNeedEachOther) {
  options_.config.set_replicas(1);
  Restart();
  JoinAll();
  uint64_t round = 0;
  Asked(Heartbeat(Worker(0), workers_[0]), Worker(0), &round);
  Report(Server(1), servers_[1], round);
  Report(Server(0), servers_[0], round, {{false, 1}});
  for (const int i : {0, 1}) Report(Worker(i), workers_[i], round);
  Pass(absl::Seconds(6), {});
  EXPECT_EQ(core_->state(), wire::FORMING);
  Report(Server(0), servers_[0], round);
  EXPECT_EQ(core_->state(), wire::RUNNING);
}

TEST_F(LinksTest, WhoComesInPlaceOfOneThatIsGoneBeginsAnotherRound) {
  JoinAll();
  uint64_t first = 0;
  Asked(Heartbeat(Worker(0), workers_[0]), Worker(0), &first);
  for (const int i : {0, 1}) Report(Server(i), servers_[i], first);
  Report(Worker(0), workers_[0], first);
  Pass(absl::Seconds(8), {Worker(1)});
  EXPECT_EQ(core_->state(), wire::FORMING);
  EXPECT_THAT(core_->Status(now_).missing(), ElementsAre("worker 1"));
  const PeerId again = Worker(1, 999);
  const CoordinatorCore::Effects effects = SendJoin(again, JoinOf(again));
  uint64_t round = 0;
  EXPECT_THAT(Asked(effects, Worker(0), &round), SizeIs(2));
  EXPECT_GT(round, first);
  for (const int i : {0, 1}) Report(Server(i), servers_[i], round);
  Report(Worker(0), workers_[0], round);
  EXPECT_EQ(core_->state(), wire::FORMING);
  Report(again, workers_[1] + 1, round);
  EXPECT_EQ(core_->state(), wire::RUNNING);
}

TEST_F(LinksTest, WorkersTryTheDoorsOfOthers) {
  for (const int i : {0, 1}) servers_.push_back(Join(Server(i)).incarnation());
  CoordinatorCore::Effects effects;
  for (const int i : {0, 1}) {
    wire::JoinRequest join = JoinOf(Worker(i));
    join.set_door(absl::StrCat("tcp://somewhere:", 80 + i));
    effects = SendJoin(Worker(i), join);
    workers_.push_back(static_cast<Incarnation>(3 + i));
  }
  uint64_t round = 0;
  EXPECT_THAT(Asked(effects, Worker(0), &round),
              ElementsAre("server 0", "server 1", "worker 1"));
  EXPECT_THAT(Asked(effects, Server(0), &round), ElementsAre("server 1"));
  for (const int i : {0, 1}) Report(Server(i), servers_[i], round);
  Report(Worker(1), workers_[1], round);
  // What names nobody, or itself, does not count.
  Report(Worker(0), workers_[0], round,
         {{true, 1}, {true, 7}, {false, -1}, {true, 0}});
  EXPECT_EQ(core_->state(), wire::FORMING);
  Pass(absl::Seconds(6), {});
  EXPECT_THAT(core_->Status(now_).held_up(),
              ElementsAre(HasSubstr("worker 0 (pid 4100 on somewhere) cannot "
                                    "connect to worker 1 (pid 4101 on "
                                    "somewhere) at tcp://somewhere:81")));
  Report(Worker(0), workers_[0], round);
  EXPECT_EQ(core_->state(), wire::RUNNING);
}

TEST_F(CoordinatorCoreTest, AWorkerThatDoesNotKnowItsExamplesMayJoin) {
  wire::JoinRequest knows = JoinOf(Worker(0));
  knows.set_data_hash("a");
  EXPECT_EQ(Join(Worker(0), knows).code(), wire::OK);
  EXPECT_EQ(Join(Worker(1)).code(), wire::OK);
}

TEST_F(CoordinatorCoreTest, AJoinThatDoesNotFitIsRefusedWithTheReason) {
  wire::JoinRequest first = JoinOf(Worker(0));
  first.set_data("digits");
  first.set_data_hash("a");
  Join(Worker(0), first);
  using Spoil = std::function<void(wire::JoinRequest&)>;
  const std::vector<std::pair<Spoil, std::string>> cases = {
      {[](auto& join) { join.set_job("other"); },
       "worker 1 belongs to job 'other'"},
      {[](auto& join) { join.set_config_hash("x"); },
       "another config than the coordinator"},
      {[](auto& join) {
         join.set_protocol(7);
         join.mutable_build()->set_program("slackline_worker");
         join.mutable_build()->set_version("9.0.0");
       },
       "worker 1 (slackline_worker 9.0.0) speaks protocol 7, the coordinator"},
      {[](auto& join) {
         join.set_data("digits of another pen");
         join.set_data_hash("b");
       },
       "worker 1 has other examples than worker 0: digits of another pen (hash "
       "b), worker 0 has digits (hash a); give all workers the same files"},
      {[](auto& join) { join.set_data_hash(std::string(1000, 'x')); },
       "1000 bytes of data hash; at most 256"},
      {[](auto& join) { join.set_index(2); }, "the index must be in [0, 2)"},
      {[](auto& join) { join.set_index(-1); }, "the index must be in [0, 2)"},
      {[](auto& join) { join.clear_role(); }, "not in role 0"},
      {[](auto& join) { join.clear_table(); }, "a model without tables"},
      {[](auto& join) { join.set_steps_total(0); }, "0 steps to do"},
      {[](auto& join) { join.set_steps_total(8); },
       "must train on the same data"},
      {[](auto& join) { join.mutable_elastic(); },
       "elastic sampling: examples is 0"},
      {[](auto& join) {
         join.mutable_elastic()->set_examples(10);
         join.mutable_elastic()->set_batch_size(2);
         join.mutable_elastic()->set_total(20);
       },
       "worker 1 has elastic sampling of 20 examples, 10 in an epoch and up to "
       "2 in a step, but worker 0 has static sampling; all workers must train "
       "on the same data"},
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
      {[](auto& join) { join.mutable_table(0)->clear_optimizer(); },
       "worker 1 has table weight[10] without an optimizer, and the config has "
       "none; give the table one, or write one in the config, as in "
       "optimizer { sgd { learning_rate: 0.05 } }"},
      {[](auto& join) {
         join.mutable_table(0)
             ->mutable_optimizer()
             ->mutable_momentum()
             ->set_momentum(1);
       },
       "worker 1 has table weight[10] with a wrong "
       "optimizer.momentum.momentum: value is 1; at least 0 and below 1"},
      {[](auto& join) {
         join.mutable_table(0)
             ->mutable_optimizer()
             ->mutable_adam()
             ->set_learning_rate(std::nan(""));
       },
       "optimizer.adam.learning_rate: value is nan"},
      {[](auto& join) {
         join.mutable_table(0)
             ->mutable_optimizer()
             ->mutable_momentum()
             ->set_weight_decay(0.5);
       },
       "worker 1 has weight[10] with the optimizer momentum { learning_rate: 1 "
       "momentum: 0.9 weight_decay: 0.5 dampening: 0 } maximize: false where "
       "worker 0 has it with momentum { learning_rate: 1 momentum: 0.9 "
       "weight_decay: 0 dampening: 0 } maximize: false; all workers must give "
       "a table the same optimizer"},
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

TEST_F(CoordinatorCoreTest, ATableWithoutAnOptimizerHasTheConfigsInTheView) {
  options_.config.mutable_optimizer()->mutable_adamw()->set_learning_rate(0.25);
  Restart();
  for (const int index : {0, 1}) Join(Server(index));
  wire::JoinRequest join = JoinOf(Worker(0));
  join.mutable_table(0)->clear_optimizer();
  *join.add_table() = JoinOf(Worker(0)).table(0);
  join.mutable_table(1)->set_name("bias");
  EXPECT_EQ(Join(Worker(0), join).code(), wire::OK);
  // Who writes out what another leaves out says the same.
  join.set_index(1);
  join.set_token(JoinOf(Worker(1)).token());
  *join.mutable_table(0)->mutable_optimizer() = options_.config.optimizer();
  join.mutable_table(1)->mutable_optimizer()->mutable_momentum()->set_momentum(
      0.9);
  EXPECT_EQ(Join(Worker(1), join).code(), wire::OK);
  const wire::View& view = core_->view();
  ASSERT_EQ(view.state(), wire::RUNNING);
  EXPECT_EQ(view.table(0).optimizer().adamw().learning_rate(), 0.25);
  EXPECT_TRUE(view.table(0).optimizer().adamw().has_weight_decay())
      << "with its defaults";
  EXPECT_EQ(view.table(1).optimizer().momentum().learning_rate(), 1);
  const std::shared_ptr<const View> seen = *View::Create(view);
  EXPECT_EQ(seen->optimizer(TableId{0}).slot_count(), 2);
  EXPECT_EQ(seen->optimizer(TableId{1}).slot_count(), 1);
}

// What is in a join is kept, compared and shown to all.
TEST_F(CoordinatorCoreTest, AJoinThatIsTooLargeOrHasNoFormIsRefusedInFewWords) {
  using Spoil = std::function<void(wire::JoinRequest&)>;
  const std::string large(1 << 20, 'x');
  const std::vector<Spoil> of_anybody = {
      [&](auto& join) { join.set_job(large); },
      [&](auto& join) { join.set_config_hash(large); },
      [&](auto& join) { join.set_config(large); },
      [&](auto& join) { join.set_door(large); },
      [&](auto& join) { join.set_door("somewhere"); },
      [&](auto& join) { join.set_host(large); },
      [&](auto& join) { join.set_host_id(large); },
      [&](auto& join) { join.set_data(large); },
  };
  std::vector<Spoil> of_workers = of_anybody;
  of_workers.push_back(
      [&](auto& join) { join.mutable_table(0)->set_name(large); });
  of_workers.push_back([&](auto& join) {
    for (int i = 0; i < 1 << 20; ++i) join.mutable_table(0)->add_shape(1);
  });
  of_workers.push_back([&](auto& join) {
    for (int i = 0; i < 1 << 16; ++i) *join.add_table() = join.table(0);
  });
  std::vector<Spoil> of_servers = of_anybody;
  of_servers.push_back([&](auto& join) {
    for (int i = 0; i < 1 << 16; ++i) *join.add_thread() = join.thread(0);
  });
  for (const std::string& endpoint : std::vector<std::string>{
           "", "garbage", "tcp://", "tcp://host", "tcp://host:", "tcp://:80",
           "tcp://host:0", "tcp://host:65536", "tcp://host:-1",
           "tcp://host:99999999999", "tcp://ho st:80", "tcp://host:80 ",
           "tcp://*:80\n", "udp://host:80", "inproc://control", large}) {
    of_servers.push_back([endpoint](auto& join) {
      join.mutable_thread(0)->set_endpoint(0, endpoint);
    });
  }
  for (const std::string& endpoint :
       {std::string("garbage"), std::string(), std::string("ipc://"),
        std::string("shm://@"), "ipc://" + large, "shm://@" + large,
        std::string("tcp://there:1")}) {
    of_servers.push_back([endpoint](auto& join) {
      join.mutable_thread(0)->add_endpoint(endpoint);
    });
  }
  of_servers.push_back([](auto& join) {
    join.mutable_thread(0)->set_endpoint(0, "ipc://@only-here");
  });
  of_servers.push_back(
      [](auto& join) { join.mutable_thread(0)->clear_endpoint(); });
  const auto expect_refused = [&](const PeerId& peer, const Spoil& spoil) {
    wire::JoinRequest join = JoinOf(peer);
    spoil(join);
    const wire::JoinReply reply = Join(peer, join);
    EXPECT_EQ(reply.code(), wire::REJECTED) << reply.error();
    EXPECT_LT(reply.error().size(), 1000u);
  };
  for (const Spoil& spoil : of_workers) expect_refused(Worker(0), spoil);
  for (const Spoil& spoil : of_servers) expect_refused(Server(0), spoil);
  EXPECT_EQ(core_->sizes().members, 0u);
  wire::JoinRequest join = JoinOf(Server(0));
  join.mutable_thread(0)->set_endpoint(0, "tcp://[fe80::1%eth0]:65535");
  join.mutable_thread(0)->add_endpoint("ipc://@slackline-1");
  join.mutable_thread(0)->add_endpoint("shm://@slackline-1");
  EXPECT_EQ(Join(Server(0), join).code(), wire::OK);
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

// ---- Places -----------------------------------------------------------------

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

// The first one lives: it is heard a lease after the copy has come.
TEST_F(CoordinatorCoreTest, ASecondCopyOfAMemberThatLivesIsRefused) {
  StartJob();
  EXPECT_EQ(Join(Worker(1, 777)).code(), wire::RETRY);
  Pass(absl::Seconds(4), {});
  EXPECT_EQ(Join(Worker(1, 777)).code(), wire::RETRY) << "it may have died now";
  Pass(absl::Seconds(2), {});
  const wire::JoinReply copy = Join(Worker(1, 777));
  EXPECT_EQ(copy.code(), wire::REJECTED);
  EXPECT_EQ(copy.obstacle(), wire::JoinReply::PLACE_HELD);
  EXPECT_THAT(copy.error(),
              AllOf(HasSubstr("worker 1 (pid 4101 on somewhere) holds this "
                              "place and lives"),
                    HasSubstr("--index")));
  EXPECT_EQ(Join(Worker(1, 999)).code(), wire::RETRY)
      << "another process may be a restart";
  EXPECT_EQ(core_->state(), wire::RUNNING);
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
  EXPECT_THAT(effects.warnings, Not(testing::Contains(HasSubstr("worker 0"))));
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

TEST_F(CoordinatorCoreTest, WhoIsDoneAndStartedAgainWaitsForItsOldLease) {
  StartJob();
  Leave(1);
  const wire::JoinReply reply = Join(Worker(1, 999));
  EXPECT_EQ(reply.code(), wire::RETRY);
  EXPECT_THAT(reply.error(), HasSubstr("has completed its work"));
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(Join(Worker(1, 999)).code(), wire::OK);
}

TEST_F(CoordinatorCoreTest, AForgottenTokenThatKnocksIsANewProcess) {
  StartJob();
  workers_.pop_back();
  const auto live_and_leave = [&](uint64_t token) {
    const wire::JoinReply reply = Join(Worker(1, token));
    Call(Worker(1, token), reply.incarnation(), 1,
         [](wire::Call& call) { call.mutable_leave()->set_failure("enough"); });
    return reply.incarnation();
  };
  Pass(absl::Seconds(6), {Worker(1)});
  const Incarnation first = live_and_leave(5000);
  EXPECT_EQ(Join(Worker(1, 5000)).incarnation(), first) << "a late copy";
  for (uint64_t token = 5001; token < 5001 + 4096; ++token)
    live_and_leave(token);
  EXPECT_GT(Join(Worker(1, 5000)).incarnation(), first);
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

// ---- Leases -----------------------------------------------------------------

TEST_F(CoordinatorCoreTest, ASilentWorkerLeavesTheViewAndTheOthersGoOn) {
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
  const absl::Time end = now_ + absl::Seconds(5);
  CoordinatorCore::Effects effects;
  TickUntil(end, &effects);
  EXPECT_THAT(effects.warnings, IsEmpty());
  now_ = core_->NextWakeup();
  EXPECT_EQ(now_, end + absl::Milliseconds(1));
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.warnings, IsEmpty()) << "something may wait to be read";
  now_ = core_->NextWakeup();
  EXPECT_EQ(now_, end + absl::Milliseconds(2));
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.warnings, Not(IsEmpty()));
}

// The coordinator stands still for too short a time to count, in which a lease
// runs out and its member is heard: its driver may read that a moment later.
TEST_F(CoordinatorCoreTest, WhatCameInAShortPauseKeepsALease) {
  StartJob();
  CoordinatorCore::Effects effects;
  TickUntil(now_ + absl::Milliseconds(4900), &effects);
  now_ += absl::Milliseconds(900);
  core_->OnTick(now_, &effects);
  for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
  for (int i : {0, 1}) Heartbeat(Worker(i), workers_[i]);
  TickUntil(now_ + absl::Seconds(4), &effects);
  EXPECT_THAT(effects.warnings, IsEmpty());
  EXPECT_EQ(core_->state(), wire::RUNNING);
}

// One that has been overtaken on its way would show the member as it was.
TEST_F(CoordinatorCoreTest, OfTwoHeartbeatsTheLaterOneCountsInWhateverOrder) {
  StartJob();
  const auto says = [&](int64_t sent_micros, Clock clock) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(workers_[0]);
    heartbeat.set_sent_micros(sent_micros);
    heartbeat.mutable_worker()->set_clock(clock);
    EXPECT_EQ(Send(Worker(0), message)
                  .sends.at(0)
                  .message.header.heartbeat_reply()
                  .code(),
              wire::OK);
    return core_->Status(now_).worker(0).clock();
  };
  EXPECT_EQ(says(2000, 3), 3);
  EXPECT_EQ(says(1000, 1), 3) << "late";
  EXPECT_EQ(says(0, 4), 4) << "of one that does not measure";
  EXPECT_EQ(says(1000, 1), 4);
  EXPECT_EQ(says(2001, 5), 5);
}

TEST_F(CoordinatorCoreTest, WhoLostItsLeaseIsFenced) {
  StartJob();
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_THAT(Answers(Gather(1, 3, "b")), ElementsAre("worker.1.101:1 FENCED"));
  // Nor may another process use a living one's incarnation.
  const CoordinatorCore::Effects effects =
      Heartbeat(Worker(0, 999), workers_[0]);
  EXPECT_EQ(effects.sends.at(0).message.header.heartbeat_reply().code(),
            wire::FENCED);
}

TEST_F(CoordinatorCoreTest, LeasesThatRunOutTogetherAreOneView) {
  options_.workers = 3;
  Restart();
  StartJob();
  const uint64_t number = core_->view().number();
  const CoordinatorCore::Effects effects =
      Pass(absl::Seconds(6), {Worker(1), Worker(2)});
  EXPECT_EQ(core_->view().number(), number + 1);
  EXPECT_EQ(core_->view().worker_size(), 1);
  EXPECT_EQ(core_->view().group(), number + 1);
}

// ---- A coordinator that was stopped itself ----------------------------------

TEST_F(CoordinatorCoreTest, AfterAPauseOfItsOwnEverybodyHasTheTimeItHadBefore) {
  StartJob();
  now_ += absl::Seconds(1);
  for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
  for (int i : {0, 1}) Heartbeat(Worker(i), workers_[i]);
  // Stopped for five leases; what was sent meanwhile is not here yet.
  now_ += absl::Seconds(25);
  CoordinatorCore::Effects effects;
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.warnings, IsEmpty());
  // Worker 1 has died meanwhile. Of its lease one second had passed, and the
  // pause counts as one gap of a second.
  for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
  Heartbeat(Worker(0), workers_[0]);
  const absl::Time back = now_;
  while (effects.warnings.empty() && now_ < back + absl::Seconds(10)) {
    for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
    Heartbeat(Worker(0), workers_[0]);
    now_ = core_->NextWakeup();
    core_->OnTick(now_, &effects);
  }
  EXPECT_EQ(now_, back + absl::Milliseconds(4002));
  EXPECT_EQ(core_->state(), wire::RUNNING);
  ASSERT_THAT(effects.warnings, SizeIs(1));
  EXPECT_THAT(effects.warnings[0],
              HasSubstr("worker 1 (pid 4101 on somewhere) is "
                        "dead or cut off: not heard for 5002 "
                        "ms"));
}

// It was cut off from the worker, and stopped before it could read what came
// when the cut was over.
TEST_F(CoordinatorCoreTest, APauseDoesNotUseUpTheRestOfALease) {
  StartJob();
  CoordinatorCore::Effects effects;
  const auto others_live = [&](absl::Duration duration) {
    for (const absl::Time end = now_ + duration; now_ < end;) {
      now_ += absl::Milliseconds(100);
      for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
      Heartbeat(Worker(0), workers_[0]);
      core_->OnTick(now_, &effects);
    }
  };
  others_live(absl::Milliseconds(4900));
  now_ += absl::Seconds(25);
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.warnings, IsEmpty());
  Heartbeat(Worker(1), workers_[1]);
  others_live(absl::Milliseconds(4900));
  EXPECT_THAT(effects.warnings, IsEmpty());
  // Nothing waits to be read this time.
  now_ += absl::Seconds(25);
  others_live(absl::Milliseconds(800));
  EXPECT_THAT(effects.warnings, IsEmpty());
  others_live(absl::Milliseconds(500));
  ASSERT_THAT(effects.warnings, SizeIs(1));
  EXPECT_THAT(effects.warnings[0], HasSubstr("worker 1"));
}

// Worker 1 is heard again during the second pause.
TEST_F(CoordinatorCoreTest, NobodyIsDeadBeforeWhatCameInTheLastPauseIsRead) {
  StartJob();
  CoordinatorCore::Effects effects;
  for (int pause = 0; pause < 2; ++pause) {
    for (const absl::Time end = now_ + absl::Milliseconds(4900); now_ < end;) {
      now_ += absl::Milliseconds(pause == 0 ? 100 : 700);
      for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
      Heartbeat(Worker(0), workers_[0]);
      core_->OnTick(now_, &effects);
      if (pause == 1) break;  // It has run for a moment only.
    }
    now_ += absl::Seconds(25);
    core_->OnTick(now_, &effects);
    EXPECT_THAT(effects.warnings, IsEmpty());
  }
  Heartbeat(Worker(1), workers_[1]);
  now_ += absl::Milliseconds(900);
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.warnings, IsEmpty());
}

TEST_F(CoordinatorCoreTest, APauseDoesNotUseUpTheTimeToJoin) {
  Join(Server(0));
  CoordinatorCore::Effects effects;
  now_ += absl::Minutes(10);
  core_->OnTick(now_, &effects);
  EXPECT_EQ(core_->state(), wire::FORMING);
}

TEST_F(CoordinatorCoreTest, WhoIsRunTooRarelyStillFindsTheDead) {
  StartJob();
  CoordinatorCore::Effects effects;
  for (int i = 0; i < 13; ++i) {
    // Of the first five, one second counts; of the next eight nothing.
    now_ += absl::Seconds(3);
    core_->OnTick(now_, &effects);
    EXPECT_EQ(core_->state(), wire::RUNNING);
  }
  now_ += absl::Seconds(3);
  core_->OnTick(now_, &effects);
  core_->OnTick(now_ + absl::Milliseconds(1), &effects);
  EXPECT_EQ(core_->state(), wire::FAILED);
}

// ---- The identity of the run ------------------------------------------------

TEST_F(CoordinatorCoreTest, EverythingItSaysCarriesTheRun) {
  options_.run = 0xabc;
  Restart();
  CoordinatorCore::Effects effects = SendJoin(Server(0), JoinOf(Server(0)));
  EXPECT_EQ(effects.sends.at(0).message.header.join_reply().run(), 0xabcu);
  Join(Server(1));
  Join(Worker(0));
  effects = SendJoin(Worker(1), JoinOf(Worker(1)));
  core_->Fail("enough", now_, &effects);
  ASSERT_FALSE(effects.sends.empty());
  for (const Outgoing& out : effects.sends) {
    EXPECT_EQ(out.message.header.run(), 0xabcu);
    if (!out.message.header.has_view()) continue;
    EXPECT_EQ(out.message.header.view().run(), 0xabcu);
  }
}

TEST_F(CoordinatorCoreTest, AProcessOfAnEarlierRunIsToldSo) {
  options_.run = 0xabc;
  Restart();
  StartJob();
  // It calls itself what worker 1 is called here.
  Message message;
  message.header.set_run(0xdef);
  message.header.mutable_heartbeat()->set_incarnation(workers_[1]);
  message.header.mutable_heartbeat()->mutable_worker()->set_clock(1000);
  CoordinatorCore::Effects effects = Send(Worker(1), message);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].message.header.wrong_run().job(), "job");
  EXPECT_EQ(effects.sends[0].message.header.wrong_run().run(), 0xabcu);
  message.header.mutable_call()->set_incarnation(workers_[1]);
  message.header.mutable_call()->mutable_leave();
  effects = Send(Worker(1), message);
  EXPECT_TRUE(effects.sends.at(0).message.header.has_wrong_run());
  EXPECT_THAT(core_->Status(now_).worker(),
              testing::Each(testing::Property(&run::WorkerStats::clock, 0)));
  // Who only asks belongs to none.
  effects = Call(kObserver, 0, 1, [](auto& call) { call.mutable_status(); });
  EXPECT_TRUE(effects.sends.at(0).message.header.call_reply().has_status());
}

// ---- What a death means for the job -----------------------------------------

TEST_F(CoordinatorCoreTest, AnAllReduceJobGoesOnWithoutTheDeadWorker) {
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  const uint64_t group = core_->Status(now_).view().group();
  const CoordinatorCore::Effects effects = Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  const wire::View* const view = ViewFor(effects, Worker(0));
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(view->worker_size(), 1);
  EXPECT_EQ(view->group(), view->number()) << "the others connect anew";
  EXPECT_GT(view->group(), group);
  EXPECT_EQ(Join(Worker(1, 777)).code(), wire::OK) << "it may come again";
}

TEST_F(CoordinatorCoreTest, AnAllReduceJobSurvivesADoneWorkersDeath) {
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  Leave(1);
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  Leave(0, /*with_result=*/true);
  EXPECT_EQ(core_->state(), wire::FINISHED);
}

TEST_F(CoordinatorCoreTest, ASilentServerFailsTheJobAndAllAreTold) {
  options_.shard_elements = 5;  // One shard for each server.
  Restart();
  StartJob();
  const CoordinatorCore::Effects effects = Pass(absl::Seconds(6), {Server(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SERVER_LOST);
  EXPECT_THAT(core_->view().end().server(), ElementsAre(1));
  EXPECT_THAT(core_->reason(), AllOf(HasSubstr("server 1 (pid 4201"),
                                     HasSubstr("its shards are lost")));
  const wire::View* const view = ViewFor(effects, Worker(0));
  ASSERT_NE(view, nullptr);
  EXPECT_TRUE(View::Create(*view).ok()) << "the members can read it";
}

TEST_F(CoordinatorCoreTest, ASilentServerWithoutShardsLeavesTheViewOnly) {
  StartJob();  // The only shard is on server 0.
  const CoordinatorCore::Effects effects = Pass(absl::Seconds(6), {Server(1)});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  const wire::View* const view = ViewFor(effects, Worker(0));
  ASSERT_NE(view, nullptr);
  ASSERT_EQ(view->server_size(), 1);
  EXPECT_EQ(view->server(0).index(), 0);
  EXPECT_EQ(Heartbeat(Server(1), servers_[1])
                .sends.at(0)
                .message.header.heartbeat_reply()
                .code(),
            wire::FENCED);
}

TEST_F(CoordinatorCoreTest, TheLastWorkersDeathFailsTheJob) {
  StartJob();
  Pass(absl::Seconds(6), {Worker(0), Worker(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::NO_WORKER_LEFT);
}

// ---- Restarts of the last worker --------------------------------------------

class OneWorkerTest : public CoordinatorCoreTest {
 protected:
  OneWorkerTest() {
    options_.workers = 1;
    Restart();
  }
  // The worker dies; another process knocks every second from then on.
  CoordinatorCore::Effects DieAndKnock() {
    CoordinatorCore::Effects effects;
    for (int second = 0; second < 7; ++second) {
      const CoordinatorCore::Effects joined =
          SendJoin(Worker(0, 999), JoinOf(Worker(0, 999)));
      effects.sends.insert(effects.sends.end(), joined.sends.begin(),
                           joined.sends.end());
      const CoordinatorCore::Effects passed =
          Pass(absl::Seconds(1), {Worker(0)});
      effects.sends.insert(effects.sends.end(), passed.sends.begin(),
                           passed.sends.end());
    }
    return effects;
  }
};

TEST_F(OneWorkerTest, WhoKnocksForTheLastWorkersPlaceGetsIt) {
  StartJob();
  const CoordinatorCore::Effects effects = DieAndKnock();
  EXPECT_EQ(core_->state(), wire::RUNNING) << core_->reason();
  const wire::View* const view = ViewFor(effects, Worker(0, 999));
  ASSERT_NE(view, nullptr);
  ASSERT_EQ(view->worker_size(), 1);
  EXPECT_GT(view->worker(0).incarnation(), workers_[0]);
  EXPECT_FALSE(view->worker(0).founder());
  const wire::View* const servers = ViewFor(effects, Server(0));
  ASSERT_NE(servers, nullptr);
  EXPECT_EQ(servers->worker_size(), 1) << "no view is without a worker";
}

TEST_F(OneWorkerTest, WhoKnockedLongAgoDoesNot) {
  StartJob();
  EXPECT_EQ(Join(Worker(0, 999)).code(), wire::RETRY);
  Pass(absl::Seconds(4), {});
  Pass(absl::Seconds(6), {Worker(0)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::NO_WORKER_LEFT);
  EXPECT_THAT(core_->reason(), HasSubstr("no worker is left, and none that has "
                                         "been started again waits to join"));
}

TEST_F(OneWorkerTest, InAllReduceTheModelIsLostWithTheLastWorker) {
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  DieAndKnock();
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              AllOf(HasSubstr("the model is lost with it"),
                    HasSubstr("worker 0, which has been started again")));
}

// ---- Who holds others up ----------------------------------------------------

class StallTest : public CoordinatorCoreTest {
 protected:
  void Says(int rank, run::WorkerProgress::Activity activity, Clock clock) {
    run::WorkerProgress progress;
    progress.set_activity(activity);
    progress.set_clock(clock);
    progress.set_what("doing so");
    says_[rank] = {progress, now_};
  }
  // As Pass(), with what the workers say of themselves.
  CoordinatorCore::Effects PassSaying(absl::Duration time) {
    CoordinatorCore::Effects all;
    for (const absl::Time end = now_ + time; now_ < end;) {
      now_ += absl::Seconds(1);
      for (size_t i = 0; i < servers_.size(); ++i)
        Heartbeat(Server(i), servers_[i]);
      for (size_t i = 0; i < workers_.size(); ++i) {
        Message message;
        wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
        heartbeat.set_incarnation(workers_[i]);
        run::WorkerProgress& progress =
            *heartbeat.mutable_worker()->mutable_progress();
        progress = says_[i].first;
        progress.set_for_ms(absl::ToInt64Milliseconds(now_ - says_[i].second));
        heartbeat.mutable_worker()->set_clock(progress.clock());
        core_->OnMessage(Worker(i), message, now_, &all);
      }
      core_->OnTick(now_, &all);
    }
    return all;
  }
  std::map<int, std::pair<run::WorkerProgress, absl::Time>> says_;
};

TEST_F(StallTest, WhoHoldsOthersUpIsShownThenRemovedAndMayJoinAgain) {
  StartJob();
  Says(0, run::WorkerProgress::WAITING_FOR_WORKERS, 5);
  Says(1, run::WorkerProgress::WORKING, 4);
  CoordinatorCore::Effects effects = PassSaying(absl::Seconds(30));
  const std::string sentence =
      "worker 1 holds up worker 0: it is doing so, at "
      "clock 4, without progress for ";
  EXPECT_THAT(core_->Status(now_).held_up(), ElementsAre(HasSubstr(sentence)));
  EXPECT_THAT(effects.log, ElementsAre(HasSubstr(sentence))) << "said once";
  effects = PassSaying(absl::Seconds(40));
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_THAT(effects.removed, ElementsAre(workers_[1]));
  const wire::View* const view = ViewFor(effects, Worker(0));
  ASSERT_NE(view, nullptr);
  ASSERT_EQ(view->worker_size(), 1);
  EXPECT_EQ(view->worker(0).rank(), 0);
  EXPECT_THAT(core_->Status(now_).held_up(), IsEmpty());
  EXPECT_THAT(
      core_->Summary().workers_lost(),
      ElementsAre("worker 1 (pid 4101 on somewhere) was removed, and may join "
                  "again, because it held up worker 0: without progress for "
                  "60 s, it is doing so, at clock 4"));
  EXPECT_EQ(Heartbeat(Worker(1), workers_[1])
                .sends.at(0)
                .message.header.heartbeat_reply()
                .error(),
            "was removed, and may join again, because it held up worker 0: "
            "without progress for 60 s, it is doing so");
  EXPECT_EQ(Heartbeat(Worker(1), workers_[1])
                .sends.at(0)
                .message.header.heartbeat_reply()
                .code(),
            wire::FENCED);
  EXPECT_EQ(Join(Worker(1, 999)).code(), wire::OK);
}

TEST_F(StallTest, AServerThatAnswersNobodyEndsTheJob) {
  StartJob();
  for (const int rank : {0, 1}) {
    Says(rank, run::WorkerProgress::WAITING_FOR_SERVER, 4);
    says_[rank].first.set_server(1);
  }
  PassSaying(absl::Seconds(70));
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              HasSubstr("server 1 (shard threads at tcp://somewhere:1) has not "
                        "answered workers 0, 1 for 6"));
}

}  // namespace slackline::coordinator_core_membership_test
