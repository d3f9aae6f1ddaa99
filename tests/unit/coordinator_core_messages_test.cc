// Goal: what members are sent and may say, and that every call is answered once
// its time has come. Method: a job of a few members, played by hand on virtual
// time.
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator_core_fixture.h"

namespace slackline::coordinator_core_messages_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- Views ------------------------------------------------------------------

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

TEST_F(CoordinatorCoreTest, AHeartbeatThatKnowsAnOlderViewIsSentTheNewOne) {
  StartJob();
  EXPECT_NE(ViewFor(Heartbeat(Worker(0), workers_[0], 1), Worker(0)), nullptr);
  const uint64_t number = core_->Status(now_).view().number();
  EXPECT_EQ(ViewFor(Heartbeat(Worker(0), workers_[0], number), Worker(0)),
            nullptr);
}

// ---- What a member may say --------------------------------------------------

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
  options_.config.mutable_train()->set_nonfinite(config::Train::STOP);
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
    WorkerSays([&](run::WorkerStats& stats) {
      stats.set_clock(5);
      stats.add_answers()->set_seconds(bad);
    });
    EXPECT_EQ(core_->Status(now_).worker(1).clock(), 0);
  }
  WorkerSays([](run::WorkerStats& stats) {
    stats.set_clock(5);
    stats.add_answers()->set_messages(std::numeric_limits<uint64_t>::max());
  });
  WorkerSays([](run::WorkerStats& stats) {
    stats.set_clock(5);
    for (int i = 0; i < 5000; ++i) stats.add_answers();
  });
  EXPECT_EQ(core_->Status(now_).worker(1).clock(), 0)
      << "there are fewer servers";
  WorkerSays([](run::WorkerStats& stats) { stats.add_answers(); });
  EXPECT_EQ(core_->Status(now_).worker(1).answers_size(), 0)
      << "nobody asks for them";
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
  ServerSays([](run::ServerStats& stats) {
    stats.mutable_refused()->set_no_key(std::numeric_limits<uint64_t>::max());
  });
  EXPECT_EQ(core_->Status(now_).refused().no_key(), 0);
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
  options_.config.mutable_train()->mutable_stop()->set_test_accuracy(0.5);
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
           [](auto& call) { call.mutable_gather()->set_place(1); },
           [](auto& call) { call.mutable_store_put()->set_key("k"); },
           [](auto& call) { call.mutable_store_get()->set_key("k"); },
           [](auto& call) { call.mutable_step_limit(); },
           [](auto& call) { call.mutable_next_examples(); },
           [](auto& call) { call.mutable_arrive(); },
           [](auto& call) { call.mutable_entered(); },
           [&](auto& call) { call.mutable_regroup()->set_group(Group()); }}) {
    EXPECT_THAT(Answers(Call(Server(1), servers_[1], 3, fill)),
                ElementsAre("server.1.201:3 REJECTED"));
  }
}

TEST_F(WrongWordsTest, AReasonThatAllGetToSeeIsCut) {
  StartJob();
  std::string large;  // Of characters of two bytes.
  for (int i = 0; i < 1 << 19; ++i) large += "\u00e4";
  Call(Worker(1), workers_[1], 3, [&](auto& call) {
    call.mutable_leave()->set_failure("x" + large);
    call.mutable_leave()->set_traceback("x" + large);
  });
  ASSERT_EQ(core_->Summary().traceback_size(), 1);
  EXPECT_EQ(core_->Summary().traceback(0).rank(), 1);
  EXPECT_EQ(core_->Summary().traceback(0).text(),
            absl::StrCat("x", large.substr(0, 8190), "..."));
  EXPECT_LT(core_->Summary().workers_lost(0).size(), 2000u);
  Call(kObserver, 0, 4,
       [&](auto& call) { call.mutable_stop()->set_reason(large); });
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_LT(core_->reason().size(), 2000u);
}

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

