// Goal: who is a member, what ends a job and with which sentence, that every
// call is answered once its time has come, and that shards move as they are
// told to. Method: a job of a few members, played by hand on virtual time.
#include "server/coordinator/coordinator_core.h"

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"

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
const PeerId kObserver{.kind = PeerId::Kind::kObserver, .instance = 9};

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
      join.set_steps_total(steps_total_);
      join.set_steps_per_epoch(steps_total_);
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
      // A lease that is over is looked at twice.
      core_->OnTick(now_ + absl::Milliseconds(1), &effects);
    }
    return effects;
  }

  // Runs the core whenever it asks for it, up to and at `end`.
  void TickUntil(absl::Time end, CoordinatorCore::Effects* effects) {
    while (now_ < end) {
      now_ = std::min(core_->NextWakeup(), end);
      core_->OnTick(now_, effects);
    }
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

  uint64_t Group() const { return core_->Status(now_).view().group(); }

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

  // The view that the peer was sent in the last event, whole or as a change;
  // nullptr: none.
  const wire::View* ViewFor(const CoordinatorCore::Effects& effects,
                            const PeerId& peer) {
    const bool any = std::any_of(
        effects.sends.begin(), effects.sends.end(), [&](const Outgoing& out) {
          return out.to == peer && (out.message.header.has_view() ||
                                    out.message.header.has_view_change());
        });
    if (!any) return nullptr;
    views_.push_back(core_->view());
    return &views_.back();
  }

  CoordinatorCore::Options options_;
  int64_t steps_total_ = 7;
  absl::Time now_ = absl::UnixEpoch();
  std::optional<CoordinatorCore> core_;
  std::vector<Incarnation> servers_;
  std::vector<Incarnation> workers_;
  std::deque<wire::View> views_;  // What ViewFor() has shown.
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
  EXPECT_EQ(view->end().cause(), wire::JobEnd::NOT_FORMED);
  EXPECT_THAT(view->end().server(), ElementsAre(1));
  EXPECT_THAT(view->end().worker(), ElementsAre(0));
  EXPECT_EQ(view->end().reason(), core_->reason());
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

// What is in a join is kept, compared and shown to all.
TEST_F(CoordinatorCoreTest, AJoinThatIsTooLargeOrHasNoFormIsRefusedInFewWords) {
  using Spoil = std::function<void(wire::JoinRequest&)>;
  const std::string large(1 << 20, 'x');
  const std::vector<Spoil> of_anybody = {
      [&](auto& join) { join.set_job(large); },
      [&](auto& join) { join.set_config_hash(large); },
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
    of_servers.push_back(
        [endpoint](auto& join) { join.mutable_thread(0)->set_tcp(endpoint); });
  }
  for (const std::string& endpoint :
       {std::string("garbage"), std::string("ipc://"), "ipc://" + large}) {
    of_servers.push_back(
        [endpoint](auto& join) { join.mutable_thread(0)->set_ipc(endpoint); });
  }
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
  join.mutable_thread(0)->set_tcp("tcp://[fe80::1%eth0]:65535");
  join.mutable_thread(0)->set_ipc("ipc://@slackline-1");
  EXPECT_EQ(Join(Server(0), join).code(), wire::OK);
}

// ---- Views
// -------------------------------------------------------------------

TEST_F(CoordinatorCoreTest, WhoIsBehindGetsTheChangesSinceOrTheWholeView) {
  StartJob();
  const uint64_t first = core_->view().number();
  const auto sent = [&](uint64_t known) {
    std::vector<std::string> views;
    for (const Outgoing& out : Heartbeat(Worker(0), workers_[0], known).sends) {
      if (out.message.header.has_view()) views.push_back("whole");
      if (!out.message.header.has_view_change()) continue;
      const wire::ViewChange& change = out.message.header.view_change();
      views.push_back(
          absl::StrCat(change.base() - first, ">", change.number() - first));
    }
    return views;
  };
  const auto publish = [&] {
    Call(Worker(1), workers_[1], 7,
         [&](wire::Call& call) { call.mutable_regroup()->set_group(Group()); });
  };
  EXPECT_THAT(sent(0), ElementsAre("whole")) << "it has none";
  publish();
  publish();
  EXPECT_THAT(sent(first), ElementsAre("0>1", "1>2"));
  EXPECT_THAT(sent(first + 1), ElementsAre("1>2"));
  EXPECT_THAT(sent(first + 2), IsEmpty());
  for (int i = 0; i < 40; ++i) publish();
  EXPECT_THAT(sent(first + 2), ElementsAre("whole"));
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

// ---- What a member may say
// ---------------------------------------------------

class WrongWordsTest : public CoordinatorCoreTest {
 protected:
  CoordinatorCore::Effects Say(
      const PeerId& from, Incarnation incarnation,
      const std::function<void(wire::Heartbeat&)>& fill) {
    Message message;
    message.header.mutable_heartbeat()->set_incarnation(incarnation);
    fill(*message.header.mutable_heartbeat());
    CoordinatorCore::Effects effects = Send(from, message);
    EXPECT_EQ(core_->state(), wire::RUNNING) << core_->reason();
    EXPECT_EQ(effects.sends.at(0).message.header.heartbeat_reply().code(),
              wire::OK)
        << "it stays a member";
    return effects;
  }
  CoordinatorCore::Effects ServerSays(
      const std::function<void(run::ServerStats&)>& fill) {
    return Say(Server(1), servers_[1], [&](wire::Heartbeat& heartbeat) {
      fill(*heartbeat.mutable_server());
    });
  }
  CoordinatorCore::Effects WorkerSays(
      const std::function<void(run::WorkerStats&)>& fill) {
    return Say(Worker(1), workers_[1], [&](wire::Heartbeat& heartbeat) {
      fill(*heartbeat.mutable_worker());
    });
  }
};

TEST_F(WrongWordsTest, StatisticsOfTheOtherRoleAreNotLookedAt) {
  options_.nonfinite = config::Train::STOP;
  Restart();
  StartJob();
  const auto fill = [](wire::Heartbeat& heartbeat) {
    run::ServerStats& stats = *heartbeat.mutable_server();
    stats.add_nonfinite()->set_gradients(1);
    run::HandOverState& lost = *stats.add_hand_over();
    lost.set_state(run::HandOverState::LOST);
    lost.set_to_server(7);
  };
  EXPECT_THAT(Say(Worker(1), workers_[1], fill).log, SizeIs(1));
  EXPECT_THAT(Say(Worker(1), workers_[1], fill).log, IsEmpty()) << "said once";
  Say(Server(1), servers_[1], [](wire::Heartbeat& heartbeat) {
    heartbeat.mutable_worker()->set_clock(3);
  });
}

TEST_F(WrongWordsTest, NumbersThatCannotBeAreNotKept) {
  StartJob();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  for (const double bad : {-1.0, kNan, kInfinite, 1e300}) {
    const auto load = [&](auto set) {
      ServerSays([&](run::ServerStats& stats) { set(stats); });
      EXPECT_EQ(core_->Status(now_).server(1).thread_size(), 0);
    };
    load([&](auto& s) { s.add_thread()->set_utilisation(bad); });
    load([&](auto& s) { s.add_thread()->set_bytes_per_busy_second(bad); });
    load([&](auto& s) {
      s.add_thread()->add_shard()->set_busy(static_cast<float>(bad));
    });
    WorkerSays([&](run::WorkerStats& stats) {
      stats.set_clock(5);
      stats.set_compute_seconds(bad);
    });
    EXPECT_EQ(core_->Status(now_).worker(1).clock(), 0);
  }
  ServerSays([](run::ServerStats& stats) {
    for (int i = 0; i < 2; ++i) stats.add_thread();
  });
  EXPECT_EQ(core_->Status(now_).server(1).thread_size(), 0)
      << "it has one thread";
  ServerSays([](run::ServerStats& stats) {
    run::ThreadLoad& thread = *stats.add_thread();
    for (int i = 0; i < 100; ++i) thread.add_shard();
  });
  EXPECT_EQ(core_->Status(now_).server(1).thread_size(), 0)
      << "there are fewer shards";
  WorkerSays([](run::WorkerStats& stats) {
    stats.set_examples(std::numeric_limits<int64_t>::max());
  });
  WorkerSays([](run::WorkerStats& stats) {
    stats.mutable_progress()->set_what(std::string(1 << 20, 'x'));
  });
  EXPECT_EQ(core_->Status(now_).worker(1).progress().what(), "");
  EXPECT_EQ(core_->Summary().examples_per_second(), 0);
}

TEST_F(WrongWordsTest, OnlyTheOwnerOfAShardKnowsThatItIsLost) {
  StartJob();
  const int32_t owner = core_->view().owner_server(0);
  const auto lost = [&](int32_t shard, int32_t to) {
    return [shard, to](run::ServerStats& stats) {
      run::HandOverState& state = *stats.add_hand_over();
      state.set_shard(shard);
      state.set_state(run::HandOverState::LOST);
      state.set_to_server(to);
    };
  };
  ASSERT_EQ(owner, 0);
  ServerSays(lost(0, 7));   // Not its shard.
  ServerSays(lost(-1, 7));  // No shard.
  ServerSays(lost(1 << 30, 7));
}

TEST_F(WrongWordsTest, RecordsAreTheWorkersOwnAndServersHaveNone) {
  options_.stop.set_test_accuracy(0.5);
  Restart();
  StartJob();
  const auto fill = [](wire::Heartbeat& heartbeat) {
    run::MetricRecord& record = *heartbeat.add_record();
    record.set_kind(run::MetricRecord::EVAL);
    record.set_rank(77);
    record.set_accuracy(0.1);
    record.set_model_sha256(std::string(1 << 20, 'x'));
  };
  EXPECT_THAT(Say(Server(1), servers_[1],
                  [&](auto& heartbeat) {
                    fill(heartbeat);
                    heartbeat.mutable_record(0)->set_accuracy(0.9);
                  })
                  .records,
              IsEmpty());
  const CoordinatorCore::Effects effects = Say(Worker(1), workers_[1], fill);
  ASSERT_THAT(effects.records, SizeIs(1));
  EXPECT_EQ(effects.records[0].rank(), 1);
  EXPECT_LT(effects.records[0].model_sha256().size(), 100u);
}

TEST_F(WrongWordsTest, AServerMayAskForNothingButToLeave) {
  StartJob();
  using Fill = std::function<void(wire::Call&)>;
  for (const Fill& fill : std::vector<Fill>{
           [](auto& call) { call.mutable_barrier()->set_name("start"); },
           [](auto& call) { call.mutable_store_put()->set_key("k"); },
           [](auto& call) { call.mutable_store_get()->set_key("k"); },
           [](auto& call) { call.mutable_step_limit(); },
           [](auto& call) { call.mutable_arrive(); },
           [](auto& call) { call.mutable_entered(); },
           [&](auto& call) { call.mutable_regroup()->set_group(Group()); }}) {
    EXPECT_THAT(Answers(Call(Server(1), servers_[1], 3, fill)),
                ElementsAre("server.1.201:3 REJECTED"));
  }
}

TEST_F(WrongWordsTest, AReasonThatAllGetToSeeIsCut) {
  StartJob();
  const std::string large(1 << 20, 'x');
  Call(Worker(1), workers_[1], 3,
       [&](auto& call) { call.mutable_leave()->set_failure(large); });
  EXPECT_LT(core_->Summary().workers_lost(0).size(), 2000u);
  Call(kObserver, 0, 4,
       [&](auto& call) { call.mutable_stop()->set_reason(large); });
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_LT(core_->reason().size(), 2000u);
}

// ---- Places
// -------------------------------------------------------------------

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
  EXPECT_THAT(effects.log, IsEmpty());
  now_ = core_->NextWakeup();
  EXPECT_EQ(now_, end + absl::Milliseconds(1));
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.log, IsEmpty()) << "something may wait to be read";
  now_ = core_->NextWakeup();
  EXPECT_EQ(now_, end + absl::Milliseconds(2));
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.log, Not(IsEmpty()));
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
  EXPECT_THAT(effects.log, IsEmpty());
  EXPECT_EQ(core_->state(), wire::RUNNING);
}

