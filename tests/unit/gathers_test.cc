// Goal: all who get an answer of a gather get the same, with what each that
// took part has brought; nobody waits for who is gone, is beyond, or has not
// said where it begins; what is kept has bounds.
// Method: examples named after one behaviour; and workers that run one program
// over a network that loses and repeats messages, die, come again and are given
// up, from one seed.
#include "server/coordinator/gathers.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/block/bounds.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::gathers_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Payload Text(const std::string& text) {
  return Payload::Copy(text.data(), text.size());
}

// "0:a 1:b", or the code of an answer without a result.
std::string TextOf(const Message& answer) {
  const wire::CallReply& reply = answer.header.call_reply();
  if (!reply.has_gathered()) return wire::Code_Name(reply.code());
  std::vector<std::string> parts;
  for (int i = 0; i < reply.gathered().rank_size(); ++i) {
    const Payload& payload = answer.payloads.at(static_cast<size_t>(i));
    parts.push_back(absl::StrCat(
        reply.gathered().rank(i), ":",
        absl::string_view(reinterpret_cast<const char*>(payload.data()),
                          payload.size())));
  }
  return absl::StrJoin(parts, " ");
}

class GathersTest : public testing::Test {
 protected:
  GathersTest() { Begin({.workers = 3}); }

  // `begins_at`: of a job that goes on from a checkpoint, by rank.
  void Begin(const Gathers::Options& options,
             const std::vector<Clock>& begins_at = {}) {
    gathers_ = std::make_unique<Gathers>(options);
    members_.clear();
    std::map<int32_t, const Member*> workers;
    for (int32_t rank = 0; rank < options.workers; ++rank) {
      Join(rank);
      if (rank < static_cast<int32_t>(begins_at.size()))
        members_[rank].begins_at = begins_at[static_cast<size_t>(rank)];
      workers[rank] = &members_[rank];
    }
    CoordinatorEffects effects;
    gathers_->Start(workers, &effects);
  }
  void Join(int32_t rank) {
    Member& member = members_[rank];
    member.incarnation = next_incarnation_++;
    member.join.set_role(wire::JoinRequest::WORKER);
    member.join.set_index(rank);
    member.peer = {.kind = PeerId::Kind::kWorker,
                   .index = rank,
                   .instance = member.incarnation};
  }
  // The answers of the event, as "rank TextOf()".
  std::vector<std::string> Answers(const CoordinatorEffects& effects) {
    std::vector<std::string> answers;
    for (const Outgoing& out : effects.sends)
      answers.push_back(absl::StrCat(out.to.index, " ", TextOf(out.message)));
    return answers;
  }
  std::vector<std::string> Enter(int32_t rank, uint64_t place, uint32_t number,
                                 const std::string& text) {
    return Repeat(rank, place, number, text, ++last_call_);
  }
  std::vector<std::string> Repeat(int32_t rank, uint64_t place, uint32_t number,
                                  const std::string& text, uint64_t id) {
    wire::Call call;
    call.set_call_id(id);
    call.mutable_gather()->set_place(place);
    call.mutable_gather()->set_number(number);
    CoordinatorEffects effects;
    gathers_->Enter(members_[rank], call, Text(text), &effects);
    gathers_->Complete(&effects);
    last_ = effects;
    return Answers(effects);
  }
  std::vector<std::string> Pass(int32_t rank, uint64_t place) {
    wire::Call call;
    call.set_call_id(++last_call_);
    call.mutable_goes_on()->set_place(place);
    CoordinatorEffects effects;
    gathers_->OnGoesOn(members_[rank], call, &effects);
    gathers_->Complete(&effects);
    return Answers(effects);
  }
  std::vector<std::string> Lose(int32_t rank) {
    CoordinatorEffects effects;
    gathers_->Forget(members_[rank].incarnation);
    gathers_->Complete(&effects);
    return Answers(effects);
  }
  std::vector<std::string> EnterEarly(int32_t rank, uint32_t number,
                                      const std::string& text) {
    wire::Call call;
    call.set_call_id(++last_call_);
    call.mutable_gather()->set_rank(rank);
    call.mutable_gather()->set_number(number);
    CoordinatorEffects effects;
    gathers_->EnterBeforeStart(
        {.kind = PeerId::Kind::kObserver, .index = rank, .instance = 1}, call,
        Text(text), &effects);
    gathers_->Complete(&effects);
    last_ = effects;
    return Answers(effects);
  }

  std::unique_ptr<Gathers> gathers_;
  std::map<int32_t, Member> members_;
  CoordinatorEffects last_;
  uint64_t last_call_ = 0;
  Incarnation next_incarnation_ = 100;
};