// However long each was under way: that of an age is not counted.
TEST_F(CoordinatorCoreTest, RecordsOfAWorkerDoNotGoBackInTime) {
  StartJob();
  now_ += absl::Seconds(10);
  Message message;
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat.set_incarnation(workers_[0]);
  for (const double age : {4.0, 5.0, 1.0}) {
    run::MetricRecord& record = *heartbeat.add_record();
    record.set_kind(run::MetricRecord::TRAIN);
    record.set_seconds(age);
  }
  run::MetricRecord& evaluation = *heartbeat.add_record();
  evaluation.set_kind(run::MetricRecord::EVAL);
  evaluation.set_seconds(5);
  // One that says to be of the future is of now, and holds up none of the next.
  run::MetricRecord& future = *heartbeat.add_record();
  future.set_kind(run::MetricRecord::EVAL);
  future.set_seconds(-1e9);
  const CoordinatorCore::Effects effects = Send(Worker(0), message);
  ASSERT_THAT(effects.records, SizeIs(5));
  EXPECT_NEAR(effects.records[4].seconds(), effects.records[3].seconds() + 5,
              1e-6);
  const double first = effects.records[0].seconds();
  EXPECT_EQ(effects.records[1].seconds(), first);
  EXPECT_NEAR(effects.records[2].seconds(), first + 3, 1e-6);
  EXPECT_NEAR(effects.records[3].seconds(), first - 1, 1e-6);
}

TEST_F(CoordinatorCoreTest, TheTrainLossIsTheMeanOfAllWorkersAtOneStep) {
  StartJob();
  uint64_t told[2] = {};
  const auto say = [&](int rank, int64_t step, double loss) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(workers_[static_cast<size_t>(rank)]);
    heartbeat.set_first_record(told[rank]++);
    run::MetricRecord& record = *heartbeat.add_record();
    record.set_kind(run::MetricRecord::TRAIN);
    record.set_rank(rank);
    record.set_step(step);
    record.set_loss(loss);
    Send(Worker(rank), message);
  };
  EXPECT_FALSE(core_->Summary().has_train_loss());
  say(1, 10, 0.5);
  EXPECT_EQ(core_->Summary().train_loss(), 0.5);
  say(0, 10, 0.25);
  EXPECT_EQ(core_->Summary().train_loss(), 0.375);
  say(0, 20, 0.125);
  EXPECT_EQ(core_->Summary().train_loss(), 0.125) << "of the latest step";
  say(1, 20, 0.25);
  EXPECT_EQ(core_->Summary().train_loss(), 0.1875);
}

TEST_F(CoordinatorCoreTest, AMessageThatIsNoneOfItsIsAnError) {
  Message message;
  message.header.mutable_push_request();
  const CoordinatorCore::Effects effects = Send(Worker(0), message);
  EXPECT_THAT(effects.sends.at(0).message.header.error_reply().error(),
              HasSubstr("joins, heartbeats and calls"));
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
  options_.config.mutable_train()->set_nonfinite(config::Train::SKIP);
  Restart();
  StartJob();
  EXPECT_THAT(ReportOne().log, ElementsAre(HasSubstr("worker 1 has pushed")));
  EXPECT_THAT(ReportOne().log, IsEmpty());
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(core_->Summary().nonfinite(), 3);
  EXPECT_EQ(core_->Summary().worker(1).nonfinite(), 3);
}

// ---- Gradients above the bound ----------------------------------------------

class OversizedTest : public CoordinatorCoreTest {
 protected:
  void StartWith(config::GradientBound::Policy policy) {
    options_.config.mutable_train()->mutable_gradient_bound();
    options_.config.mutable_train()->mutable_gradient_bound()->set_rms(0.5);
    options_.config.mutable_train()
        ->mutable_gradient_bound()
        ->set_times_running_rms(20);
    options_.config.mutable_train()->mutable_gradient_bound()->set_policy(
        policy);
    Restart();
    StartJob();
  }
  CoordinatorCore::Effects ReportOne(int rank, double bound,
                                     std::optional<double> running) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(servers_[0]);
    run::OversizedGradients& bad = *heartbeat.mutable_server()->add_oversized();
    bad.set_rank(rank);
    bad.set_gradients(3);
    bad.set_last_clock(17);
    bad.set_last_shard(0);
    bad.set_last_rms(12.5);
    bad.set_last_bound(bound);
    if (running.has_value()) bad.set_last_running_rms(*running);
    return Send(Server(0), message);
  }
};

TEST_F(OversizedTest, OneEndsTheJobWithItsSourceSizeAndBound) {
  StartWith(config::GradientBound::STOP);
  ReportOne(1, 0.5, std::nullopt);
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->Summary().cause(), "DIVERGED");
  EXPECT_EQ(core_->Summary().diverged_at_step(), 17);
  EXPECT_THAT(core_->Summary().about(), ElementsAre("worker 1"));
  EXPECT_EQ(core_->reason(),
            "worker 1 has pushed a gradient whose root mean square is 12.5, "
            "above train.gradient_bound.rms (0.5), for weight[0, 10) at clock "
            "17; it is not in the model; see what is wrong with that worker or "
            "its data, raise the bound, or skip such gradients with train { "
            "gradient_bound { policy: SKIP } }");
}