// ---- A coordinator that was stopped itself
// ------------------------------------

TEST_F(CoordinatorCoreTest, AfterAPauseOfItsOwnEverybodyHasTheTimeItHadBefore) {
  StartJob();
  now_ += absl::Seconds(1);
  for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
  for (int i : {0, 1}) Heartbeat(Worker(i), workers_[i]);
  // Stopped for five leases; what was sent meanwhile is not here yet.
  now_ += absl::Seconds(25);
  CoordinatorCore::Effects effects;
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.log, IsEmpty());
  // Worker 1 has died meanwhile. Of its lease one second had passed, and the
  // pause counts as one gap of a second.
  for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
  Heartbeat(Worker(0), workers_[0]);
  const absl::Time back = now_;
  while (effects.log.empty() && now_ < back + absl::Seconds(10)) {
    for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
    Heartbeat(Worker(0), workers_[0]);
    now_ = core_->NextWakeup();
    core_->OnTick(now_, &effects);
  }
  EXPECT_EQ(now_, back + absl::Milliseconds(4002));
  EXPECT_EQ(core_->state(), wire::RUNNING);
  ASSERT_THAT(effects.log, SizeIs(1));
  EXPECT_THAT(effects.log[0], HasSubstr("worker 1 (pid 4101 on somewhere) is "
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
  EXPECT_THAT(effects.log, IsEmpty());
  Heartbeat(Worker(1), workers_[1]);
  others_live(absl::Milliseconds(4900));
  EXPECT_THAT(effects.log, IsEmpty());
  // Nothing waits to be read this time.
  now_ += absl::Seconds(25);
  others_live(absl::Milliseconds(800));
  EXPECT_THAT(effects.log, IsEmpty());
  others_live(absl::Milliseconds(500));
  ASSERT_THAT(effects.log, SizeIs(1));
  EXPECT_THAT(effects.log[0], HasSubstr("worker 1"));
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
    EXPECT_THAT(effects.log, IsEmpty());
  }
  Heartbeat(Worker(1), workers_[1]);
  now_ += absl::Milliseconds(900);
  core_->OnTick(now_, &effects);
  EXPECT_THAT(effects.log, IsEmpty());
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

// ---- The identity of the run
// --------------------------------------------------

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

TEST_F(CoordinatorCoreTest, AnAllReduceJobGoesOnWithoutTheDeadWorker) {
  options_.sync.mutable_allreduce();
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
  options_.sync.mutable_allreduce();
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
  options_.sync.mutable_allreduce();
  Restart();
  StartJob();
  DieAndKnock();
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              AllOf(HasSubstr("the model is lost with it"),
                    HasSubstr("worker 0, which has been started again")));
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

// ---- What members may say ---------------------------------------------------

TEST_F(CoordinatorCoreTest, AWorkersWordOnServersDoesNotCount) {
  StartJob();
  Message message;
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat.set_incarnation(workers_[0]);
  run::HandOverState& state = *heartbeat.mutable_server()->add_hand_over();
  state.set_state(run::HandOverState::LOST);
  heartbeat.mutable_server()->add_nonfinite()->set_gradients(1);
  Send(Worker(0), message);
  EXPECT_EQ(core_->state(), wire::RUNNING) << core_->reason();
}

TEST_F(CoordinatorCoreTest, ClocksAndRecordsThatCannotBeAreNoHarm) {
  StartJob();
  Message message;
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat.set_incarnation(workers_[0]);
  heartbeat.mutable_worker()->set_clock(std::numeric_limits<int64_t>::max());
  for (int kind = 3; kind < 10; ++kind) {
    heartbeat.add_record()->set_kind(
        static_cast<run::MetricRecord::Kind>(kind));
  }
  const CoordinatorCore::Effects effects = Send(Worker(0), message);
  EXPECT_THAT(effects.records, IsEmpty());
  EXPECT_EQ(core_->Status(now_).worker(0).clock(), steps_total_);
  EXPECT_THAT(core_->Status(now_).latest(), IsEmpty());
}

TEST_F(CoordinatorCoreTest, ABarriersNameHasABound) {
  StartJob();
  EXPECT_THAT(Answers(Barrier(0, std::string(256, 'b'), 1)), IsEmpty());
  EXPECT_THAT(Answers(Barrier(0, std::string(257, 'b'), 2)),
              ElementsAre("worker.0.100:2 REJECTED"));
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

// ---- Gradients that are no numbers ------------------------------------------

class NonfiniteTest : public CoordinatorCoreTest {
 protected:
  CoordinatorCore::Effects ReportOne() {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(servers_[0]);
    run::NonfiniteGradients& bad = *heartbeat.mutable_server()->add_nonfinite();
    bad.set_rank(1);
    bad.set_gradients(3);
    bad.set_last_clock(17);
    bad.set_last_shard(0);
    return Send(Server(0), message);
  }
};

TEST_F(NonfiniteTest, OneEndsTheJobWithItsSource) {
  StartJob();
  ReportOne();
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              AllOf(HasSubstr("worker 1 has pushed a gradient with a NaN or an "
                              "infinity for weight[0, 10) at clock 17; it is "
                              "not in the model"),
                    HasSubstr("lower the learning rate"),
                    HasSubstr("nonfinite: SKIP")));
}

TEST_F(NonfiniteTest, WhereTheyAreSkippedTheyAreSaidOnceAndCounted) {
  options_.nonfinite = config::Train::SKIP;
  Restart();
  StartJob();
  EXPECT_THAT(ReportOne().log, ElementsAre(HasSubstr("worker 1 has pushed")));
  EXPECT_THAT(ReportOne().log, IsEmpty());
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(core_->Summary().nonfinite(), 3);
  EXPECT_EQ(core_->Summary().worker(1).nonfinite(), 3);
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
  run::MetricRecord& third = *heartbeat.add_record();
  third.set_kind(run::MetricRecord::EVAL);
  third.set_step(30);
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
      call.mutable_store_get()->set_group(Group());
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
        [&](wire::Call& call) {
          call.mutable_store_put()->set_key(key);
          call.mutable_store_put()->set_group(Group());
        },
        Payload::Copy(value, 3));
  };
  const auto get = [&](const std::string& key) {
    return Call(Worker(1), workers_[1], 2, [&](wire::Call& call) {
      call.mutable_store_get()->set_key(key);
      call.mutable_store_get()->set_group(Group());
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
      [&](wire::Call& call) {
        call.mutable_store_put()->set_key("key");
        call.mutable_store_put()->set_group(Group());
      },
      Payload::Copy("12345678", 8));
  const wire::CallReply& reply =
      effects.sends.at(0).message.header.call_reply();
  EXPECT_EQ(reply.code(), wire::REJECTED);
  EXPECT_THAT(reply.error(), HasSubstr("11 more exceed its bound of 10"));
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

TEST_F(CoordinatorCoreTest, TheSummaryHasEachRanksLastIncarnation) {
  StartJob();
  const auto beat = [&](const PeerId& peer, Incarnation incarnation,
                        int64_t clock, double wait_seconds) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(incarnation);
    heartbeat.mutable_worker()->set_clock(clock);
    heartbeat.mutable_worker()->set_wait_seconds(wait_seconds);
    heartbeat.mutable_worker()->set_bytes_pushed(10 * clock);
    Send(peer, message);
  };
  beat(Worker(0), workers_[0], 6, 0.5);
  beat(Worker(1), workers_[1], 4, 1.5);
  Pass(absl::Seconds(7), {Worker(1)});
  const Incarnation again = Join(Worker(1, 999)).incarnation();
  beat(Worker(1, 999), again, 5, 0.25);
  Message message;
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat.set_incarnation(servers_[1]);
  heartbeat.mutable_server()->set_pushes(20);
  heartbeat.mutable_server()->set_duplicates(1);
  heartbeat.mutable_server()->set_applied(9);
  heartbeat.mutable_server()->set_held(2);
  heartbeat.mutable_server()->set_dropped(3);
  for (const int rank : {0, 1}) {
    run::NonfiniteGradients& count =
        *heartbeat.mutable_server()->add_nonfinite();
    count.set_rank(rank);
    count.set_gradients(2 + 2 * rank);
  }
  heartbeat.mutable_server()->mutable_staleness_clocks()->add_bin(8);
  Send(Server(1), message);

  const run::Summary summary = core_->Summary();
  ASSERT_EQ(summary.worker_size(), 2);
  EXPECT_EQ(summary.worker(0).rank(), 0);
  EXPECT_EQ(summary.worker(0).steps(), 6);
  EXPECT_EQ(summary.worker(1).rank(), 1);
  EXPECT_EQ(summary.worker(1).steps(), 5);
  EXPECT_EQ(summary.worker(1).wait_seconds(), 0.25);
  EXPECT_EQ(summary.bytes_pushed(), 60u + 40u + 50u) << "all incarnations";
  EXPECT_EQ(summary.pushes(), 20u);
  EXPECT_EQ(summary.duplicates(), 1u);
  EXPECT_EQ(summary.applied(), 9u);
  EXPECT_EQ(summary.held(), 2u);
  EXPECT_EQ(summary.dropped(), 3u);
  EXPECT_EQ(summary.nonfinite(), 6u);
  EXPECT_EQ(summary.worker(0).nonfinite(), 2u);
  EXPECT_EQ(summary.worker(1).nonfinite(), 4u);
  EXPECT_THAT(summary.staleness_clocks_histogram(), ElementsAre(8));
}

// ---- Stop rules -------------------------------------------------------------

class StopRuleTest : public CoordinatorCoreTest {
 protected:
  StopRuleTest() { steps_total_ = 1000; }

  void StartWith(const config::Stop& stop) {
    options_.stop = stop;
    Restart();
    now_ += absl::Seconds(3);
    StartJob();
  }
  // A heartbeat of worker 0 with an evaluation that began `ago`.
  CoordinatorCore::Effects Evaluate(int64_t step, double loss, double accuracy,
                                    absl::Duration ago = absl::ZeroDuration()) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(workers_[0]);
    heartbeat.set_first_record(records_++);
    heartbeat.mutable_worker()->set_clock(step + 1);
    run::MetricRecord& record = *heartbeat.add_record();
    record.set_kind(run::MetricRecord::EVAL);
    record.set_step(step);
    record.set_loss(loss);
    record.set_accuracy(accuracy);
    record.set_seconds(absl::ToDoubleSeconds(ago));
    record.set_model_sha256("abc");
    return Send(Worker(0), message);
  }

 private:
  uint64_t records_ = 0;
};

