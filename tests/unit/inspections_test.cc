// Goal: what a user asks members about themselves comes to them and back, part
// by part, once, with whoever is gone named; what nobody waits for is dropped;
// and whoever holds others up is asked without a user.
// Method: the whole CoordinatorCore, played by hand on virtual time.
#include "server/coordinator/inspections.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator_core_fixture.h"

namespace slackline::inspections_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class InspectionsTest : public CoordinatorCoreTest {
 protected:
  using Effects = CoordinatorCore::Effects;

  Effects Ask(const PeerId& user, uint64_t id,
              const std::function<void(wire::Inspect&)>& fill) {
    return Call(user, 0, id,
                [&](wire::Call& call) { fill(*call.mutable_inspect()); });
  }
  static void Stacks(wire::Inspect& inspect) { inspect.mutable_stacks(); }
  static std::function<void(wire::Inspect&)> TimelineOf(int32_t ms) {
    return
        [=](wire::Inspect& inspect) { inspect.mutable_timeline()->set_ms(ms); };
  }
  Effects Next(const PeerId& user, uint64_t number, int32_t received) {
    return Ask(user, ++call_id_, [&](wire::Inspect& inspect) {
      inspect.set_number(number);
      inspect.set_received(received);
    });
  }
  Effects Answer(const PeerId& from, Incarnation incarnation, uint64_t number,
                 const std::function<void(wire::Inspected&)>& fill,
                 Payload frame = Payload()) {
    return Call(
        from, incarnation, ++call_id_,
        [&](wire::Call& call) {
          call.mutable_inspected()->set_number(number);
          fill(*call.mutable_inspected());
        },
        std::move(frame));
  }
  static std::function<void(wire::Inspected&)> Text(const std::string& text) {
    return [=](wire::Inspected& inspected) {
      inspected.mutable_stacks()->set_text(text);
    };
  }
  static void Timeline(wire::Inspected& inspected) {
    inspected.mutable_timeline()->set_offset_bound_micros(3);
  }

  static const Message& AnswerTo(const Effects& effects, const PeerId& user) {
    static const Message none;
    for (const Outgoing& out : effects.sends) {
      if (out.to == user && out.message.header.has_call_reply())
        return out.message;
    }
    ADD_FAILURE() << "no answer to the user";
    return none;
  }
  static const wire::InspectionState& StateIn(const Effects& effects,
                                              const PeerId& user = kUser) {
    return AnswerTo(effects, user).header.call_reply().inspection();
  }
  static wire::Code CodeIn(const Effects& effects, const PeerId& user = kUser) {
    return AnswerTo(effects, user).header.call_reply().code();
  }
  // "server 0", "worker 1".
  static std::string TextOf(const wire::MemberName& name) {
    return (name.worker() ? "worker " : "server ") +
           std::to_string(name.index());
  }
  static std::vector<std::string> Missing(const wire::InspectionState& state) {
    std::vector<std::string> names;
    for (const wire::MemberName& name : state.missing())
      names.push_back(TextOf(name));
    return names;
  }
  // Whom the event has asked anything.
  static std::vector<PeerId> Asked(const Effects& effects) {
    std::vector<PeerId> asked;
    for (const Outgoing& out : effects.sends) {
      if (out.message.header.heartbeat_reply().inspection_size() > 0)
        asked.push_back(out.to);
    }
    return asked;
  }

  uint64_t call_id_ = 1000;
};