TEST_F(OversizedTest, OfTheRunningBoundItSaysBothNumbers) {
  StartWith(config::GradientBound::STOP);
  ReportOne(1, 4, 0.2);
  EXPECT_THAT(core_->reason(),
              HasSubstr("is 12.5, above train.gradient_bound.times_running_rms "
                        "(20) times 0.2, that of the shard's gradients before "
                        "it, for weight[0, 10)"));
}

TEST_F(OversizedTest, WhereTheyAreSkippedEachWorkerIsSaidOnceAndCounted) {
  StartWith(config::GradientBound::SKIP);
  EXPECT_THAT(ReportOne(1, 0.5, std::nullopt).log,
              ElementsAre(HasSubstr("worker 1 has pushed")));
  EXPECT_THAT(ReportOne(1, 0.5, std::nullopt).log, IsEmpty());
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(core_->Summary().oversized(), 3);
  EXPECT_EQ(core_->Summary().worker(1).oversized(), 3);
  EXPECT_EQ(core_->Summary().worker(0).oversized(), 0);
  EXPECT_EQ(core_->Summary().nonfinite(), 0);
}

TEST_F(OversizedTest, WhatIsNoSizeIsRefused) {
  StartWith(config::GradientBound::STOP);
  ReportOne(1, std::numeric_limits<double>::quiet_NaN(), std::nullopt);
  EXPECT_NE(core_->Summary().cause(), "DIVERGED");
}

// ---- Calls ------------------------------------------------------------------

TEST_F(CoordinatorCoreTest, AGatherIsAnsweredToAllWhenTheLastHasCome) {
  StartJob();
  EXPECT_THAT(Answers(Gather(0, 3, "a", 7)), IsEmpty());
  EXPECT_THAT(Answers(Gather(0, 3, "a", 7)),
              ElementsAre("worker.0.100:7 RETRY"))
      << "repeated, still alone";
  const CoordinatorCore::Effects both = Gather(1, 3, "b", 9);
  EXPECT_THAT(Answers(both),
              ElementsAre("worker.0.100:7 OK", "worker.1.101:9 OK"));
  for (const Outgoing& out : both.sends) EXPECT_EQ(TextOf(out), "0:a 1:b");
  EXPECT_THAT(Answers(Gather(0, 3, "a", 7)), ElementsAre("worker.0.100:7 OK"))
      << "its answer was lost";
}

TEST_F(CoordinatorCoreTest, AGatherDoesNotWaitForTheDead) {
  StartJob();
  Gather(0, 3, "a", 7);
  EXPECT_THAT(Answers(Pass(absl::Seconds(6), {Worker(1)})),
              ElementsAre("worker.0.100:7 OK"));
}

TEST_F(CoordinatorCoreTest, AGatherWaitsForWhoHasDoneAllSteps) {
  StartJob();
  Gather(0, 15, "a", 7);
  EXPECT_THAT(Answers(Leave(1)), ElementsAre("worker.1.101:50 OK"));
  EXPECT_THAT(Answers(Gather(1, 15, "b", 51)),
              ElementsAre("worker.0.100:7 OK", "worker.1.101:51 OK"));
}

TEST_F(CoordinatorCoreTest, BeforeTheJobRunsAGatherWaitsForAllOfTheConfig) {
  const auto early = [&](int32_t rank, const std::string& text) {
    return Call(
        {.kind = PeerId::Kind::kObserver, .index = rank, .instance = 9}, 0, 5,
        [&](wire::Call& call) { call.mutable_gather()->set_rank(rank); },
        Payload::Copy(text.data(), text.size()));
  };
  EXPECT_THAT(Answers(early(1, "b")), IsEmpty());
  const CoordinatorCore::Effects both = early(0, "a");
  ASSERT_THAT(Answers(both), SizeIs(2));
  EXPECT_EQ(TextOf(both.sends[0]), "0:a 1:b");
  StartJob();
  const CoordinatorCore::Effects again = early(1, "other");
  ASSERT_THAT(again.sends, SizeIs(1));
  EXPECT_EQ(TextOf(again.sends[0]), "0:a 1:b") << "for one started again";
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

}  // namespace slackline::coordinator_core_messages_test