TEST_F(StopRuleTest, AnAccuracyThatIsReachedFinishesTheJob) {
  config::Stop stop;
  stop.set_test_accuracy(0.975);
  StartWith(stop);
  now_ += absl::Seconds(10);
  Evaluate(100, 0.09, 0.9749);
  EXPECT_EQ(core_->state(), wire::RUNNING);
  now_ += absl::Seconds(3);
  const CoordinatorCore::Effects effects =
      Evaluate(412, 0.08, 0.9756, absl::Milliseconds(500));
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_THAT(effects.records, SizeIs(1)) << "the evaluation is kept";
  for (const PeerId& peer : {Server(0), Server(1), Worker(0), Worker(1)}) {
    ASSERT_NE(ViewFor(effects, peer), nullptr);
    EXPECT_EQ(ViewFor(effects, peer)->state(), wire::FINISHED);
  }
  const run::Summary summary = core_->Summary();
  EXPECT_EQ(summary.stopped(),
            "test accuracy 0.9756 reached 0.975 at step 412 after 12.5 s");
  EXPECT_EQ(summary.steps(), 412);
  EXPECT_DOUBLE_EQ(summary.test_accuracy(), 0.9756);
  EXPECT_DOUBLE_EQ(summary.test_loss(), 0.08);
  EXPECT_DOUBLE_EQ(summary.wall_seconds(), 12.5) << "when the model was there";
  EXPECT_EQ(summary.model_sha256(), "abc");
}

TEST_F(StopRuleTest, ALossThatIsReachedFinishesTheJobOnce) {
  config::Stop stop;
  stop.set_test_loss(0.1);
  StartWith(stop);
  now_ += absl::Seconds(1);
  Evaluate(10, 0.11, 0.99);
  EXPECT_EQ(core_->state(), wire::RUNNING);
  Evaluate(20, 0.1, 0.5);
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_THAT(Evaluate(30, 0.01, 0.99).records, SizeIs(1));
  EXPECT_EQ(core_->Summary().stopped(),
            "test loss 0.1 reached 0.1 at step 20 after 1.0 s");
  EXPECT_EQ(core_->Summary().steps(), 20);
}

TEST_F(StopRuleTest, TheTimeIsUpAtTheSmallestClock) {
  config::Stop stop;
  stop.set_wall_seconds(20);
  stop.set_test_accuracy(1);
  StartWith(stop);
  const absl::Time start = now_;
  Evaluate(40, 0.5, 0.75);
  Message message;
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat.set_incarnation(workers_[1]);
  heartbeat.mutable_worker()->set_clock(33);
  Send(Worker(1), message);
  // Fast forward; NextWakeup() names the time by itself.
  CoordinatorCore::Effects effects;
  while (core_->state() == wire::RUNNING && now_ < start + absl::Hours(1)) {
    for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
    for (int i : {0, 1}) Heartbeat(Worker(i), workers_[i]);
    now_ = core_->NextWakeup();
    core_->OnTick(now_, &effects);
  }
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_LE(now_, start + absl::Milliseconds(20001));
  const run::Summary summary = core_->Summary();
  EXPECT_EQ(summary.stopped(),
            "train.stop.wall_seconds 20 had passed, the last evaluation was "
            "of step 40 after 20.0 s");
  EXPECT_EQ(summary.steps(), 33);
  heartbeat.mutable_worker()->set_clock(35);
  Send(Worker(1), message);
  EXPECT_EQ(core_->Summary().steps(), 35) << "known after the end only";
  EXPECT_DOUBLE_EQ(summary.test_accuracy(), 0.75);
  EXPECT_EQ(summary.model_sha256(), "");
}

TEST_F(StopRuleTest, NoRuleHoldsOnceAllStepsAreDone) {
  config::Stop stop;
  stop.set_wall_seconds(20);
  stop.set_test_accuracy(0.9);
  StartWith(stop);
  Leave(0);
  Leave(1);
  Evaluate(1000, 0.1, 0.99);
  Pass(absl::Seconds(30), {});
  EXPECT_EQ(core_->state(), wire::RUNNING) << "the chief writes the model";
  Leave(0, /*with_result=*/true);
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_EQ(core_->Summary().stopped(), "");
}

// ---- The end, continued -----------------------------------------------------

TEST_F(CoordinatorCoreTest, StaysUntilAllKnowTheEnd) {
  StartJob();
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  EXPECT_FALSE(core_->Over(now_));
  const uint64_t number = core_->Status(now_).view().number();
  for (int i : {0, 1}) Heartbeat(Server(i), servers_[i], number);
  Heartbeat(Worker(0), workers_[0], number);
  EXPECT_FALSE(core_->Over(now_));
  Heartbeat(Worker(1), workers_[1], number);
  EXPECT_TRUE(core_->Over(now_));
}

TEST_F(CoordinatorCoreTest,
       StaysForALeaseIfSomebodyDoesNotSayThatItKnowsTheEnd) {
  StartJob();
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  EXPECT_FALSE(core_->Over(now_ + absl::Seconds(60)))
      << "it did not run, and nobody could reach it";
  absl::Time now = now_;
  while (!core_->Over(now) && now < now_ + absl::Seconds(60)) {
    now = core_->NextWakeup();
    core_->OnTick(now, &effects);
  }
  EXPECT_EQ(now, now_ + absl::Milliseconds(5001)) << "they had their time";
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

// ---- Placement --------------------------------------------------------------

const PeerId kUser{.kind = PeerId::Kind::kObserver, .index = 0, .instance = 5};

// Five shards of two elements: 0, 2, 4 on server 0 and 1, 3 on server 1.
class PlacementTest : public CoordinatorCoreTest {
 protected:
  PlacementTest() {
    options_.shard_elements = 2;
    options_.rebalance.slot_count = 1;
    options_.rebalance.config.set_concurrent_moves(4);
    options_.rebalance.config.set_interval_ms(2000);
    options_.rebalance.config.set_rest_ms(10000);
    Restart();
  }

  wire::View ViewNow() { return core_->Status(now_).view(); }

  // "2>1.0": shard 2 is to go to thread 0 of server 1.
  static std::vector<std::string> MovesOf(const wire::View& view) {
    std::vector<std::string> moves;
    for (const wire::Move& move : view.move()) {
      moves.push_back(
          absl::StrCat(move.shard(), ">", move.server(), ".", move.thread()));
    }
    return moves;
  }
  std::vector<int32_t> Owners() {
    const wire::View view = ViewNow();
    return {view.owner_server().begin(), view.owner_server().end()};
  }

  // A user's call, under a new id.
  CoordinatorCore::Effects Ask(const std::function<void(wire::Call&)>& fill) {
    return Call(kUser, 0, ++call_id_, fill);
  }
  static wire::CallReply ReplyIn(const CoordinatorCore::Effects& effects) {
    for (const Outgoing& out : effects.sends) {
      if (out.to == kUser && out.message.header.has_call_reply())
        return out.message.header.call_reply();
    }
    ADD_FAILURE() << "no answer to a call";
    return wire::CallReply();
  }
  static std::function<void(wire::Call&)> Moving(std::vector<int32_t> shards,
                                                 int32_t server,
                                                 int32_t thread = -1) {
    return [=](wire::Call& call) {
      wire::MoveShards& moves = *call.mutable_move_shards();
      for (const int32_t shard : shards) moves.add_shard(shard);
      moves.set_server(server);
      moves.set_thread(thread);
    };
  }
  static std::function<void(wire::Call&)> Draining(int32_t server) {
    return [=](wire::Call& call) { call.mutable_drain()->set_server(server); };
  }
  static void Rebalancing(wire::Call& call) { call.mutable_rebalance(); }

  CoordinatorCore::Effects Tell(int server, const run::ServerStats& stats) {
    Message message;
    message.header.set_view_number(ViewNow().number());
    message.header.mutable_heartbeat()->set_incarnation(servers_.at(server));
    *message.header.mutable_heartbeat()->mutable_server() = stats;
    return Send(Server(server), message);
  }
  // What the source says of its move of the shard, as it is listed now.
  CoordinatorCore::Effects Said(int32_t shard,
                                run::HandOverState::State state) {
    const wire::View view = ViewNow();
    run::ServerStats stats;
    for (const wire::Move& move : view.move()) {
      if (move.shard() != shard) continue;
      run::HandOverState& hand_over = *stats.add_hand_over();
      hand_over.set_shard(shard);
      hand_over.set_move(move.id());
      hand_over.set_state(state);
      hand_over.set_to_server(move.server());
      hand_over.set_bytes(24);
      hand_over.set_copy_micros(7000);
      hand_over.set_pause_micros(300);
    }
    return Tell(Owners().at(shard), stats);
  }
  CoordinatorCore::Effects Done(int32_t shard) {
    return Said(shard, run::HandOverState::DONE);
  }
  // Each shard of the server takes so much of its thread's time.
  void Load(int server, double busy) {
    run::ServerStats stats;
    run::ThreadLoad& load = *stats.add_thread();
    load.set_bytes_per_busy_second(1e9);
    const std::vector<int32_t> owners = Owners();
    for (size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] != server) continue;
      run::ShardLoad& shard = *load.add_shard();
      shard.set_shard(static_cast<int32_t>(i));
      shard.set_busy(static_cast<float>(busy));
      load.set_utilisation(load.utilisation() + busy);
    }
    Tell(server, stats);
  }
  // Server 0 has nearly all of the work.
  void LoadUnevenly() {
    Load(0, 0.3);
    Load(1, 0.01);
  }

  PeerId AddServer(int index) {
    const wire::JoinReply reply = Join(Server(index));
    EXPECT_EQ(reply.code(), wire::OK) << reply.error();
    servers_.resize(std::max(servers_.size(), static_cast<size_t>(index) + 1));
    servers_[index] = reply.incarnation();
    return Server(index);
  }

  uint64_t call_id_ = 0;
};