TEST_F(InspectionsTest, StacksOfAllComePartByPart) {
  StartJob();
  const Effects begun = Ask(kUser, 1, Stacks);
  EXPECT_THAT(Asked(begun),
              UnorderedElementsAre(Server(0), Server(1), Worker(0), Worker(1)));
  const uint64_t number = StateIn(begun).number();
  EXPECT_THAT(Missing(StateIn(begun)), SizeIs(4));
  EXPECT_FALSE(StateIn(Next(kUser, number, 0)).has_part());
  Answer(Worker(1), workers_[1], number, Text("a"));
  Answer(Server(0), servers_[0], number, Text("b"));
  const Effects first = Next(kUser, number, 0);
  EXPECT_EQ(StateIn(first).part().stacks().text(), "a");
  EXPECT_EQ(TextOf(StateIn(first).part().of()), "worker 1");
  EXPECT_THAT(Missing(StateIn(first)),
              UnorderedElementsAre("server 1", "worker 0"));
  // The answer was lost: the same part again.
  EXPECT_EQ(StateIn(Next(kUser, number, 0)).part().stacks().text(), "a");
  EXPECT_EQ(StateIn(Next(kUser, number, 1)).part().stacks().text(), "b");
  Answer(Worker(0), workers_[0], number, Text("c"));
  Answer(Server(1), servers_[1], number, Text("d"));
  EXPECT_EQ(StateIn(Next(kUser, number, 2)).part().stacks().text(), "c");
  EXPECT_EQ(StateIn(Next(kUser, number, 3)).part().stacks().text(), "d");
  const Effects over = Next(kUser, number, 4);
  EXPECT_FALSE(StateIn(over).has_part());
  EXPECT_THAT(Missing(StateIn(over)), IsEmpty());
  EXPECT_EQ(core_->sizes().inspection_bytes, 0);
}

TEST_F(InspectionsTest, AMemberIsAskedUntilItHasAnswered) {
  StartJob();
  const uint64_t number = StateIn(Ask(kUser, 1, Stacks)).number();
  EXPECT_THAT(Asked(Heartbeat(Worker(0), workers_[0])), ElementsAre(Worker(0)));
  Answer(Worker(0), workers_[0], number, Text("a"));
  EXPECT_THAT(Asked(Heartbeat(Worker(0), workers_[0])), IsEmpty());
  // Repeated: told so, and no second part.
  EXPECT_EQ(
      CodeIn(Answer(Worker(0), workers_[0], number, Text("again")), Worker(0)),
      wire::OK);
  EXPECT_EQ(StateIn(Next(kUser, number, 0)).part().stacks().text(), "a");
  EXPECT_FALSE(StateIn(Next(kUser, number, 1)).has_part());
}

TEST_F(InspectionsTest, OnlyThoseWhoAreNamedAreAsked) {
  StartJob();
  const auto worker_1 = [](wire::Inspect& inspect) {
    inspect.mutable_stacks();
    inspect.add_of()->set_worker(true);
    inspect.mutable_of(0)->set_index(1);
  };
  EXPECT_THAT(Asked(Ask(kUser, 1, worker_1)), ElementsAre(Worker(1)));
  const Effects nobody = Ask(kUser, 2, [&](wire::Inspect& inspect) {
    worker_1(inspect);
    inspect.add_of()->set_index(7);
  });
  EXPECT_EQ(CodeIn(nobody), wire::REJECTED);
  EXPECT_THAT(AnswerTo(nobody, kUser).header.call_reply().error(),
              HasSubstr("server 7"));
}

TEST_F(InspectionsTest, WhoIsGoneIsNotWaitedFor) {
  StartJob();
  const uint64_t number = StateIn(Ask(kUser, 1, Stacks)).number();
  Pass(absl::Seconds(3), {Worker(1)});
  EXPECT_THAT(Missing(StateIn(Next(kUser, number, 0))), SizeIs(4));
  Pass(absl::Seconds(4), {Worker(1)});
  const wire::InspectionState state = StateIn(Next(kUser, number, 0));
  EXPECT_THAT(Missing(state),
              UnorderedElementsAre("server 0", "server 1", "worker 0"));
  EXPECT_THAT(state.gone(), ElementsAre(HasSubstr("worker 1")));
}

TEST_F(InspectionsTest, WhatNobodyAsksForIsDropped) {
  StartJob();
  const uint64_t number = StateIn(Ask(kUser, 1, Stacks)).number();
  Answer(Worker(0), workers_[0], number, Text("a"));
  EXPECT_GT(core_->sizes().inspection_bytes, 0);
  Pass(Inspections::kPatience + absl::Seconds(2), {});
  EXPECT_EQ(core_->sizes().inspections, 0u);
  EXPECT_EQ(core_->sizes().inspection_bytes, 0);
  EXPECT_EQ(CodeIn(Next(kUser, number, 0)), wire::REJECTED);
}