TEST_F(GathersTest, AllGetWhatAllHaveBroughtByRank) {
  EXPECT_THAT(Enter(2, 4, 0, "c"), IsEmpty());
  EXPECT_THAT(Enter(0, 4, 0, "a"), IsEmpty());
  EXPECT_THAT(Enter(1, 4, 0, "b"),
              ElementsAre("0 0:a 1:b 2:c", "1 0:a 1:b 2:c", "2 0:a 1:b 2:c"));
  EXPECT_EQ(gathers_->open(), 0u);
}

TEST_F(GathersTest, SeveralAtOnePlaceAreApart) {
  for (const uint32_t number : {0u, 1u}) {
    Enter(0, 4, number, "a");
    Enter(1, 4, number, "b");
    EXPECT_THAT(Enter(2, 4, number, absl::StrCat(number)), SizeIs(3));
  }
  EXPECT_THAT(Enter(1, 4, 0, "late"), ElementsAre("1 0:a 1:b 2:0"));
  EXPECT_THAT(Enter(1, 4, 1, "late"), ElementsAre("1 0:a 1:b 2:1"));
}

TEST_F(GathersTest, WhoWaitsIsToldForWhom) {
  Enter(1, 4, 0, "b");
  Repeat(1, 4, 0, "b", last_call_);
  ASSERT_THAT(Answers(last_), ElementsAre("1 RETRY"));
  EXPECT_EQ(last_.sends[0].message.header.call_reply().error(),
            "waits for worker 0, worker 2");
}

TEST_F(GathersTest, WhoIsGoneIsNotWaitedForAndLeftOut) {
  Enter(0, 4, 0, "a");
  Enter(2, 4, 0, "c");
  EXPECT_THAT(Lose(2), IsEmpty()) << "1 has not come";
  EXPECT_THAT(Enter(1, 4, 0, "b"), ElementsAre("0 0:a 1:b", "1 0:a 1:b"));
}

TEST_F(GathersTest, WhoGoesOnFromACheckpointIsAwaitedFromItsFirstStepOn) {
  Begin({.workers = 3}, {8, 8, 10});
  Enter(0, 17, 0, "a");
  EXPECT_THAT(Enter(1, 17, 0, "b"), ElementsAre("0 0:a 1:b", "1 0:a 1:b"))
      << "worker 2 has done the step of clock 8";
  Enter(0, 21, 0, "a");
  EXPECT_THAT(Enter(1, 21, 0, "b"), IsEmpty());
  EXPECT_THAT(Enter(2, 21, 0, "c"), SizeIs(3));
}

TEST_F(GathersTest, WhoIsBeyondIsNotWaitedForAtAnEarlierPlace) {
  Enter(0, 4, 0, "a");
  Enter(1, 4, 0, "b");
  EXPECT_THAT(Enter(2, 8, 0, "c"), ElementsAre("0 0:a 1:b", "1 0:a 1:b"));
}

TEST_F(GathersTest, WhoJoinsARunningJobIsWaitedForFromWhereItBegins) {
  Lose(2);
  Join(2);
  Enter(0, 4, 0, "a");
  EXPECT_THAT(Enter(1, 4, 0, "b"), SizeIs(2)) << "2 has said nothing";
  EXPECT_THAT(Pass(2, 5), ElementsAre("2 OK"));
  Enter(0, 6, 0, "a");
  EXPECT_THAT(Enter(1, 6, 0, "b"), IsEmpty());
  EXPECT_THAT(Enter(2, 6, 0, "c"), SizeIs(3));
}

TEST_F(GathersTest, WhoJoinsLateGetsTheResultOfTheOthers) {
  Lose(2);
  Enter(0, 4, 0, "a");
  Enter(1, 4, 0, "b");
  Join(2);
  EXPECT_THAT(Enter(2, 4, 0, "c"), ElementsAre("2 0:a 1:b"));
}

TEST_F(GathersTest, WhatIsTooOldIsRefused) {
  Lose(2);
  for (uint64_t place = 1; place <= 100; ++place) {
    Enter(0, place, 0, "a");
    Enter(1, place, 0, "b");
  }
  Join(2);
  EXPECT_THAT(Enter(2, 90, 0, "c"), ElementsAre("2 0:a 1:b"));
  EXPECT_THAT(Enter(2, 3, 0, "c"), ElementsAre("2 REJECTED"));
  EXPECT_EQ(gathers_->kept(), 16u);
}

TEST_F(GathersTest, AWorkerWaitsOnce) {
  for (uint64_t place = 1; place <= 1000; ++place) Enter(0, place, 0, "a");
  EXPECT_EQ(gathers_->open(), 1u);
  EXPECT_EQ(gathers_->waiting(), 1u);
}