TEST_F(PlacementTest, AMoveIsOrderedAndItsEndGivesTheShardAway) {
  StartJob();
  ASSERT_THAT(Owners(), ElementsAre(0, 1, 0, 1, 0));
  const CoordinatorCore::Effects ordered = Ask(Moving({2}, 1));
  const wire::CallReply reply = ReplyIn(ordered);
  EXPECT_EQ(reply.code(), wire::OK);
  EXPECT_EQ(reply.plan().summary(), "1 shards to server 1");
  ASSERT_EQ(reply.plan().move_size(), 1);
  EXPECT_EQ(reply.plan().move(0).name(), "weight[4, 6)");
  EXPECT_EQ(reply.plan().move(0).bytes(), 2 * 4 * 2) << "with its slot";
  const wire::View* const view = ViewFor(ordered, Server(1));
  ASSERT_NE(view, nullptr);
  EXPECT_TRUE(View::Create(*view).ok());
  EXPECT_THAT(MovesOf(*view), ElementsAre("2>1.0"));
  EXPECT_EQ(view->move(0).id(), view->number());
  EXPECT_EQ(view->owner_server(2), 0) << "until it is done";

  now_ += absl::Seconds(3);
  const CoordinatorCore::Effects done = Done(2);
  const wire::View* const next = ViewFor(done, Worker(0));
  ASSERT_NE(next, nullptr);
  EXPECT_THAT(MovesOf(*next), IsEmpty());
  EXPECT_EQ(next->owner_server(2), 1);
  EXPECT_GT(next->number(), view->number());
  EXPECT_THAT(done.log, ElementsAre(HasSubstr(
                            "shard 2 (weight[4, 6)) has moved from server 0 to "
                            "server 1: 24 bytes in 7 ms, not served for at "
                            "most 300 us")));
  ASSERT_EQ(done.moves.size(), 1u);
  EXPECT_EQ(done.moves[0].seconds(), 3);
  EXPECT_EQ(done.moves[0].shard_bytes(), 16);
  EXPECT_EQ(done.moves[0].reason(), "a user asked for it");
}

TEST_F(PlacementTest, AMoveThatIsNotDoneYetChangesNothing) {
  StartJob();
  Ask(Moving({2}, 1));
  EXPECT_EQ(ViewFor(Said(2, run::HandOverState::COPYING), Worker(0)), nullptr);
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 0, 1, 0));
}

TEST_F(PlacementTest, TheEndOfAMoveCountsOnce) {
  StartJob();
  Ask(Moving({2}, 1));
  run::ServerStats stats;
  run::HandOverState& state = *stats.add_hand_over();
  state.set_shard(2);
  state.set_state(run::HandOverState::DONE);
  state.set_move(ViewNow().move(0).id() + 1);
  EXPECT_EQ(Tell(0, stats).moves.size(), 0u) << "of another move";
  state.set_move(ViewNow().move(0).id());
  EXPECT_EQ(Tell(0, stats).moves.size(), 1u);
  const uint64_t number = ViewNow().number();
  EXPECT_EQ(Tell(0, stats).moves.size(), 0u);
  EXPECT_EQ(ViewNow().number(), number);
  EXPECT_EQ(core_->Summary().shards_moved(), 1);
}

TEST_F(PlacementTest, ARepeatedCallIsAnsweredAgainAndDoneOnce) {
  StartJob();
  const CoordinatorCore::Effects first = Call(kUser, 0, 9, Moving({2}, 1));
  const uint64_t number = ViewNow().number();
  const CoordinatorCore::Effects again = Call(kUser, 0, 9, Moving({2}, 1));
  EXPECT_EQ(ReplyIn(again).SerializeAsString(),
            ReplyIn(first).SerializeAsString());
  EXPECT_EQ(ViewNow().number(), number);
  PeerId other = kUser;
  other.instance = 6;
  EXPECT_THAT(Answers(Call(other, 0, 9, Moving({2}, 1))),
              ElementsAre("observer.0.6:9 REJECTED"))
      << "another's call of that number is not this one";
}

TEST_F(PlacementTest, WhatCannotMoveIsRefusedWithTheReason) {
  StartJob();
  AddServer(2);
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  Ask(Draining(2));
  Ask(Moving({0}, 1));
  const uint64_t number = ViewNow().number();
  const struct {
    std::function<void(wire::Call&)> call;
    const char* reason;
  } cases[] = {
      {Moving({2}, 3), "the job has no server 3"},
      {Moving({2}, -1), "the job has no server -1"},
      {Moving({2}, 2), "server 2 is being drained"},
      {Moving({2}, 1, 1), "server 1 has no thread 1; it has 1"},
      {Moving({2}, 1, -2), "server 1 has no thread -2; it has 1"},
      {Moving({2, 5}, 1), "there is no shard 5; the job has shards 0 to 4"},
      {Moving({-1}, 1), "there is no shard -1"},
      {Moving({0}, 1), "shard 0 (weight[0, 2)) is on its way already"},
      {Rebalancing, "1 moves are under way; try again when they are done"},
      {Draining(3), "the job has no server 3"},
      {Draining(0), "server 0 hosts the coordinator and has to stay"},
  };
  for (const auto& c : cases) {
    const wire::CallReply reply = ReplyIn(Ask(c.call));
    wire::Call call;
    c.call(call);
    // What is under way passes.
    EXPECT_EQ(reply.code(), call.has_rebalance() ? wire::BUSY : wire::REJECTED)
        << c.reason;
    EXPECT_THAT(reply.error(), HasSubstr(c.reason));
    EXPECT_EQ(ViewNow().number(), number) << c.reason;
  }
}

TEST_F(PlacementTest, NothingMovesWhereNothingMay) {
  const auto why = [&] { return ReplyIn(Ask(Moving({2}, 1))).error(); };
  EXPECT_EQ(why(), "the job does not run");
  StartJob();
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  EXPECT_EQ(why(), "the job does not run");

  options_.sync.mutable_allreduce();
  Restart();
  StartJob();
  EXPECT_EQ(why(),
            "the workers hold the model while they all-reduce; shards can move "
            "once the mode has changed");

  options_.sync.mutable_asp();
  options_.rebalance.config.set_mode(config::Rebalance::OFF);
  Restart();
  StartJob();
  EXPECT_THAT(why(), HasSubstr("rebalance { mode: OFF }; MANUAL allows it"));
}

TEST_F(PlacementTest, AMoveToWhereTheShardIsAlreadyIsNone) {
  StartJob();
  const uint64_t number = ViewNow().number();
  const wire::CallReply reply = ReplyIn(Ask(Moving({0, 2}, 0)));
  EXPECT_EQ(reply.code(), wire::OK);
  EXPECT_EQ(reply.plan().summary(), "all of it is on server 0 already");
  EXPECT_EQ(ViewNow().number(), number);
}

TEST_F(PlacementTest, NoMoreMovesThanTheBoundAreUnderWayAtAServer) {
  options_.rebalance.config.set_concurrent_moves(1);
  Restart();
  StartJob();
  AddServer(2);
  AddServer(3);
  Ask(Moving({0, 2, 4}, 2));
  Ask(Moving({1, 3}, 3));
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("0>2.0", "1>3.0"))
      << "those of other servers do not wait for these";
  const wire::StatusReply status = core_->Status(now_);
  ASSERT_EQ(status.plan().move_size(), 5);
  int ordered = 0;
  for (const run::PlannedMove& move : status.plan().move())
    ordered += move.ordered();
  EXPECT_EQ(ordered, 2);
  Done(0);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("1>3.0", "2>2.0"));
  EXPECT_EQ(ViewNow().move(1).id(), ViewNow().number())
      << "of the view that orders";
  Done(1);
  Done(2);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("3>3.0", "4>2.0"));
  Done(3);
  Done(4);
  EXPECT_THAT(Owners(), ElementsAre(2, 3, 2, 3, 2));
  EXPECT_EQ(core_->Status(now_).plan().move_size(), 0);
}

TEST_F(PlacementTest, StatusAndSummarySayWhatHasMoved) {
  StartJob();
  Ask(Moving({0, 2}, 1));
  Done(0);
  Done(2);
  const wire::StatusReply status = core_->Status(now_);
  ASSERT_EQ(status.moved_size(), 2);
  EXPECT_EQ(status.moved(0).shard(), 0);
  EXPECT_EQ(status.moved(1).shard(), 2);
  EXPECT_EQ(status.moves(), 2);
  EXPECT_EQ(status.next_server(), 2);
  const wire::StatusReply rest = core_->Status(now_, /*moves_known=*/1);
  ASSERT_EQ(rest.moved_size(), 1);
  EXPECT_EQ(rest.moved(0).shard(), 2);
  EXPECT_EQ(core_->Summary().shards_moved(), 2);
  EXPECT_EQ(core_->Summary().bytes_moved(), 48u);
  EXPECT_EQ(core_->Summary().move_pause_micros().max(), 300);
}

TEST_F(PlacementTest, AShardLostOnItsWayFailsTheJob) {
  StartJob();
  const PeerId added = AddServer(2);
  Ask(Moving({2}, 2));
  run::ServerStats stats;
  run::HandOverState& lost = *stats.add_hand_over();
  lost.set_shard(2);
  lost.set_move(ViewNow().move(0).id());
  lost.set_state(run::HandOverState::LOST);
  lost.set_to_server(2);
  Tell(0, stats);
  EXPECT_EQ(core_->state(), wire::RUNNING) << "server 2 is alive";
  Pass(absl::Seconds(6), {added});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  Tell(0, stats);
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              HasSubstr("server 2, to which shard 2 was just moving from "
                        "server 0, has died"));
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SHARD_LOST);
  EXPECT_THAT(core_->view().end().server(), ElementsAre(2));
  EXPECT_THAT(core_->view().end().shard(), ElementsAre(2));
}