TEST_F(InspectionsTest, AnotherUserDoesNotGoOnWithIt) {
  StartJob();
  const uint64_t number = StateIn(Ask(kUser, 1, Stacks)).number();
  EXPECT_EQ(CodeIn(Next(kObserver, number, 0), kObserver), wire::REJECTED);
}

TEST_F(InspectionsTest, BeginningIsOnceHoweverOftenItIsSaid) {
  StartJob();
  const uint64_t number = StateIn(Ask(kUser, 1, Stacks)).number();
  EXPECT_EQ(StateIn(Ask(kUser, 1, Stacks)).number(), number);
  EXPECT_EQ(core_->sizes().inspections, 1u);
}

TEST_F(InspectionsTest, OneTimelineAtATime) {
  StartJob();
  const uint64_t number = StateIn(Ask(kUser, 1, TimelineOf(1000))).number();
  const Effects second = Ask(kObserver, 2, TimelineOf(1000));
  EXPECT_EQ(CodeIn(second, kObserver), wire::REJECTED) << "it need not wait";
  EXPECT_THAT(AnswerTo(second, kObserver).header.call_reply().error(),
              HasSubstr("of 1s"));
  // The same call once more, since its answer was lost.
  EXPECT_EQ(StateIn(Ask(kUser, 1, TimelineOf(1000))).number(), number);
  EXPECT_EQ(CodeIn(Ask(kObserver, 3, Stacks), kObserver), wire::OK);
  const std::vector<std::pair<PeerId, Incarnation>> members = {
      {Server(0), servers_[0]},
      {Server(1), servers_[1]},
      {Worker(0), workers_[0]},
      {Worker(1), workers_[1]}};
  for (const auto& [peer, incarnation] : members)
    Answer(peer, incarnation, number, Timeline, Payload::Copy("part", 4));
  for (int32_t part = 0; part < 4; ++part) {
    const Message answer = AnswerTo(Next(kUser, number, part), kUser);
    ASSERT_THAT(answer.payloads, SizeIs(1));
    EXPECT_EQ(answer.payloads[0].size(), 4u);
    EXPECT_EQ(answer.header.call_reply()
                  .inspection()
                  .part()
                  .timeline()
                  .offset_bound_micros(),
              3);
  }
  Next(kUser, number, 4);
  EXPECT_EQ(CodeIn(Ask(kObserver, 4, TimelineOf(1000)), kObserver), wire::OK);
}

TEST_F(InspectionsTest, ATimelineHasBounds) {
  StartJob();
  for (const int32_t ms : {-1, 0, Inspections::kTimelineMsMax + 1}) {
    const Effects refused = Ask(kUser, ++call_id_, TimelineOf(ms));
    EXPECT_EQ(CodeIn(refused), wire::REJECTED) << ms;
    EXPECT_THAT(AnswerTo(refused, kUser).header.call_reply().error(),
                HasSubstr("120000"));
  }
  EXPECT_EQ(CodeIn(Ask(kUser, ++call_id_, [](wire::Inspect&) {})),
            wire::REJECTED);
  const uint64_t number =
      StateIn(Ask(kUser, ++call_id_, TimelineOf(1))).number();
  // Larger than the member was told, and without what was asked for.
  Answer(Worker(0), workers_[0], number, Timeline,
         Payload::Allocate(Inspections::kPartBytesMax + 1));
  Answer(Worker(1), workers_[1], number, Text("a"));
  EXPECT_THAT(StateIn(Next(kUser, number, 0)).part().error(),
              HasSubstr("does not fit"));
  EXPECT_THAT(StateIn(Next(kUser, number, 1)).part().error(),
              HasSubstr("does not fit"));
}

TEST_F(InspectionsTest, WhatIsOverIsForgottenHoweverOftenItIsAskedFor) {
  StartJob();
  const auto worker_0 = [](wire::Inspect& inspect) {
    inspect.mutable_stacks();
    inspect.add_of()->set_worker(true);
  };
  for (uint64_t i = 1; i <= 100; ++i) {
    const uint64_t number = StateIn(Ask(kUser, i, worker_0)).number();
    Answer(Worker(0), workers_[0], number, Text("a"));
    Next(kUser, number, 1);
  }
  EXPECT_LE(core_->sizes().inspections, Inspections::kOpenMax + 1);
}