TEST_F(GathersTest, ACallThatWasGivenUpAndMadeAgainCountsOnce) {
  Enter(0, 4, 0, "a");
  const uint64_t old = last_call_;
  Enter(0, 4, 0, "a");
  EXPECT_THAT(Repeat(0, 4, 0, "a", old), IsEmpty()) << "a late repetition";
  Enter(1, 4, 0, "b");
  EXPECT_THAT(Enter(2, 4, 0, "c"), SizeIs(3));
}

TEST_F(GathersTest, ALateCopyOfACallThatWasGivenUpChangesNothing) {
  Enter(0, 4, 0, "old");
  const uint64_t old = last_call_;
  EXPECT_THAT(Enter(1, 4, 0, "b"), IsEmpty());
  // It has timed out, and the program has gone on.
  EXPECT_THAT(Enter(0, 6, 0, "a"), IsEmpty());
  EXPECT_THAT(Repeat(0, 4, 0, "old", old), IsEmpty());
  EXPECT_THAT(Enter(2, 4, 0, "c"), ElementsAre("1 1:b 2:c", "2 1:b 2:c"))
      << "without what was given up";
  Enter(1, 6, 0, "b");
  EXPECT_THAT(Enter(2, 6, 0, "c"),
              ElementsAre("0 0:a 1:b 2:c", "1 0:a 1:b 2:c", "2 0:a 1:b 2:c"))
      << "the later call still waits";
}

TEST_F(GathersTest, ALateCopyOfACallOfTheStartChangesNothing) {
  gathers_ = std::make_unique<Gathers>(Gathers::Options{.workers = 2});
  EnterEarly(0, 0, "old");
  const uint64_t old = last_call_;
  EnterEarly(0, 1, "a");
  const uint64_t last = std::exchange(last_call_, old - 1);
  EXPECT_THAT(EnterEarly(0, 0, "old"), IsEmpty());
  last_call_ = last;
  EXPECT_THAT(EnterEarly(1, 1, "b"), ElementsAre("0 0:a 1:b", "1 0:a 1:b"));
  last_call_ = old - 1;
  EXPECT_THAT(EnterEarly(0, 0, "old"), IsEmpty());
  last_call_ = last + 1;
  EXPECT_THAT(EnterEarly(1, 0, "b"), IsEmpty()) << "and when that is answered";
}

TEST_F(GathersTest, BytesHaveABound) {
  const size_t most = GatherBytesMax(3);
  EXPECT_THAT(Enter(0, 4, 0, std::string(most + 1, 'x')),
              ElementsAre("0 REJECTED"));
  EXPECT_THAT(last_.sends[0].message.header.call_reply().error(),
              HasSubstr("worker 0 has sent 1048577"));
  for (uint64_t place = 5; place < 100; ++place) {
    for (int rank = 0; rank < 3; ++rank)
      Enter(rank, place, 0, std::string(most, 'x'));
    ASSERT_LE(gathers_->bytes(), size_t{64} << 20);
  }
  EXPECT_EQ(GatherBytesMax(1000), (size_t{64} << 20) / 1000);
}

TEST_F(GathersTest, BeforeTheJobBeginsItWaitsForAllOfTheConfig) {
  gathers_ = std::make_unique<Gathers>(Gathers::Options{.workers = 2});
  EXPECT_THAT(EnterEarly(0, 0, "a"), IsEmpty());
  EXPECT_THAT(EnterEarly(1, 0, "b"), ElementsAre("0 0:a 1:b", "1 0:a 1:b"));
  EXPECT_THAT(EnterEarly(0, 1, "a"), IsEmpty());
  EXPECT_THAT(EnterEarly(2, 1, "?"), ElementsAre("2 REJECTED"));
  EXPECT_THAT(EnterEarly(-1, 1, "?"), ElementsAre("-1 REJECTED"));
  EXPECT_THAT(EnterEarly(1, 5000, "?"), ElementsAre("1 REJECTED"));
  CoordinatorEffects effects;
  gathers_->Start({}, &effects);
  EXPECT_THAT(Answers(effects), ElementsAre("0 REJECTED"));
  EXPECT_THAT(effects.sends[0].message.header.call_reply().error(),
              HasSubstr("worker 1 did not call"));
  EXPECT_THAT(EnterEarly(0, 0, "again"), ElementsAre("0 0:a 1:b"))
      << "started again";
  EXPECT_THAT(EnterEarly(0, 1, "new"), ElementsAre("0 REJECTED"));
}