TEST_F(PlacementTest, TheDeathOfAnEmptyServerCancelsTheMovesToIt) {
  options_.rebalance.config.set_concurrent_moves(1);
  Restart();
  StartJob();
  const PeerId added = AddServer(2);
  Ask(Moving({0, 2}, 2));
  Ask(Moving({4}, 1));
  ASSERT_THAT(MovesOf(ViewNow()), ElementsAre("0>2.0"));
  Pass(absl::Seconds(6), {added});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(ViewNow().server_size(), 2);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("4>1.0")) << "it has its turn";
  Done(4);
  EXPECT_EQ(core_->Status(now_).plan().move_size(), 0);
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 0, 1, 1));
}

TEST_F(PlacementTest, TheDeathOfAServerWithShardsFailsTheJobDuringMovesToo) {
  StartJob();
  Ask(Moving({1, 3}, 0));
  Done(1);
  Pass(absl::Seconds(6), {Server(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SERVER_LOST);
  EXPECT_THAT(core_->view().end().server(), ElementsAre(1));
}

// ---- Servers come -----------------------------------------------------------

TEST_F(PlacementTest, AServerMayJoinARunningJob) {
  StartJob();
  EXPECT_EQ(core_->Status(now_).next_server(), 2);
  const CoordinatorCore::Effects effects =
      SendJoin(Server(4), JoinOf(Server(4)));
  const wire::View* const view = ViewFor(effects, Worker(1));
  ASSERT_NE(view, nullptr);
  EXPECT_TRUE(View::Create(*view).ok());
  ASSERT_EQ(view->server_size(), 3);
  EXPECT_EQ(view->server(2).index(), 4) << "indexes may be left out";
  EXPECT_NE(ViewFor(effects, Server(4)), nullptr);
  EXPECT_EQ(core_->Status(now_).next_server(), 5);
  EXPECT_EQ(Join(Server(4)).code(), wire::OK) << "repeated";
  EXPECT_EQ(ViewNow().server_size(), 3);
}

TEST_F(PlacementTest, AnAddedServerTakesAnIndexThatNoOtherHad) {
  StartJob();
  const PeerId added = AddServer(3);
  Pass(absl::Seconds(6), {added});
  ASSERT_EQ(ViewNow().server_size(), 2);
  for (const int index : {-1, 1, 2, 3, 100000}) {
    PeerId peer = Server(index);
    peer.instance = 999;
    const wire::JoinReply reply = Join(peer);
    EXPECT_EQ(reply.code(), wire::REJECTED) << index;
    EXPECT_THAT(reply.error(),
                HasSubstr(absl::StrCat("server ", index, ": the job runs")));
    EXPECT_THAT(reply.error(), HasSubstr("from 4 on, below 100000"));
  }
  AddServer(4);
}

TEST_F(PlacementTest, BeforeTheJobRunsOnlyTheConfigsServersJoin) {
  const wire::JoinReply reply = Join(Server(2));
  EXPECT_EQ(reply.code(), wire::REJECTED);
  EXPECT_THAT(reply.error(), HasSubstr("the index must be in [0, 2)"));
}

TEST_F(PlacementTest, AServerMayJoinAnAllReduceJobAndWaitsForShards) {
  options_.sync.mutable_allreduce();
  Restart();
  StartJob();
  const uint64_t group = ViewNow().group();
  AddServer(2);
  EXPECT_EQ(ViewNow().server_size(), 3);
  EXPECT_EQ(ViewNow().group(), group) << "the workers are the same";
}

TEST_F(PlacementTest, AServersDeathFailsAnAllReduceJob) {
  options_.sync.mutable_allreduce();
  Restart();
  StartJob();
  Pass(absl::Seconds(6), {Server(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(), HasSubstr("its shards are lost"));
}

// ---- Servers go -------------------------------------------------------------

TEST_F(PlacementTest, ADrainedServerGivesAllAwayAndLeaves) {
  StartJob();
  AddServer(2);
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  const CoordinatorCore::Effects effects = Ask(Draining(1));
  const wire::CallReply reply = ReplyIn(effects);
  EXPECT_EQ(reply.code(), wire::OK) << reply.error();
  EXPECT_EQ(reply.plan().move_size(), 2);
  for (const run::PlannedMove& move : reply.plan().move())
    EXPECT_EQ(move.reason(), "server 1 is drained");
  const wire::View* const view = ViewFor(effects, Server(1));
  ASSERT_NE(view, nullptr);
  EXPECT_TRUE(view->server(1).draining());
  EXPECT_FALSE(view->server(0).draining());

  const auto leave = [&](uint64_t id) {
    return Call(Server(1), servers_[1], id,
                [](wire::Call& call) { call.mutable_leave(); });
  };
  const CoordinatorCore::Effects early = leave(1);
  EXPECT_THAT(Answers(early), ElementsAre("server.1.201:1 REJECTED"));
  EXPECT_THAT(early.sends[0].message.header.call_reply().error(),
              HasSubstr("still has shards"));
  Done(1);
  EXPECT_THAT(Answers(leave(2)), ElementsAre("server.1.201:2 REJECTED"));
  Done(3);
  const CoordinatorCore::Effects left = leave(3);
  EXPECT_THAT(Answers(left), ElementsAre("server.1.201:3 OK"));
  EXPECT_THAT(left.log, ElementsAre(HasSubstr("had no shards and has left")));
  EXPECT_EQ(core_->state(), wire::RUNNING);
  ASSERT_NE(ViewFor(left, Worker(0)), nullptr);
  EXPECT_EQ(ViewNow().server_size(), 2);
  EXPECT_THAT(Owners(), Not(testing::Contains(1)));
}

TEST_F(PlacementTest, AnEmptyServerToWhichAShardIsOnItsWayHasToStay) {
  StartJob();
  AddServer(2);
  Ask(Moving({0}, 2));
  const CoordinatorCore::Effects effects =
      Call(Server(2), servers_[2], 1,
           [](wire::Call& call) { call.mutable_leave(); });
  EXPECT_THAT(effects.sends.at(0).message.header.call_reply().error(),
              HasSubstr("server 2 (pid 4202 on somewhere) still has shards, or "
                        "is to get some"));
}

TEST_F(PlacementTest, AServerWithoutShardsMayLeaveUnlessItIsTheFirst) {
  StartJob();
  AddServer(2);
  Ask(Moving({0, 2, 4}, 1));
  for (const int32_t shard : {0, 2, 4}) Done(shard);
  const auto leave = [&](int server) {
    return Answers(Call(Server(server), servers_[server], 1,
                        [](wire::Call& call) { call.mutable_leave(); }));
  };
  EXPECT_THAT(leave(2), ElementsAre("server.2.202:1 OK"));
  EXPECT_THAT(leave(0), ElementsAre("server.0.200:1 REJECTED"))
      << "it hosts the coordinator";
  EXPECT_EQ(ViewNow().server_size(), 2);
}

TEST_F(PlacementTest, TheLastServerThatTakesShardsIsNotDrained) {
  StartJob();
  AddServer(2);
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  EXPECT_EQ(ReplyIn(Ask(Draining(1))).code(), wire::OK);
  EXPECT_EQ(ReplyIn(Ask(Draining(2))).code(), wire::OK)
      << "server 0 is left to take them";
  EXPECT_EQ(ReplyIn(Ask(Draining(1))).code(), wire::OK) << "as it is already";
}

TEST_F(PlacementTest, AServerIsNotDrainedBeforeTheLoadsAreKnown) {
  StartJob();
  Load(1, 0.1);
  const wire::CallReply reply = ReplyIn(Ask(Draining(1)));
  EXPECT_EQ(reply.code(), wire::BUSY);
  EXPECT_THAT(reply.error(),
              HasSubstr("server 0 has not said yet how loaded it is"));
  EXPECT_FALSE(ViewNow().server(1).draining());
  EXPECT_EQ(ReplyIn(Ask(Moving({0}, 1))).code(), wire::OK)
      << "it still takes shards";
}

TEST_F(PlacementTest, WhatComesToADrainedServerGoesAgain) {
  options_.rebalance.config.set_concurrent_moves(1);
  options_.lease = absl::Hours(1);
  Restart();
  StartJob();
  AddServer(2);
  Ask(Moving({0, 2}, 2));
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  Ask(Draining(2));
  Done(0);
  Done(2);
  ASSERT_THAT(Owners(), ElementsAre(2, 1, 2, 1, 0));
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  now_ += absl::Seconds(3);
  CoordinatorCore::Effects effects;
  core_->OnTick(now_, &effects);
  ASSERT_THAT(MovesOf(ViewNow()), SizeIs(1));
  while (ViewNow().move_size() > 0) Done(ViewNow().move(0).shard());
  EXPECT_THAT(Owners(), Not(testing::Contains(2)));
}

// ---- Plans ------------------------------------------------------------------

TEST_F(PlacementTest, APlanMovesWorkToWhereThereIsLess) {
  StartJob();
  LoadUnevenly();
  const wire::CallReply reply = ReplyIn(Ask(Rebalancing));
  EXPECT_EQ(reply.code(), wire::OK) << reply.error();
  ASSERT_EQ(reply.plan().move_size(), 1) << reply.plan().summary();
  EXPECT_EQ(reply.plan().move(0).from_server(), 0);
  EXPECT_EQ(reply.plan().move(0).to_server(), 1);
  EXPECT_NEAR(reply.plan().worst_before(), 0.9, 1e-6);
  EXPECT_NEAR(reply.plan().worst_after(), 0.6, 1e-6);
  EXPECT_EQ(
      reply.plan().move(0).reason(),
      "server 0 thread 0 is busy 90 % of its time, server 1 thread 0 2 %");
  EXPECT_EQ(ViewNow().move_size(), 1);
}

TEST_F(PlacementTest, ADryRunOnlyPlans) {
  StartJob();
  LoadUnevenly();
  const uint64_t number = ViewNow().number();
  const wire::CallReply reply = ReplyIn(Ask(
      [](wire::Call& call) { call.mutable_rebalance()->set_dry_run(true); }));
  EXPECT_EQ(reply.plan().move_size(), 1);
  EXPECT_EQ(ViewNow().number(), number);
  EXPECT_EQ(core_->Status(now_).plan().move_size(), 0);
}

TEST_F(PlacementTest, NothingIsPlannedBeforeTheLoadsAreKnown) {
  StartJob();
  Load(0, 0.3);
  const wire::CallReply reply = ReplyIn(Ask(Rebalancing));
  EXPECT_EQ(reply.code(), wire::BUSY);
  EXPECT_EQ(reply.error(),
            "server 1 has not said yet how loaded it is; try again in a "
            "second");
}

class AutoPlacementTest : public PlacementTest {
 protected:
  AutoPlacementTest() {
    options_.rebalance.config.set_mode(config::Rebalance::AUTO);
    options_.lease = absl::Hours(1);
    Restart();
  }
  // Ticks when the core wants to be woken, for so long.
  CoordinatorCore::Effects Wait(absl::Duration time) {
    CoordinatorCore::Effects effects;
    const absl::Time end = now_ + time;
    int wakeups = 0;
    while (core_->NextWakeup() <= end) {
      now_ = std::max(now_, core_->NextWakeup());
      core_->OnTick(now_, &effects);
      if (++wakeups > 1000) {
        ADD_FAILURE() << "it does not sleep";
        break;
      }
    }
    now_ = end;
    return effects;
  }
};

TEST_F(AutoPlacementTest, PlansByItselfAfterTheInterval) {
  StartJob();
  LoadUnevenly();
  Wait(absl::Milliseconds(1900));
  EXPECT_EQ(ViewNow().move_size(), 0);
  const CoordinatorCore::Effects effects = Wait(absl::Milliseconds(200));
  EXPECT_EQ(ViewNow().move_size(), 1);
  EXPECT_THAT(effects.log, ElementsAre(HasSubstr("rebalancing: ")));
  EXPECT_NE(ViewFor(effects, Server(1)), nullptr);
}

TEST_F(AutoPlacementTest, PlansNothingBeforeAllLoadsAreKnown) {
  StartJob();
  Load(0, 0.3);
  Wait(absl::Seconds(10));
  EXPECT_EQ(ViewNow().move_size(), 0);
  Load(1, 0.01);
  Wait(absl::Seconds(3));
  EXPECT_EQ(ViewNow().move_size(), 1);
}

TEST_F(AutoPlacementTest, PlansNothingWhileMovesAreUnderWay) {
  StartJob();
  Ask(Moving({1}, 0));
  LoadUnevenly();
  Wait(absl::Seconds(10));
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("1>0.0"));
}

TEST_F(AutoPlacementTest, LoadsAreMeasuredAnewAfterAMove) {
  options_.rebalance.config.set_rest_ms(0);
  Restart();
  StartJob();
  LoadUnevenly();
  Wait(absl::Milliseconds(2100));
  ASSERT_EQ(ViewNow().move_size(), 1);
  Wait(absl::Milliseconds(1900));
  Done(ViewNow().move(0).shard());
  LoadUnevenly();
  Wait(absl::Milliseconds(1900));
  EXPECT_EQ(ViewNow().move_size(), 0);
  Wait(absl::Milliseconds(200));
  EXPECT_EQ(ViewNow().move_size(), 1);
}

TEST_F(AutoPlacementTest, AShardThatHasMovedRests) {
  StartJob();
  Ask(Moving({0, 2, 4}, 1));
  for (const int32_t shard : {0, 2, 4}) Done(shard);
  Load(0, 0.01);
  run::ServerStats stats;
  run::ThreadLoad& load = *stats.add_thread();
  load.set_bytes_per_busy_second(1e9);
  for (const int32_t shard : {0, 2, 4}) {
    load.add_shard()->set_shard(shard);
    load.mutable_shard(load.shard_size() - 1)->set_busy(0.3);
  }
  Tell(1, stats);
  Wait(absl::Seconds(9));
  EXPECT_EQ(ViewNow().move_size(), 0) << "those with load rest";
  Wait(absl::Seconds(4));
  EXPECT_EQ(ViewNow().move_size(), 1);
}

TEST_F(AutoPlacementTest, OnlyAutoPlansByItself) {
  options_.rebalance.config.set_mode(config::Rebalance::MANUAL);
  Restart();
  StartJob();
  LoadUnevenly();
  EXPECT_THAT(Wait(absl::Seconds(30)).log, IsEmpty());
  EXPECT_EQ(ViewNow().move_size(), 0);
}

TEST_F(AutoPlacementTest, WhereNothingMovesItSleepsAllTheSame) {
  options_.rebalance.config.set_mode(config::Rebalance::OFF);
  Restart();
  StartJob();
  LoadUnevenly();
  Wait(absl::Seconds(30));
  EXPECT_EQ(ViewNow().move_size(), 0);
  options_.sync.mutable_allreduce();
  Restart();
  servers_.clear();
  workers_.clear();
  StartJob();
  Wait(absl::Seconds(30));
}

// ---- Modes ------------------------------------------------------------------

class ModeTest : public PlacementTest {
 protected:
  ModeTest() {
    options_.shard_elements = 5;  // One shard for each server.
    steps_total_ = 100;
    Restart();
  }

  static std::function<void(wire::Call&)> Setting(const sync::Mode& mode) {
    return [=](wire::Call& call) {
      *call.mutable_set_mode()->mutable_mode() = mode;
    };
  }
  static std::function<void(wire::Call&)> Setting(absl::string_view mode) {
    return Setting(ModeOf(mode));
  }
  // From a worker, under a new id.
  CoordinatorCore::Effects Say(int rank,
                               const std::function<void(wire::Call&)>& fill) {
    CoordinatorCore::Effects effects =
        Call(Worker(rank), workers_.at(rank), ++call_id_, fill);
    EXPECT_EQ(AnswerTo(rank, effects), "OK");
    return effects;
  }
  static std::string AnswerTo(int rank,
                              const CoordinatorCore::Effects& effects) {
    for (const Outgoing& out : effects.sends) {
      if (out.to == Worker(rank) && out.message.header.has_call_reply())
        return wire::Code_Name(out.message.header.call_reply().code());
    }
    return "none";
  }
  CoordinatorCore::Effects Promise(int rank, Clock clock) {
    const uint64_t change = ViewNow().change().id();
    return Say(rank, [=](wire::Call& call) {
      call.mutable_step_limit()->set_change(change);
      call.mutable_step_limit()->set_clock(clock);
    });
  }
  CoordinatorCore::Effects Arrive(int rank, Clock clock) {
    return Say(rank, [=](wire::Call& call) {
      call.mutable_arrive()->set_clock(clock);
    });
  }
  CoordinatorCore::Effects Enter(int rank, Clock from, uint64_t hash = 0) {
    return Say(rank, [=](wire::Call& call) {
      call.mutable_entered()->set_from(from);
      call.mutable_entered()->set_pause_micros(1500);
      call.mutable_entered()->set_model_hash(hash);
    });
  }
  CoordinatorCore::Effects Regroup(int rank, uint64_t group) {
    return Say(rank, [=](wire::Call& call) {
      call.mutable_regroup()->set_group(group);
    });
  }
  // All workers promise, and from `clock` on the new mode holds.
  void ChangeTo(absl::string_view mode, Clock clock) {
    EXPECT_EQ(ReplyIn(Ask(Setting(mode))).error(), "");
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      Promise(static_cast<int>(rank), clock);
    }
    EXPECT_EQ(ViewNow().phase(ViewNow().phase_size() - 1).from(), clock);
  }
};

TEST_F(ModeTest, TheViewListsThePhasesOfTheConfig) {
  EXPECT_EQ(ViewNow().phase_size(), 0) << "nobody knows the steps yet";
  for (const double until : {0.5, 3.0, 0.0}) {
    config::Phase& phase = *options_.sync.add_phase();
    phase.mutable_ssp()->set_staleness(1 + options_.sync.phase_size());
    if (until > 0) phase.set_until_epoch(until);
  }
  Restart();
  for (const PeerId& peer : {Server(0), Server(1), Worker(0)}) Join(peer);
  const CoordinatorCore::Effects effects =
      SendJoin(Worker(1), JoinOf(Worker(1)));
  const wire::View* const view = ViewFor(effects, Worker(0));
  ASSERT_NE(view, nullptr);
  ASSERT_EQ(view->phase_size(), 2);
  EXPECT_EQ(view->phase(1).from(), 50);
  EXPECT_EQ(ModeText(view->phase(1).mode()), "ssp:3");
  EXPECT_THAT(effects.log,
              testing::Contains(HasSubstr("phase ssp:4 would begin at step "
                                          "100")));
}

TEST_F(ModeTest, AUserChangesTheMode) {
  StartJob();
  now_ += absl::Seconds(2);
  const CoordinatorCore::Effects asked = Ask(Setting("ssp:3"));
  EXPECT_EQ(ReplyIn(asked).code(), wire::OK);
  EXPECT_EQ(ReplyIn(asked).text(), "will change from bsp to ssp:3");
  for (const PeerId& peer : {Worker(0), Worker(1), Server(1)}) {
    const wire::View* const view = ViewFor(asked, peer);
    ASSERT_NE(view, nullptr);
    EXPECT_EQ(ModeText(view->change().mode()), "ssp:3");
    EXPECT_EQ(view->change().id(), view->number());
    EXPECT_TRUE(View::Create(*view).ok());
  }
  EXPECT_EQ(ViewFor(Promise(0, 12), Worker(0)), nullptr);
  const CoordinatorCore::Effects last = Promise(1, 9);
  const wire::View* const view = ViewFor(last, Server(0));
  ASSERT_NE(view, nullptr);
  EXPECT_FALSE(view->has_change());
  ASSERT_EQ(view->phase_size(), 2);
  EXPECT_EQ(ModeText(view->phase(1).mode()), "ssp:3");
  EXPECT_EQ(view->phase(1).from(), 12);

  EXPECT_EQ(core_->Summary().mode_changes(), 0);
  Enter(0, 12);
  const CoordinatorCore::Effects done = Enter(1, 12);
  ASSERT_EQ(done.modes.size(), 1u);
  EXPECT_EQ(ModeText(done.modes[0].from()), "bsp");
  EXPECT_EQ(ModeText(done.modes[0].to()), "ssp:3");
  EXPECT_EQ(done.modes[0].reason(), "asked for by a user");
  EXPECT_EQ(done.modes[0].seconds(), 2);
  EXPECT_THAT(done.log,
              ElementsAre(HasSubstr("the mode has changed from bsp to ssp:3 at "
                                    "step 12: the workers stood still for at "
                                    "most 1.5 ms")));
  EXPECT_EQ(ViewNow().entered(), 1);
  EXPECT_NE(ViewFor(done, Worker(0)), nullptr);
  EXPECT_EQ(core_->Summary().mode_changes(), 1);
  ASSERT_EQ(core_->Status(now_).mode_changed_size(), 1);
  EXPECT_EQ(ModeText(core_->Status(now_).mode_changed(0).to()), "ssp:3");
}

TEST_F(ModeTest, ARepeatedCallChangesTheModeOnce) {
  StartJob();
  const CoordinatorCore::Effects first = Call(kUser, 0, 9, Setting("asp"));
  Promise(0, 12);
  Promise(1, 12);
  Enter(0, 12);
  Enter(1, 12);
  const uint64_t number = ViewNow().number();
  const CoordinatorCore::Effects again = Call(kUser, 0, 9, Setting("asp"));
  EXPECT_EQ(ReplyIn(again).SerializeAsString(),
            ReplyIn(first).SerializeAsString());
  EXPECT_EQ(ViewNow().number(), number);
}

TEST_F(ModeTest, AModeThatCannotBeIsRefusedWithTheReason) {
  const auto why = [&](const std::function<void(wire::Call&)>& fill,
                       wire::Code code = wire::REJECTED) {
    const wire::CallReply reply = ReplyIn(Ask(fill));
    EXPECT_EQ(reply.code(), code);
    return reply.error();
  };
  EXPECT_EQ(why(Setting("asp")), "the job does not run");
  StartJob();
  const uint64_t number = ViewNow().number();
  EXPECT_EQ(why(Setting("bsp")), "the mode is bsp already");
  const auto why_not = [&](const sync::Mode& mode) {
    return why(Setting(mode));
  };
  sync::Mode mode;
  mode.mutable_ssp()->set_staleness(-1);
  EXPECT_EQ(why_not(mode),
            "ssp:-1: staleness: value is -1; 0 to 1000000 is required; for no "
            "bound use asp");
  EXPECT_THAT(why_not(sync::Mode()), HasSubstr("no mode is set"));
  // As of a program that has more modes: field 77, a message of 0 bytes.
  sync::Mode unknown;
  ASSERT_TRUE(unknown.ParseFromString(std::string("\xea\x04\0", 3)));
  EXPECT_THAT(why_not(unknown), HasSubstr("not known here"));
  EXPECT_THAT(why([](wire::Call& call) { call.mutable_set_mode(); }),
              HasSubstr("no mode is set"));
  mode.mutable_dssp()->set_min_staleness(4);
  mode.mutable_dssp()->set_max_staleness(3);
  EXPECT_EQ(
      why_not(mode),
      "dssp:4:3: max_staleness: value is 3; at least the smallest bound (4) "
      "is required");
  mode.mutable_dssp()->set_max_staleness(2000000000);
  EXPECT_THAT(why_not(mode),
              HasSubstr("value is 2000000000; 0 to 1000000 is required"));
  for (const int late : {-1, 0, 2}) {
    mode.mutable_backup()->set_workers(late);
    EXPECT_EQ(why_not(mode),
              absl::StrCat("backup:", late, ": workers: value is ", late,
                           "; 1 to 1 is required; there are 2 workers"));
  }
  EXPECT_EQ(ViewNow().number(), number);
  Ask(Setting("ssp:3"));
  EXPECT_THAT(why(Setting("asp"), wire::BUSY),
              HasSubstr("the mode is just changing from bsp to ssp:3"));
  Promise(0, 12);
  Promise(1, 12);
  EXPECT_THAT(why(Setting("asp"), wire::BUSY),
              HasSubstr("the mode changes to ssp:3 at step 12"));
  Enter(0, 12);
  Enter(1, 12);
  EXPECT_EQ(why(Setting("ssp:3")), "the mode is ssp:3 already");
  Leave(0);
  EXPECT_THAT(why(Setting("asp")), HasSubstr("the job is about to end"));
}

TEST_F(ModeTest, OfAModeOnlyWhatIsKnownGoesToOthers) {
  StartJob();
  sync::Mode mode = ModeOf("ssp:3");
  for (google::protobuf::Message* const part :
       std::initializer_list<google::protobuf::Message*>{&mode,
                                                         mode.mutable_ssp()}) {
    part->GetReflection()->MutableUnknownFields(part)->AddLengthDelimited(
        99, std::string(1000, 'x'));
  }
  Ask(Setting(mode));
  EXPECT_EQ(ViewNow().change().mode().SerializeAsString(),
            ModeOf("ssp:3").SerializeAsString());
}

TEST_F(ModeTest, APhaseThatLiesAheadForbidsAChange) {
  options_.sync.add_phase()->mutable_bsp();
  options_.sync.mutable_phase(0)->set_until_epoch(0.5);
  options_.sync.add_phase()->mutable_asp();
  Restart();
  StartJob();
  EXPECT_EQ(ReplyIn(Ask(Setting("ssp:0"))).error(),
            "the mode changes to asp at step 50 (schedule); try again when it "
            "has");
  Enter(0, 50);
  Enter(1, 50);
  EXPECT_EQ(ReplyIn(Ask(Setting("ssp:0"))).code(), wire::OK);
}

TEST_F(ModeTest, WhoDiesBeforePromisingHoldsNothingUp) {
  StartJob();
  Ask(Setting("asp"));
  Promise(0, 12);
  const CoordinatorCore::Effects effects = Pass(absl::Seconds(6), {Worker(1)});
  const wire::View* const view = ViewFor(effects, Worker(0));
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(view->worker_size(), 1);
  EXPECT_EQ(view->phase(1).from(), 12) << "in the view without it";
}

TEST_F(ModeTest, WhoDiesAfterPromisingHoldsNothingUp) {
  StartJob();
  Ask(Setting("asp"));
  Promise(1, 50);
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_TRUE(ViewNow().has_change());
  Promise(0, 12);
  EXPECT_EQ(ViewNow().phase(1).from(), 12);
}

TEST_F(ModeTest, WhoDiesBetweenTheFenceAndItsArrivalHoldsNothingUp) {
  options_.sync.mutable_allreduce();
  Restart();
  StartJob();
  ChangeTo("bsp", 12);
  Arrive(0, 12);
  EXPECT_EQ(ViewNow().arrived(), 0);
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(ViewNow().arrived(), 12);
  const CoordinatorCore::Effects done = Enter(0, 12);
  ASSERT_EQ(done.modes.size(), 1u);
  EXPECT_EQ(done.modes[0].workers(), 1);
}

TEST_F(ModeTest, WhoIsFencedHasNoSayInAChange) {
  StartJob();
  Ask(Setting("asp"));
  const uint64_t change = ViewNow().change().id();
  Pass(absl::Seconds(6), {Worker(1)});
  const CoordinatorCore::Effects late =
      Call(Worker(1), workers_[1], 77, [&](wire::Call& call) {
        call.mutable_step_limit()->set_change(change);
        call.mutable_step_limit()->set_clock(90);
      });
  EXPECT_EQ(AnswerTo(1, late), "FENCED");
  Promise(0, 12);
  EXPECT_EQ(ViewNow().phase(1).from(), 12);
}

TEST_F(ModeTest, LateAndRepeatedCallsAreAnsweredAndChangeNothing) {
  options_.sync.mutable_allreduce();
  Restart();
  StartJob();
  Ask(Setting("ssp:0"));
  const uint64_t change = ViewNow().change().id();
  Promise(0, 12);
  Promise(1, 12);
  for (const int rank : {0, 1}) Arrive(rank, 12);
  for (const int rank : {0, 1}) Enter(rank, 12);
  const uint64_t number = ViewNow().number();
  for (const int rank : {0, 1}) {
    Say(rank, [=](wire::Call& call) {
      call.mutable_step_limit()->set_change(change);
      call.mutable_step_limit()->set_clock(40);
    });
    Arrive(rank, 12);
    Enter(rank, 12);
  }
  EXPECT_EQ(ViewNow().number(), number);
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  Arrive(0, 100);
  Enter(0, 12);
  EXPECT_EQ(ViewNow().number(), number + 1);
}

TEST_F(ModeTest, AChangeAtTheEndOfTheJobIsDropped) {
  StartJob();
  Ask(Setting("asp"));
  Promise(0, 12);
  const CoordinatorCore::Effects last = Promise(1, 100);
  EXPECT_EQ(ViewNow().phase_size(), 1);
  EXPECT_FALSE(ViewNow().has_change());
  EXPECT_NE(ViewFor(last, Worker(0)), nullptr) << "who waits may go on";
  EXPECT_THAT(last.log, ElementsAre(HasSubstr("does not change")));
  EXPECT_EQ(core_->state(), wire::RUNNING);
}

TEST_F(ModeTest, DifferentModelsFailTheJob) {
  StartJob();
  ChangeTo("allreduce", 12);
  Enter(0, 12, 1);
  const CoordinatorCore::Effects effects = Enter(1, 12, 2);
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              AllOf(HasSubstr("worker 0 has hash 0000000000000001"),
                    HasSubstr("worker 1 has 0000000000000002")));
  EXPECT_NE(ViewFor(effects, Server(1)), nullptr);
}

// ---- Groups -----------------------------------------------------------------

TEST_F(ModeTest, AGroupLastsWhileTheWorkersAreTheSame) {
  options_.sync.mutable_allreduce();
  Restart();
  StartJob();
  const uint64_t first = ViewNow().group();
  EXPECT_EQ(first, ViewNow().number());
  AddServer(2);
  ChangeTo("bsp", 12);
  EXPECT_EQ(ViewNow().group(), first);
  Leave(1);
  EXPECT_EQ(ViewNow().group(), first) << "it is done, but there";
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_GT(ViewNow().group(), first);
}

TEST_F(ModeTest, AWorkerThatJoinsMakesANewGroup) {
  options_.sync.mutable_allreduce();
  Restart();
  StartJob();
  Pass(absl::Seconds(6), {Worker(1)});
  const uint64_t without = ViewNow().group();
  Join(Worker(1, 777));
  EXPECT_GT(ViewNow().group(), without);
  EXPECT_EQ(ViewNow().group(), ViewNow().number());
}

TEST_F(ModeTest, LostConnectionsMakeANewGroupOnce) {
  options_.sync.mutable_allreduce();
  Restart();
  StartJob();
  const uint64_t first = ViewNow().group();
  const CoordinatorCore::Effects effects = Regroup(0, first);
  const uint64_t second = ViewNow().group();
  EXPECT_GT(second, first);
  EXPECT_EQ(second, ViewNow().number());
  EXPECT_NE(ViewFor(effects, Worker(1)), nullptr);
  EXPECT_THAT(effects.log,
              ElementsAre(HasSubstr("worker 0 (pid 4100 on somewhere) has lost "
                                    "its connections")));
  Regroup(1, first);  // It has lost them for the same reason.
  Regroup(0, first);
  EXPECT_EQ(ViewNow().group(), second);
  Regroup(1, second);
  EXPECT_GT(ViewNow().group(), second);
}

TEST_F(ModeTest, WhoComesWhenAllHaveArrivedJoinsAfterTheChange) {
  options_.sync.mutable_allreduce();
  options_.workers = 3;
  Restart();
  StartJob();
  Pass(absl::Seconds(6), {Worker(2)});
  workers_.pop_back();
  ChangeTo("bsp", 12);
  Arrive(0, 12);
  Arrive(1, 12);
  const PeerId late = Worker(2, 777);
  EXPECT_EQ(Join(late).code(), wire::RETRY);
  EXPECT_EQ(Join(late).error(),
            "the mode is just changing from allreduce to bsp");
  EXPECT_EQ(Join(Server(2)).code(), wire::OK) << "servers do not mind";
  Enter(0, 12);
  Enter(1, 12);
  EXPECT_EQ(Join(late).code(), wire::OK);
  EXPECT_EQ(ViewNow().worker_size(), 3);
}

// ---- The policy -------------------------------------------------------------

class ModePolicyOfTheJobTest : public ModeTest {
 protected:
  ModePolicyOfTheJobTest() {
    steps_total_ = 100000;
    options_.sync.mutable_auto_()->set_staleness(4);
    options_.lease = absl::Seconds(5);
    Restart();
  }
  // Heartbeats of all, one in a second, with the steps that each worker has
  // done, which take it so long.
  CoordinatorCore::Effects Train(int seconds,
                                 const std::vector<double>& step_ms) {
    CoordinatorCore::Effects all;
    for (int i = 0; i < seconds; ++i) {
      now_ += absl::Seconds(1);
      for (size_t s = 0; s < servers_.size(); ++s)
        Heartbeat(Server(static_cast<int>(s)), servers_[s]);
      for (size_t w = 0; w < workers_.size(); ++w) {
        stats_.resize(workers_.size());
        stats_[w].set_clock(stats_[w].clock() + 30);
        stats_[w].set_compute_seconds(stats_[w].compute_seconds() +
                                      30 * step_ms.at(w) / 1000);
        Message message;
        message.header.set_view_number(ViewNow().number());
        message.header.mutable_heartbeat()->set_incarnation(workers_[w]);
        *message.header.mutable_heartbeat()->mutable_worker() = stats_[w];
        const CoordinatorCore::Effects effects =
            Send(Worker(static_cast<int>(w)), message);
        all.log.insert(all.log.end(), effects.log.begin(), effects.log.end());
      }
      CoordinatorCore::Effects effects;
      core_->OnTick(now_, &effects);
      all.log.insert(all.log.end(), effects.log.begin(), effects.log.end());
    }
    return all;
  }
  CoordinatorCore::Effects Automatic() {
    return Ask(
        [](wire::Call& call) { call.mutable_set_mode()->mutable_by_policy(); });
  }
  std::string Policy() { return core_->Status(now_).mode_policy(); }

  std::vector<run::WorkerStats> stats_;
};

TEST_F(ModePolicyOfTheJobTest, BeginsWithAllReduceAndLeavesItForAStraggler) {
  StartJob();
  EXPECT_EQ(ModeText(ViewNow().phase(0).mode()), "allreduce");
  EXPECT_EQ(Policy(), "has not measured yet");
  EXPECT_THAT(Train(10, {7, 7}).log, IsEmpty());
  const CoordinatorCore::Effects effects = Train(10, {7, 28});
  ASSERT_THAT(effects.log, SizeIs(1));
  EXPECT_THAT(effects.log[0],
              AllOf(HasSubstr("the mode will change from allreduce to ssp:4: "
                              "rank 1 takes "),
                    HasSubstr(" ms a step, the median worker 7.0 ms ("),
                    HasSubstr(" times, bound 1.5) for ")));
  ASSERT_TRUE(ViewNow().has_change());
  EXPECT_EQ(ModeText(ViewNow().change().mode()), "ssp:4");
  EXPECT_THAT(Train(20, {7, 28}).log, IsEmpty()) << "one change at a time";
  Promise(0, 1500);
  Promise(1, 1500);
  Enter(0, 1500);
  const CoordinatorCore::Effects done = Enter(1, 1500);
  ASSERT_EQ(done.modes.size(), 1u);
  EXPECT_THAT(done.modes[0].reason(), HasSubstr("rank 1 takes"));
  EXPECT_THAT(Train(10, {7, 28}).log, IsEmpty());
  EXPECT_THAT(Policy(), HasSubstr("rank 1 takes 28.0 ms a step, the median "
                                  "worker 7.0 ms (4.00 times"));
  EXPECT_THAT(Train(10, {7, 7}).log,
              ElementsAre(HasSubstr("from ssp:4 to allreduce")));
}

TEST_F(ModePolicyOfTheJobTest, AUsersModeSwitchesItOff) {
  StartJob();
  EXPECT_EQ(ReplyIn(Ask(Setting("allreduce"))).text(), "stays allreduce");
  EXPECT_EQ(Policy(), "");
  EXPECT_THAT(Train(20, {7, 28}).log, IsEmpty());
  EXPECT_EQ(ReplyIn(Ask(Setting("allreduce"))).code(), wire::REJECTED);
  EXPECT_EQ(ReplyIn(Automatic()).code(), wire::OK);
  EXPECT_THAT(Train(20, {7, 28}).log,
              ElementsAre(HasSubstr("from allreduce to ssp:4")));
}

TEST_F(ModePolicyOfTheJobTest, AUserSwitchesItOnInAnyJob) {
  options_.sync.mutable_bsp();
  Restart();
  StartJob();
  EXPECT_EQ(Policy(), "");
  const CoordinatorCore::Effects effects = Automatic();
  EXPECT_EQ(ReplyIn(effects).text(),
            "will change when the workers' step times speak for it");
  EXPECT_THAT(effects.log, ElementsAre(HasSubstr("chosen by the policy")));
  EXPECT_THAT(Automatic().log, IsEmpty()) << "it is on already";
  EXPECT_THAT(Train(20, {7, 28}).log,
              ElementsAre(HasSubstr("from bsp to ssp:3")))
      << "with the defaults";
}

TEST_F(ModePolicyOfTheJobTest, PhasesThatLieAheadForbidIt) {
  options_.sync.clear_auto_();
  options_.sync.add_phase()->mutable_bsp();
  options_.sync.mutable_phase(0)->set_until_epoch(0.5);
  options_.sync.add_phase()->mutable_asp();
  Restart();
  StartJob();
  EXPECT_THAT(ReplyIn(Automatic()).error(),
              HasSubstr("the mode changes to asp at step 50000"));
}

TEST_F(ModePolicyOfTheJobTest, ItSleepsBetweenItsLooks) {
  StartJob();
  Train(2, {7, 28});
  now_ += absl::Milliseconds(500);
  int wakeups = 0;
  CoordinatorCore::Effects effects;
  for (const absl::Time end = now_ + absl::Seconds(4);
       core_->NextWakeup() <= end && wakeups < 100; ++wakeups) {
    now_ = std::max(now_, core_->NextWakeup());
    core_->OnTick(now_, &effects);
  }
  EXPECT_LT(wakeups, 10);
  EXPECT_THAT(effects.log, ElementsAre(HasSubstr("to ssp:4")))
      << "the hold ends without further news";
}

// ---- Modes and placement ----------------------------------------------------

TEST_F(ModeTest, AChangeWaitsForMovesAndOtherMovesForTheChange) {
  options_.shard_elements = 2;
  options_.rebalance.config.set_concurrent_moves(1);
  Restart();
  StartJob();
  Ask(Moving({0, 2}, 1));
  ASSERT_THAT(MovesOf(ViewNow()), ElementsAre("0>1.0"));
  const wire::CallReply reply = ReplyIn(Ask(Setting("asp")));
  EXPECT_EQ(reply.text(),
            "will change from bsp to asp once 1 moves of shards are done");
  EXPECT_FALSE(ViewNow().has_change());
  EXPECT_THAT(ReplyIn(Ask(Moving({4}, 1))).error(),
              HasSubstr("the mode is just changing"));
  Done(0);
  EXPECT_THAT(MovesOf(ViewNow()), IsEmpty()) << "the other one waits";
  EXPECT_TRUE(ViewNow().has_change());
  Promise(0, 12);
  Promise(1, 12);
  Enter(0, 12);
  EXPECT_THAT(MovesOf(ViewNow()), IsEmpty());
  Enter(1, 12);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("2>1.0"));
  EXPECT_EQ(ViewNow().move(0).id(), ViewNow().number());
}