TEST_F(InspectionsTest, NamesHaveABound) {
  StartJob();
  EXPECT_EQ(CodeIn(Ask(kUser, 1,
                       [](wire::Inspect& inspect) {
                         inspect.mutable_stacks();
                         for (int i = 0; i <= Inspections::kNamesMax; ++i)
                           inspect.add_of();
                       })),
            wire::REJECTED);
}

TEST_F(InspectionsTest, TheShareIsOfAllWhoAreAsked) {
  options_.workers = 200;
  Restart();
  Join(Server(0));
  Ask(kUser, 1, TimelineOf(1000));
  Join(Server(1));
  Effects last;
  for (int rank = 0; rank < 200; ++rank)
    last = SendJoin(Worker(rank), JoinOf(Worker(rank)));
  ASSERT_EQ(core_->state(), wire::RUNNING);
  int64_t sum = 0;
  for (const Outgoing& out : last.sends) {
    const wire::HeartbeatReply& reply = out.message.header.heartbeat_reply();
    if (reply.inspection_size() > 0)
      sum += reply.inspection(0).timeline().bytes_max();
  }
  EXPECT_LE(sum, Inspections::kBytesMax);
  EXPECT_GT(sum, Inspections::kBytesMax / 2);
}

TEST_F(InspectionsTest, LongTextIsCut) {
  StartJob();
  const uint64_t number = StateIn(Ask(kUser, 1, Stacks)).number();
  Answer(Worker(0), workers_[0], number, [](wire::Inspected& inspected) {
    inspected.mutable_stacks()->set_where(std::string(1 << 20, 'y'));
    inspected.mutable_stacks()->set_text(std::string(1 << 20, 'x'));
  });
  EXPECT_LE(StateIn(Next(kUser, number, 0)).part().stacks().where().size(),
            Inspections::kWhereBytesMax + 3);
  EXPECT_LE(StateIn(Next(kUser, number, 0)).part().stacks().text().size(),
            Inspections::kTextBytesMax + 3);
}

TEST_F(InspectionsTest, ATimelineOfAJobThatFormsBeginsWhenItRuns) {
  EXPECT_EQ(CodeIn(Ask(kUser, 1, TimelineOf(1000))), wire::BUSY);
  Join(Server(0));
  const Effects begun = Ask(kUser, 2, TimelineOf(1000));
  EXPECT_THAT(Asked(begun), IsEmpty());
  EXPECT_THAT(Missing(StateIn(begun)), ElementsAre("server 0"));
  Join(Server(1));
  Join(Worker(0));
  Effects last = SendJoin(Worker(1), JoinOf(Worker(1)));
  ASSERT_EQ(core_->state(), wire::RUNNING);
  EXPECT_THAT(Asked(last),
              UnorderedElementsAre(Server(0), Server(1), Worker(0), Worker(1)));
}