TEST_F(GathersTest, WhatIsKeptOfTheStartHasABound) {
  gathers_ = std::make_unique<Gathers>(
      Gathers::Options{.workers = 1, .kept_bytes_max = 10, .kept_max = 1});
  EXPECT_THAT(EnterEarly(0, 0, "12345678"), SizeIs(1));
  EXPECT_THAT(EnterEarly(0, 1, "12345678"), SizeIs(1));
  EXPECT_THAT(EnterEarly(0, 2, "12345678"), SizeIs(1));
  EXPECT_EQ(gathers_->bytes(), 16u);
  CoordinatorEffects effects;
  gathers_->Start({}, &effects);
  EXPECT_THAT(EnterEarly(0, 0, "x"), ElementsAre("0 0:12345678"));
  EXPECT_THAT(EnterEarly(0, 1, "x"), ElementsAre("0 REJECTED"));
}

// Workers of one program, a gather after each step. What a worker sends or gets
// may be lost or come twice; it sends again until it has its answer.
class GathersRun : public GathersTest,
                   public testing::WithParamInterface<uint64_t> {};

TEST_P(GathersRun, AllWhoGetAnAnswerGetTheSame) {
  Rng rng(GetParam());
  const int workers = static_cast<int>(rng.Between(1, 5));
  Begin({.workers = workers});
  struct Program {
    uint64_t place = 2;
    bool says_place = false;
    uint64_t call = 0;  // Under way; 0: none.
    bool gone = false;
  };
  constexpr uint64_t kEnd = 60;
  std::vector<Program> programs(static_cast<size_t>(workers));
  std::map<uint64_t, std::string> results;  // By place.
  int finished = 0;
  for (int event = 0; event < 200000; ++event) {
    const bool faults = event < 2000;
    const auto rank = static_cast<int32_t>(rng.Between(0, workers - 1));
    Program& program = programs[static_cast<size_t>(rank)];
    CoordinatorEffects effects;
    if (faults && rng.Chance(0.01) && !program.gone) {  // Given up, or dead.
      gathers_->Forget(members_[rank].incarnation);
      gathers_->Complete(&effects);
      program.gone = true;
    } else if (program.gone) {
      if (!rng.Chance(0.1)) continue;
      Join(rank);
      program.gone = false;
      program.says_place = true;
      program.call = 0;
      // It goes on where it was, or where the others are.
      if (rng.Chance(0.5)) {
        for (const Program& other : programs)
          if (!other.gone) program.place = std::max(program.place, other.place);
      }
    } else if (program.place > kEnd) {
      finished = 0;
      for (const Program& each : programs)
        finished += each.place > kEnd && !each.gone;
      if (finished == workers) break;
      continue;
    } else {
      wire::Call call;
      if (program.says_place) {
        program.says_place = false;
        call.set_call_id(++last_call_);
        call.mutable_goes_on()->set_place(program.place - 1);
      } else {
        if (program.call == 0) program.call = ++last_call_;
        call.set_call_id(program.call);
        call.mutable_gather()->set_place(program.place);
      }
      const int times =
          faults && rng.Chance(0.3) ? static_cast<int>(rng.Between(0, 2)) : 1;
      for (int i = 0; i < times; ++i) {
        if (call.has_goes_on()) {
          gathers_->OnGoesOn(members_[rank], call, &effects);
        } else {
          gathers_->Enter(members_[rank], call,
                          Text(absl::StrCat(rank, "@", program.place)),
                          &effects);
        }
        gathers_->Complete(&effects);
      }
    }
    for (const Outgoing& out : effects.sends) {
      Program& to = programs[static_cast<size_t>(out.to.index)];
      const wire::CallReply& reply = out.message.header.call_reply();
      if (to.gone || reply.call_id() != to.call ||
          out.to != members_[out.to.index].peer ||
          (faults && rng.Chance(0.3))) {
        continue;
      }
      if (reply.code() == wire::RETRY) continue;
      if (reply.code() == wire::REJECTED) {  // It was away for too long.
        to.call = 0;
        to.place += 2;
        continue;
      }
      const std::string text = TextOf(out.message);
      const auto known = results.try_emplace(to.place, text).first;
      ASSERT_EQ(known->second, text)
          << "at place " << to.place << ", seed " << GetParam();
      for (const auto& payload : out.message.payloads) {
        ASSERT_THAT(std::string(reinterpret_cast<const char*>(payload.data()),
                                payload.size()),
                    HasSubstr(absl::StrCat("@", to.place)));
      }
      to.call = 0;
      to.place += 2;
    }
    ASSERT_LE(gathers_->waiting(), static_cast<size_t>(workers));
    ASSERT_LE(gathers_->open(), static_cast<size_t>(workers));
  }
  EXPECT_EQ(finished, workers) << "somebody waits for ever";
}

INSTANTIATE_TEST_SUITE_P(Seeds, GathersRun,
                         testing::Range(uint64_t{1}, uint64_t{201}));

}  // namespace slackline::gathers_test