TEST_F(ModeTest, MovesThatWaitDoSoUntilTheServersHaveTheModelAgain) {
  options_.shard_elements = 2;
  options_.rebalance.config.set_concurrent_moves(1);
  Restart();
  StartJob();
  Ask(Moving({0, 2}, 1));
  Ask(Setting("allreduce"));
  Done(0);
  Promise(0, 12);
  Promise(1, 12);
  Enter(0, 12);
  Enter(1, 12);
  EXPECT_THAT(MovesOf(ViewNow()), IsEmpty());
  ChangeTo("asp", 30);
  for (const int rank : {0, 1}) Arrive(rank, 30);
  Enter(0, 30);
  EXPECT_THAT(MovesOf(ViewNow()), IsEmpty());
  Enter(1, 30);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("2>1.0"));
}

// The coordinator knows how far the workers are from heartbeats, with a delay.
TEST_F(ModeTest, AMoveThatIsUnderWayWhenScheduledAllReduceBeginsComesToItsEnd) {
  options_.shard_elements = 2;
  options_.rebalance.config.set_concurrent_moves(1);
  config::Phase& first = *options_.sync.add_phase();
  first.mutable_bsp();
  first.set_until_epoch(0.2);
  options_.sync.add_phase()->mutable_allreduce();
  Restart();
  StartJob();
  Ask(Moving({0, 2}, 1));
  ASSERT_THAT(MovesOf(ViewNow()), ElementsAre("0>1.0"));
  Enter(0, 20);
  Enter(1, 20);
  ASSERT_EQ(ViewNow().entered(), 1);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("0>1.0")) << "never taken back";
  Done(0);
  EXPECT_THAT(MovesOf(ViewNow()), IsEmpty()) << "and no other one begins";
  EXPECT_EQ(ViewNow().owner_server(0), 1);
}

TEST_F(ModeTest, TheDeathOfTheServerThatAShardWasToMoveToLetsTheChangeBegin) {
  StartJob();
  AddServer(2);
  Ask(Moving({0}, 2));
  Ask(Setting("asp"));
  EXPECT_FALSE(ViewNow().has_change());
  Pass(absl::Seconds(6), {Server(2)});
  EXPECT_TRUE(ViewNow().has_change());
}

TEST_F(AutoPlacementTest, PlansNothingWhileTheModeChanges) {
  steps_total_ = 100;
  StartJob();
  LoadUnevenly();
  Ask([](wire::Call& call) {
    call.mutable_set_mode()->mutable_mode()->mutable_asp();
  });
  Wait(absl::Seconds(10));
  EXPECT_EQ(ViewNow().move_size(), 0);
}

}  // namespace
}  // namespace slackline