TEST_F(InspectionsTest, AJobThatHasEndedWaitsForAnswersLongerThanALease) {
  StartJob();
  const uint64_t number = StateIn(Ask(kUser, 1, TimelineOf(60'000))).number();
  for (int i : {0, 1}) Answer(Server(i), servers_[i], number, Timeline);
  Answer(Worker(0), workers_[0], number, Timeline);
  Effects effects;
  core_->Fail("enough", now_, &effects);
  const absl::Time ended = now_;
  TickUntil(ended + absl::Seconds(8), &effects);
  EXPECT_FALSE(core_->Over(now_)) << "worker 1 may be writing its part down";
  for (int i : {0, 1, 2})
    EXPECT_TRUE(StateIn(Next(kUser, number, i)).has_part());
  Answer(Worker(1), workers_[1], number, Timeline);
  EXPECT_FALSE(core_->Over(now_)) << "the user does not have it";
  EXPECT_TRUE(StateIn(Next(kUser, number, 3)).has_part());
  Next(kUser, number, 4);
  EXPECT_TRUE(core_->Over(now_));
}

TEST_F(InspectionsTest, AJobThatHasEndedWaitsForAnswersOnlySoLong) {
  StartJob();
  Ask(kUser, 1, TimelineOf(60'000));
  Effects effects;
  core_->Fail("enough", now_, &effects);
  const absl::Time ended = now_;
  absl::Time now = now_;
  while (!core_->Over(now) && now < ended + absl::Minutes(2)) {
    now = core_->NextWakeup();
    core_->OnTick(now, &effects);
  }
  EXPECT_LE(now, ended + absl::Seconds(26));
}

TEST_F(InspectionsTest, TooManyAtATimeAreRefused) {
  StartJob();
  for (uint64_t user = 0; user < Inspections::kOpenMax; ++user) {
    const PeerId peer{
        .kind = PeerId::Kind::kObserver, .index = 0, .instance = 50 + user};
    EXPECT_EQ(CodeIn(Ask(peer, 1, Stacks), peer), wire::OK);
  }
  EXPECT_EQ(CodeIn(Ask(kUser, 1, Stacks)), wire::BUSY);
}

TEST_F(InspectionsTest, WhoHoldsOthersUpIsAskedWithoutAUser) {
  options_.config.mutable_limits()->set_stall_timeout_ms(60000);
  Restart();
  StartJob();
  const auto beat = [&](int rank, run::WorkerProgress::Activity activity,
                        int64_t ms) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(workers_[static_cast<size_t>(rank)]);
    run::WorkerProgress& progress =
        *heartbeat.mutable_worker()->mutable_progress();
    progress.set_activity(activity);
    progress.set_for_ms(ms);
    return Send(Worker(rank), message);
  };
  std::vector<PeerId> asked;
  for (int second = 0; second < 12; ++second) {
    now_ += absl::Seconds(1);
    Effects all;
    for (const Effects& effects :
         {beat(0, run::WorkerProgress::WORKING, second * 1000),
          beat(1, run::WorkerProgress::WAITING_FOR_WORKERS, second * 1000)}) {
      all.sends.insert(all.sends.end(), effects.sends.begin(),
                       effects.sends.end());
    }
    for (int index = 0; index < 2; ++index)
      Heartbeat(Server(index), servers_[static_cast<size_t>(index)]);
    core_->OnTick(now_, &all);
    for (const PeerId& peer : Asked(all)) asked.push_back(peer);
    if (!asked.empty()) break;
  }
  ASSERT_THAT(asked, ElementsAre(Worker(0)));
  const Effects question = Heartbeat(Worker(0), workers_[0]);
  uint64_t number = 0;
  for (const Outgoing& out : question.sends) {
    if (out.message.header.heartbeat_reply().inspection_size() > 0)
      number = out.message.header.heartbeat_reply().inspection(0).number();
  }
  Answer(Worker(0), workers_[0], number, [](wire::Inspected& inspected) {
    inspected.mutable_stacks()->set_where("train.py line 41, in load");
  });
  const wire::StatusReply status = core_->Status(now_);
  ASSERT_THAT(status.stacks(), SizeIs(1));
  EXPECT_EQ(status.stacks(0).stacks().where(), "train.py line 41, in load");
  EXPECT_EQ(TextOf(status.stacks(0).of()), "worker 0");
  const run::Summary summary = core_->Summary();
  ASSERT_THAT(summary.stood_still(), SizeIs(1));
  EXPECT_EQ(summary.stood_still(0).rank(), 0);
  EXPECT_EQ(summary.stood_still(0).where(), "train.py line 41, in load");
  // Not again at once.
  now_ += absl::Seconds(1);
  EXPECT_THAT(Asked(beat(0, run::WorkerProgress::WORKING, 12000)), IsEmpty());
}

TEST_F(InspectionsTest, AHeartbeatThatSaysItsTimeIsToldTheCoordinators) {
  StartJob();
  now_ += absl::Seconds(1);
  Message message;
  message.header.mutable_heartbeat()->set_incarnation(workers_[0]);
  message.header.mutable_heartbeat()->set_sent_micros(77);
  const Effects effects = Send(Worker(0), message);
  ASSERT_FALSE(effects.sends.empty());
  const wire::HeartbeatReply& reply =
      effects.sends[0].message.header.heartbeat_reply();
  EXPECT_EQ(reply.sent_micros(), 77);
  EXPECT_EQ(reply.heard_micros(), absl::ToUnixMicros(now_));
}

}  // namespace slackline::inspections_test
