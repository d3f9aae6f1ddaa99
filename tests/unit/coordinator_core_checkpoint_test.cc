// Goal: a checkpoint is taken when the config's time has come or a user asks,
// is whole or given up with a reason, and who asks for one gets one answer; a
// job that goes on from one begins where it was, or says why it cannot. Method:
// a job of a few members, played by hand on virtual time.
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"
#include "tests/unit/coordinator_core_fixture.h"

namespace slackline::coordinator_core_checkpoint_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Effects = CoordinatorCore::Effects;

// Two servers of one thread; five shards, 0, 2 and 4 on server 0.
class CheckpointTest : public PlacementTest {
 protected:
  CheckpointTest() {
    options_.checkpoint_root = "runs/a/checkpoints";
    options_.run = 77;
    options_.mode = "bsp";
    options_.config.mutable_train()->set_seed(5);
    options_.build.set_version("1.2");
    steps_total_ = 100;
    Restart();
  }

  void StartIn(const std::string& mode) {
    const sync::Mode wanted = ModeOf(mode);
    if (wanted.has_ssp()) {
      options_.config.mutable_sync()->mutable_ssp()->set_staleness(
          wanted.ssp().staleness());
    } else if (wanted.has_allreduce()) {
      options_.config.mutable_sync()->mutable_allreduce();
    }
    options_.mode = mode;
    Restart();
    StartJob();
  }
  void GoOn() {
    options_.resume = std::make_shared<const checkpoint::Manifest>(manifest_);
    options_.resume_sha256 = "sha";
    options_.resume_folder = "runs/a/checkpoints/step-00000040";
    Restart();
  }
  wire::JoinRequest JoinFrom(const PeerId& peer,
                             const std::string& sha = "sha") {
    wire::JoinRequest join = JoinOf(peer);
    if (peer.kind == PeerId::Kind::kServer) join.set_checkpoint_sha256(sha);
    return join;
  }
  void JoinAllFromCheckpoint() {
    for (int i = 0; i < options_.servers; ++i)
      servers_.push_back(Join(Server(i), JoinFrom(Server(i))).incarnation());
    for (int i = 0; i < options_.workers; ++i)
      workers_.push_back(Join(Worker(i)).incarnation());
  }
  // By rank: at which clocks the workers begin.
  std::vector<Clock> Beginnings() {
    std::vector<Clock> clocks;
    for (const wire::WorkerMember& worker : core_->view().worker())
      clocks.push_back(worker.begins_at());
    return clocks;
  }

  Effects AskCheckpoint(uint64_t id) {
    return Call(kUser, 0, id,
                [](wire::Call& call) { call.mutable_checkpoint(); });
  }
  Effects Promise(int rank, Clock clock) {
    const uint64_t change = ViewNow().change().id();
    return Call(Worker(rank), workers_.at(rank), ++call_id_,
                [=](wire::Call& call) {
                  call.mutable_step_limit()->set_change(change);
                  call.mutable_step_limit()->set_clock(clock);
                });
  }
  Effects PromiseBoth(Clock first, Clock second) {
    Promise(0, first);
    return Promise(1, second);
  }
  static std::string FileOf(int server) {
    return absl::StrCat("server-", server, "-thread-0.safetensors");
  }
  Effects GivePart(int server, int shards, int cut = 1) {
    return Call(Server(server), servers_.at(server), ++call_id_,
                [=](wire::Call& call) {
                  wire::CutPart& part = *call.mutable_cut_part();
                  part.set_cut(cut);
                  part.mutable_part()->set_file(FileOf(server));
                  part.mutable_part()->set_bytes(1000000);
                  part.mutable_part()->set_shards(shards);
                });
  }
  Effects GiveAllParts(int cut = 1) {
    GivePart(0, 3, cut);
    return GivePart(1, 2, cut);
  }
  Effects Complete(int cut = 1) {
    Effects effects;
    now_ += absl::Milliseconds(210);
    core_->OnCheckpoint(cut, "runs/a/checkpoints/step-00000014", now_,
                        &effects);
    return effects;
  }
  Effects TellClock(int rank, Clock clock) {
    Message message;
    message.header.mutable_heartbeat()->set_incarnation(workers_.at(rank));
    message.header.mutable_heartbeat()->mutable_worker()->set_clock(clock);
    return Send(Worker(rank), message);
  }
  Effects TellClocks(Clock first, Clock second) {
    TellClock(0, first);
    return TellClock(1, second);
  }
  bool Cutting() { return ViewNow().change().has_cutting(); }
  run::Summary SummaryNow() { return core_->Summary(); }

  checkpoint::Manifest manifest_;
};

// ---- Users ------------------------------------------------------------------

TEST_F(CheckpointTest, AUserGetsItsFolderWhenItIsThere) {
  StartJob();
  EXPECT_THAT(Answers(AskCheckpoint(7)), IsEmpty());
  ASSERT_TRUE(Cutting());
  PromiseBoth(12, 14);
  const wire::Cut cut = ViewNow().cut();
  EXPECT_FALSE(ViewNow().has_change());
  EXPECT_EQ(cut.number(), 1);
  EXPECT_EQ(cut.clock(), 14);
  EXPECT_FALSE(cut.by_worker());
  EXPECT_THAT(core_->Status(now_).checkpoint(),
              HasSubstr("step 14: 0 of 2 parts are written; server 0, thread "
                        "0, server 1, thread 0 to come"));
  EXPECT_FALSE(GivePart(0, 3).complete.has_value());
  const Effects all = GivePart(1, 2);
  ASSERT_TRUE(all.complete.has_value());
  EXPECT_EQ(all.complete->cut, 1);
  const checkpoint::Manifest& manifest = all.complete->manifest;
  EXPECT_EQ(manifest.job(), "job");
  EXPECT_EQ(manifest.run(), 77u);
  EXPECT_EQ(manifest.version(), "1.2");
  EXPECT_EQ(manifest.clock(), 14);
  EXPECT_EQ(manifest.worker_size(), 0);
  EXPECT_EQ(manifest.workers(), 2);
  EXPECT_EQ(manifest.steps_total(), 100);
  ASSERT_EQ(manifest.table_size(), 1);
  EXPECT_EQ(manifest.table(0).name(), "weight");
  EXPECT_TRUE(manifest.table(0).optimizer().has_momentum());
  ASSERT_EQ(manifest.part_size(), 2);
  EXPECT_EQ(manifest.part(0).file(), FileOf(0));

  const Effects done = Complete();
  const wire::CallReply reply = ReplyIn(done);
  EXPECT_EQ(reply.call_id(), 7u);
  EXPECT_EQ(reply.text(),
            "step 14 is in runs/a/checkpoints/step-00000014 (2.0 MB, after "
            "0.21 s)");
  EXPECT_THAT(done.log, ElementsAre(HasSubstr("step 14 is in")));
  const wire::StatusReply status = core_->Status(now_);
  EXPECT_EQ(status.checkpoint(), "");
  EXPECT_EQ(status.last_checkpoint().clock(), 14);
  EXPECT_EQ(status.last_checkpoint().bytes(), 2000000);
  EXPECT_EQ(SummaryNow().checkpoints(), 1);
  EXPECT_EQ(SummaryNow().checkpoints_failed(), 0);
}

TEST_F(CheckpointTest, ARepeatedCallIsOneCheckpointAndGetsTheSameAnswer) {
  StartJob();
  AskCheckpoint(7);
  const uint64_t number = ViewNow().number();
  EXPECT_THAT(Answers(AskCheckpoint(7)), IsEmpty());
  EXPECT_EQ(ViewNow().number(), number);
  EXPECT_EQ(core_->sizes().checkpoint_calls, 1u);
  PromiseBoth(12, 14);
  EXPECT_THAT(Answers(AskCheckpoint(7)), IsEmpty());
  GiveAllParts();
  Complete();
  EXPECT_EQ(core_->sizes().checkpoint_calls, 0u);
  EXPECT_THAT(ReplyIn(AskCheckpoint(7)).text(), HasSubstr("step 14 is in"));
  EXPECT_FALSE(Cutting()) << "another one has begun";
}

TEST_F(CheckpointTest, WhoAsksAfterTheClocksAreKnownGetsTheNextOne) {
  StartJob();
  AskCheckpoint(7);
  AskCheckpoint(8);  // In time.
  PromiseBoth(12, 14);
  AskCheckpoint(9);
  GiveAllParts();
  EXPECT_THAT(Answers(Complete()),
              UnorderedElementsAre("observer.0.5:7 OK", "observer.0.5:8 OK"));
  ASSERT_TRUE(Cutting());
  PromiseBoth(22, 24);
  EXPECT_EQ(ViewNow().cut().number(), 2);
  GiveAllParts(2);
  EXPECT_THAT(Answers(Complete(2)), ElementsAre("observer.0.5:9 OK"));
  EXPECT_FALSE(Cutting());
}

TEST_F(CheckpointTest, OnlySoManyMayWait) {
  StartJob();
  const auto most = static_cast<uint64_t>(Checkpointer::kCallersMax);
  for (uint64_t id = 1; id <= most; ++id)
    EXPECT_THAT(Answers(AskCheckpoint(id)), IsEmpty());
  EXPECT_EQ(ReplyIn(AskCheckpoint(most + 1)).code(), wire::BUSY);
}

TEST_F(CheckpointTest, IsRefusedWithTheReason) {
  EXPECT_EQ(ReplyIn(AskCheckpoint(1)).error(), "the job does not run");
  options_.checkpoint_root.clear();
  Restart();
  StartJob();
  EXPECT_EQ(ReplyIn(AskCheckpoint(2)).error(),
            "there is no folder for checkpoints: start the job with --out, or "
            "set checkpoint { folder: ... }");
  options_.checkpoint_root = "root";
  Restart();
  servers_.clear();
  workers_.clear();
  StartJob();
  TellClocks(96, 97);
  EXPECT_EQ(ReplyIn(AskCheckpoint(3)).error(),
            "the job is about to end by itself, at step 100");
}

TEST_F(CheckpointTest, IsRefusedInAnElasticJob) {
  options_.config.mutable_checkpoint()->set_every_steps(10);
  Restart();
  for (const PeerId& peer : {Server(0), Server(1)}) Join(peer);
  Effects started;
  for (const int rank : {0, 1}) {
    wire::JoinRequest join = JoinOf(Worker(rank));
    join.mutable_elastic()->set_examples(100);
    join.mutable_elastic()->set_batch_size(10);
    join.mutable_elastic()->set_total(1000);
    started = SendJoin(Worker(rank), join);
  }
  EXPECT_THAT(
      started.warnings,
      ElementsAre(HasSubstr("no checkpoints are taken, which the config "
                            "asks for: the job has elastic sampling")));
  EXPECT_THAT(ReplyIn(AskCheckpoint(1)).error(), HasSubstr("elastic sampling"));
}

TEST_F(CheckpointTest, WhoAsksIsToldThatTheJobEndsFirst) {
  StartJob();
  AskCheckpoint(7);
  Promise(0, 60);
  const Effects dropped = Promise(1, 100);
  EXPECT_EQ(ReplyIn(dropped).error(),
            "no checkpoint was taken: the job ends by itself, at step 100, "
            "before it");
  EXPECT_FALSE(ViewNow().has_change());
  EXPECT_EQ(ViewNow().cut().number(), 0);
  EXPECT_EQ(SummaryNow().checkpoints_failed(), 0);
}

// ---- The config's times -----------------------------------------------------

TEST_F(CheckpointTest, IsTakenWhenTheSlowestWorkerHasCompletedSoManySteps) {
  options_.config.mutable_checkpoint()->set_every_steps(10);
  Restart();
  StartJob();
  TellClocks(25, 9);
  EXPECT_FALSE(Cutting());
  TellClock(1, 10);
  ASSERT_TRUE(Cutting());
  PromiseBoth(29, 14);
  EXPECT_EQ(ViewNow().cut().clock(), 29);
  GiveAllParts();
  Complete();
  TellClocks(29, 29);
  EXPECT_FALSE(Cutting()) << "at 30, and not before";
  TellClocks(30, 30);
  EXPECT_TRUE(Cutting());
}

TEST_F(CheckpointTest, IsTakenAfterEpochsAndWhichComesFirst) {
  options_.config.mutable_checkpoint()->set_every_steps(50);
  options_.config.mutable_checkpoint()->set_every_epochs(0.2);
  Restart();
  StartJob();
  TellClocks(19, 19);
  EXPECT_FALSE(Cutting());
  TellClocks(20, 20);
  EXPECT_TRUE(Cutting());
}

TEST_F(CheckpointTest, IsTakenAfterSoMuchTime) {
  options_.config.mutable_checkpoint()->set_every_seconds(30);
  Restart();
  StartJob();
  EXPECT_LE(core_->NextWakeup(), now_ + absl::Seconds(31));
  Pass(absl::Seconds(29), {});
  EXPECT_FALSE(Cutting());
  Pass(absl::Seconds(1), {});
  ASSERT_TRUE(Cutting());
  PromiseBoth(12, 14);
  GiveAllParts();
  Complete();
  Pass(absl::Seconds(28), {});
  EXPECT_FALSE(Cutting());
  Pass(absl::Seconds(2), {});
  EXPECT_TRUE(Cutting());
}

TEST_F(CheckpointTest, NoneIsTakenNearTheEnd) {
  options_.config.mutable_checkpoint()->set_every_seconds(30);
  options_.config.mutable_checkpoint()->set_every_steps(97);
  Restart();
  StartJob();
  TellClocks(97, 97);
  EXPECT_FALSE(Cutting());
  Pass(absl::Seconds(31), {});
  EXPECT_FALSE(Cutting());
  EXPECT_GT(core_->NextWakeup(), now_) << "it must not be asked all the time";
}

TEST_F(CheckpointTest, WithoutAFolderTheConfigIsAnsweredByAWarning) {
  options_.config.mutable_checkpoint()->set_every_steps(10);
  options_.checkpoint_root.clear();
  Restart();
  for (const PeerId& peer : {Server(0), Server(1), Worker(0)}) Join(peer);
  EXPECT_THAT(SendJoin(Worker(1), JoinOf(Worker(1))).warnings,
              ElementsAre(HasSubstr("there is no folder for checkpoints")));
}

TEST_F(CheckpointTest, AScheduledOneLeavesAsMuchTimeFreeAsTheLastOneTook) {
  options_.config.mutable_checkpoint()->set_every_steps(10);
  Restart();
  StartJob();
  TellClocks(10, 10);
  ASSERT_TRUE(Cutting());
  PromiseBoth(14, 14);
  Pass(absl::Seconds(20), {});
  TellClocks(25, 25);
  GiveAllParts();
  Complete();
  EXPECT_FALSE(Cutting()) << "it is due, and has taken 20 s";
  EXPECT_EQ(ReplyIn(Ask(Moving({0}, 1))).code(), wire::OK);
  Done(0);
  Pass(absl::Seconds(19), {});
  EXPECT_FALSE(Cutting());
  Effects effects;
  TickUntil(now_ + absl::Seconds(1), &effects);
  EXPECT_TRUE(Cutting()) << "without any message";
}

TEST_F(CheckpointTest, OneThatWasGivenUpLeavesTimeFreeToo) {
  options_.config.mutable_checkpoint()->set_every_seconds(5);
  Restart();
  StartJob();
  Pass(absl::Seconds(5), {});
  PromiseBoth(14, 14);
  Pass(absl::Seconds(20), {});
  Call(Server(1), servers_[1], ++call_id_, [](wire::Call& call) {
    call.mutable_cut_part()->set_cut(1);
    call.mutable_cut_part()->set_error("no space left on device");
  });
  EXPECT_FALSE(Cutting());
  Pass(absl::Seconds(19), {});
  EXPECT_FALSE(Cutting());
  Pass(absl::Seconds(2), {});
  EXPECT_TRUE(Cutting());
}

TEST_F(CheckpointTest, AUserNeedNotWaitForThatTime) {
  StartJob();
  AskCheckpoint(7);
  PromiseBoth(12, 14);
  Pass(absl::Seconds(20), {});
  GiveAllParts();
  Complete();
  AskCheckpoint(8);
  EXPECT_TRUE(Cutting());
}

// ---- The best one -----------------------------------------------------------

class BestCheckpointTest : public CheckpointTest {
 protected:
  void StartBy(config::Checkpoint::Measure measure) {
    options_.config.mutable_checkpoint()->set_best_by(measure);
    Restart();
    StartJob();
  }
  // As the chief tells it.
  Effects Evaluate(Clock step, std::optional<double> loss,
                   std::optional<double> accuracy) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(workers_.at(0));
    heartbeat.set_first_record(records_++);
    run::MetricRecord& record = *heartbeat.add_record();
    record.set_kind(run::MetricRecord::EVAL);
    record.set_step(step);
    if (loss.has_value()) record.set_loss(*loss);
    if (accuracy.has_value()) record.set_accuracy(*accuracy);
    return Send(Worker(0), message);
  }
  void TakeIt(Clock clock, int cut) {
    PromiseBoth(clock, clock);
    GiveAllParts(cut);
    Complete(cut);
  }
  void TellBest(Clock clock) {
    run::BestCheckpoint best;
    best.set_folder(absl::StrCat("step-", clock));
    best.set_clock(clock);
    best.set_evaluated_at(10);
    best.set_measure("accuracy");
    best.set_value(0.5);
    Effects effects;
    core_->OnBestCheckpoint(best, now_, &effects);
  }
  int64_t records_ = 0;
};

TEST_F(BestCheckpointTest, ABetterEvaluationMakesOneDueAtOnce) {
  StartBy(config::Checkpoint::ACCURACY);
  const Effects first = Evaluate(10, 1.0, 0.5);
  ASSERT_TRUE(first.best.has_value());
  EXPECT_EQ(first.best->evaluated_at(), 10);
  EXPECT_EQ(first.best->measure(), "accuracy");
  EXPECT_DOUBLE_EQ(first.best->value(), 0.5);
  ASSERT_TRUE(Cutting());
  TakeIt(14, 1);
  EXPECT_FALSE(Cutting());
  EXPECT_FALSE(Evaluate(20, 0.1, 0.5).best.has_value()) << "no better";
  EXPECT_FALSE(Evaluate(30, 0.1, 0.4).best.has_value());
  EXPECT_FALSE(Cutting());
  EXPECT_TRUE(Evaluate(40, 2.0, 0.6).best.has_value());
  EXPECT_TRUE(Cutting());
}

TEST_F(BestCheckpointTest, OfLossesTheSmallestIsTheBest) {
  StartBy(config::Checkpoint::LOSS);
  EXPECT_TRUE(Evaluate(10, 1.0, 0.5).best.has_value());
  TakeIt(14, 1);
  EXPECT_FALSE(Evaluate(20, 1.5, 0.9).best.has_value());
  EXPECT_FALSE(Cutting());
  EXPECT_EQ(Evaluate(30, 0.5, 0.1).best->measure(), "loss");
  EXPECT_TRUE(Cutting());
}

TEST_F(BestCheckpointTest, NoneIsDueWhereALaterOneIsThereOrComes) {
  StartBy(config::Checkpoint::ACCURACY);
  AskCheckpoint(7);
  EXPECT_TRUE(Evaluate(10, 1.0, 0.5).best.has_value());
  TakeIt(14, 1);
  EXPECT_FALSE(Cutting()) << "that one was under way";
  EXPECT_TRUE(Evaluate(12, 1.0, 0.6).best.has_value()) << "it took long";
  EXPECT_FALSE(Cutting()) << "there is that of step 14";
  AskCheckpoint(8);
  PromiseBoth(24, 24);
  EXPECT_TRUE(Evaluate(20, 1.0, 0.7).best.has_value());
  GiveAllParts(2);
  Complete(2);
  EXPECT_FALSE(Cutting());
}

TEST_F(BestCheckpointTest, ItWaitsForTheFreeTimeToo) {
  StartBy(config::Checkpoint::ACCURACY);
  Evaluate(10, 1.0, 0.5);
  PromiseBoth(14, 14);
  Pass(absl::Seconds(20), {});
  GiveAllParts();
  Complete();
  Evaluate(20, 1.0, 0.6);
  EXPECT_FALSE(Cutting());
  Effects effects;
  for (int i = 0; i < 20; ++i) Pass(absl::Seconds(1), {});
  EXPECT_TRUE(Cutting());
}

// Or no checkpoint would be near the best evaluation, unless a better one came.
TEST_F(BestCheckpointTest, OneThatFailsIsDueAgainSomeTimeLater) {
  StartBy(config::Checkpoint::ACCURACY);
  Evaluate(10, 1.0, 0.5);
  int cut = 0;
  const std::function<void()> fails[] = {
      [&] {
        Call(Server(0), servers_.at(0), ++call_id_, [&](wire::Call& call) {
          call.mutable_cut_part()->set_cut(cut);
          call.mutable_cut_part()->set_error("no room");
        });
      },
      [&] {
        GiveAllParts(cut);
        Effects effects;
        core_->OnCheckpoint(cut, absl::ResourceExhaustedError("no room"), now_,
                            &effects);
      },
  };
  for (const std::function<void()>& fail : fails) {
    ASSERT_TRUE(Cutting());
    PromiseBoth(14, 14);
    ++cut;
    fail();
    EXPECT_EQ(SummaryNow().checkpoints_failed(), cut);
    Pass(absl::Seconds(9), {});
    EXPECT_FALSE(Cutting()) << "the disk is left alone for a while";
    EXPECT_LE(core_->NextWakeup(), now_ + absl::Seconds(2));
    Pass(absl::Seconds(2), {});
  }
  ASSERT_TRUE(Cutting());
  TakeIt(18, ++cut);
  Pass(absl::Seconds(30), {});
  EXPECT_FALSE(Cutting()) << "it is there";
}

// One for another reason was under way, which would have done as well.
TEST_F(BestCheckpointTest, ItIsDueIfTheOneThatCameForItFails) {
  StartBy(config::Checkpoint::ACCURACY);
  AskCheckpoint(7);
  PromiseBoth(14, 14);
  Evaluate(10, 1.0, 0.5);
  GiveAllParts();
  Effects effects;
  core_->OnCheckpoint(1, absl::ResourceExhaustedError("no room"), now_,
                      &effects);
  EXPECT_FALSE(Cutting());
  Pass(absl::Seconds(11), {});
  EXPECT_TRUE(Cutting());
}

TEST_F(BestCheckpointTest, WhatWasNotMeasuredIsWarnedOfOnce) {
  StartBy(config::Checkpoint::ACCURACY);
  const Effects first = Evaluate(10, 1.0, std::nullopt);
  EXPECT_THAT(first.warnings,
              ElementsAre(AllOf(HasSubstr("best_by is ACCURACY"),
                                HasSubstr("of step 10 has no accuracy"),
                                HasSubstr("take LOSS"))));
  EXPECT_FALSE(first.best.has_value());
  EXPECT_THAT(Evaluate(20, 1.0, std::nullopt).warnings, IsEmpty());
  EXPECT_FALSE(Cutting());
}

TEST_F(BestCheckpointTest, NumbersThatAreNoneAreNeverTheBest) {
  StartBy(config::Checkpoint::LOSS);
  EXPECT_FALSE(Evaluate(10, std::nan(""), 0.5).best.has_value());
  EXPECT_FALSE(Evaluate(11, -HUGE_VAL, 0.5).best.has_value());
  EXPECT_FALSE(Evaluate(-1, 1.0, 0.5).best.has_value());
  EXPECT_FALSE(Cutting());
}

TEST_F(BestCheckpointTest, WithoutBestByEvaluationsAskForNone) {
  StartJob();
  EXPECT_FALSE(Evaluate(10, 1.0, 0.5).best.has_value());
  EXPECT_FALSE(Cutting());
}

TEST_F(BestCheckpointTest, NearTheEndNoneIsTakenAndTheEvaluationCounts) {
  StartBy(config::Checkpoint::ACCURACY);
  TellClocks(98, 98);
  EXPECT_TRUE(Evaluate(98, 1.0, 0.5).best.has_value());
  EXPECT_FALSE(Cutting());
}

TEST_F(BestCheckpointTest, ThatOfARunBeforeHasToBeBeatenOrRepeated) {
  run::BestCheckpoint before;
  before.set_folder("root/step-00000040");
  before.set_clock(40);
  before.set_evaluated_at(38);
  before.set_measure("accuracy");
  before.set_value(0.7);
  options_.best_checkpoint = before;
  StartBy(config::Checkpoint::ACCURACY);
  EXPECT_EQ(core_->Status(now_).best_checkpoint().clock(), 40);
  EXPECT_EQ(SummaryNow().best_checkpoint().evaluated_at(), 38);
  EXPECT_FALSE(Evaluate(50, 1.0, 0.6).best.has_value());
  EXPECT_FALSE(Cutting());
  EXPECT_TRUE(Evaluate(60, 1.0, 0.7).best.has_value());
  EXPECT_TRUE(Cutting());
  EXPECT_FALSE(Evaluate(70, 1.0, 0.7).best.has_value());
}

TEST_F(BestCheckpointTest, StatusAndSummarySayWhichOneItIs) {
  StartBy(config::Checkpoint::ACCURACY);
  Evaluate(10, 1.0, 0.5);
  EXPECT_FALSE(core_->Status(now_).has_best_checkpoint());
  EXPECT_FALSE(SummaryNow().has_best_checkpoint());
  TakeIt(14, 1);
  TellBest(14);
  EXPECT_EQ(core_->Status(now_).best_checkpoint().folder(), "step-14");
  EXPECT_EQ(SummaryNow().best_checkpoint().clock(), 14);
}

// ---- Workers that do not wait for each other --------------------------------

TEST_F(CheckpointTest, WithoutCommonClocksEachWorkerHasItsOwn) {
  StartIn("ssp:5");
  AskCheckpoint(7);
  PromiseBoth(12, 17);
  const wire::Cut cut = ViewNow().cut();
  EXPECT_EQ(cut.clock(), 0);
  ASSERT_EQ(cut.until_size(), 2);
  EXPECT_EQ(cut.until(0).clock(), 12);
  EXPECT_EQ(cut.until(1).rank(), 1);
  EXPECT_EQ(cut.until(1).incarnation(), workers_[1]);
  EXPECT_EQ(cut.until(1).clock(), 17);
  const Effects all = GiveAllParts();
  ASSERT_TRUE(all.complete.has_value());
  const checkpoint::Manifest& manifest = all.complete->manifest;
  EXPECT_EQ(manifest.clock(), 12);
  ASSERT_EQ(manifest.worker_size(), 2);
  EXPECT_EQ(manifest.worker(1).clock(), 17);
}

TEST_F(CheckpointTest, ByAllReduceTheChiefHasIt) {
  StartIn("allreduce");
  AskCheckpoint(7);
  PromiseBoth(12, 14);
  EXPECT_TRUE(ViewNow().cut().by_worker());
  EXPECT_EQ(ViewNow().cut().clock(), 14);
  GiveAllParts();  // Of servers, which have none of it.
  const auto give = [&](int rank) {
    return Call(Worker(rank), workers_[rank], ++call_id_, [](wire::Call& call) {
      wire::CutPart& part = *call.mutable_cut_part();
      part.set_cut(1);
      part.mutable_part()->set_file("worker-0.safetensors");
      part.mutable_part()->set_bytes(90);
      part.mutable_part()->set_shards(5);
    });
  };
  EXPECT_FALSE(give(1).complete.has_value());
  const Effects all = give(0);
  ASSERT_TRUE(all.complete.has_value());
  EXPECT_EQ(all.complete->manifest.part_size(), 1);
}

TEST_F(CheckpointTest, IsGivenUpWhenTheChiefIsGone) {
  StartIn("allreduce");
  AskCheckpoint(7);
  PromiseBoth(12, 14);
  const Effects effects = Pass(absl::Seconds(7), {Worker(0)});
  EXPECT_EQ(effects.give_up, std::optional<int32_t>(1));
  EXPECT_THAT(ReplyIn(effects).error(),
              HasSubstr("the checkpoint of step 14 was given up: worker 0, "
                        "which was to write it, is gone"));
  EXPECT_EQ(SummaryNow().checkpoints_failed(), 1);
}

// ---- What programs keep -----------------------------------------------------

class KeptTest : public CheckpointTest {
 protected:
  void StartKeepers() {
    servers_.clear();
    workers_.clear();
    Restart();
    for (int i = 0; i < options_.servers; ++i)
      servers_.push_back(Join(Server(i)).incarnation());
    for (int i = 0; i < options_.workers; ++i) {
      wire::JoinRequest join = JoinOf(Worker(i));
      join.set_keeps_state(true);
      workers_.push_back(Join(Worker(i), join).incarnation());
    }
  }
  void StartJobOfKeepers() {
    StartKeepers();
    AskCheckpoint(7);
    PromiseBoth(12, 14);
  }
  Effects GiveKept(int rank,
                   const std::function<void(wire::CutPart&)>& change = {}) {
    return Call(Worker(rank), workers_.at(rank), ++call_id_,
                [&](wire::Call& call) {
                  wire::CutPart& part = *call.mutable_cut_part();
                  part.set_cut(1);
                  part.mutable_kept()->set_rank(rank);
                  part.mutable_kept()->set_file(
                      absl::StrCat("worker-", rank, ".state"));
                  part.mutable_kept()->set_bytes(1000);
                  part.mutable_kept()->set_hash(99);
                  if (change) change(part);
                });
  }
};

TEST_F(KeptTest, ItIsThereWhenAllPartsAndProgramsAre) {
  StartJobOfKeepers();
  EXPECT_TRUE(ViewNow().worker(1).keeps_state());
  GiveAllParts();
  EXPECT_THAT(core_->Status(now_).checkpoint(),
              HasSubstr("2 of 4 parts are written; the state of worker 0, "
                        "the state of worker 1 to come"));
  EXPECT_FALSE(GiveKept(1).complete.has_value());
  EXPECT_FALSE(GiveKept(1).complete.has_value()) << "repeated";
  const Effects all = GiveKept(0);
  ASSERT_TRUE(all.complete.has_value());
  const checkpoint::Manifest& manifest = all.complete->manifest;
  ASSERT_EQ(manifest.kept_size(), 2);
  EXPECT_EQ(manifest.kept(0).file(), "worker-0.state");
  EXPECT_EQ(manifest.kept(1).rank(), 1);
  EXPECT_EQ(manifest.kept(1).bytes(), 1000);
  EXPECT_EQ(manifest.kept(1).hash(), 99u);
  Complete();
  EXPECT_EQ(SummaryNow().last_checkpoint().bytes(), 2002000);
}

TEST_F(KeptTest, AProgramThatHasDoneItsLastStepIsNotWaitedFor) {
  options_.config.mutable_sync()->mutable_ssp()->set_staleness(5);
  StartKeepers();
  HeartbeatTrained(1);
  AskCheckpoint(7);
  PromiseBoth(12, steps_total_);
  GiveAllParts();
  EXPECT_THAT(core_->Status(now_).checkpoint(),
              HasSubstr("2 of 3 parts are written; the state of worker 0"));
  EXPECT_FALSE(GiveKept(1).complete.has_value());
  const Effects all = GiveKept(0);
  ASSERT_TRUE(all.complete.has_value());
  ASSERT_EQ(all.complete->manifest.kept_size(), 1);
  EXPECT_EQ(all.complete->manifest.kept(0).rank(), 0);
}

TEST_F(KeptTest, AProgramThatComesToItsLastStepLaterIsNotWaitedForEither) {
  options_.config.mutable_sync()->mutable_ssp()->set_staleness(5);
  StartKeepers();
  AskCheckpoint(7);
  PromiseBoth(12, steps_total_);
  GiveAllParts();
  EXPECT_FALSE(GiveKept(0).complete.has_value());
  const Effects all = HeartbeatTrained(1);
  ASSERT_TRUE(all.complete.has_value());
  ASSERT_EQ(all.complete->manifest.kept_size(), 1);
  EXPECT_EQ(all.complete->manifest.kept(0).rank(), 0);
}

TEST_F(KeptTest, WhatAProgramHasGivenBeforeItsLastStepIsWaitedFor) {
  options_.config.mutable_sync()->mutable_ssp()->set_staleness(5);
  StartKeepers();
  AskCheckpoint(7);
  PromiseBoth(12, 14);
  GiveAllParts();
  GiveKept(0);
  EXPECT_FALSE(HeartbeatTrained(1).complete.has_value()) << "it is written";
  const Effects all = GiveKept(1);
  ASSERT_TRUE(all.complete.has_value());
  EXPECT_EQ(all.complete->manifest.kept_size(), 2);
}

TEST_F(KeptTest, WhoIsBeyondItsOwnCutDoesNotPutOffTheGivingUp) {
  options_.config.mutable_limits()->set_stall_timeout_ms(20000);
  options_.config.mutable_limits()->set_save_timeout_ms(10000);
  options_.config.mutable_sync()->mutable_ssp()->set_staleness(5);
  StartKeepers();
  AskCheckpoint(7);
  PromiseBoth(12, 17);
  TellClock(1, 17);
  GiveAllParts();
  for (int i = 0; i < 31; ++i) {
    TellClock(0, 13);
    Pass(absl::Seconds(1), {});
  }
  EXPECT_EQ(SummaryNow().checkpoints_failed(), 1);
}

TEST_F(KeptTest, WhoIsGoneIsNotWaitedForAndWhoJoinsThenIsNotExpected) {
  StartJobOfKeepers();
  GiveAllParts();
  GiveKept(1);
  const Effects gone =
      Call(Worker(0), workers_[0], ++call_id_, [](wire::Call& call) {
        call.mutable_leave()->set_failure("it has no memory");
      });
  ASSERT_TRUE(gone.complete.has_value());
  EXPECT_EQ(gone.complete->manifest.kept_size(), 1);

  StartJobOfKeepers();
  Call(Worker(0), workers_[0], ++call_id_, [](wire::Call& call) {
    call.mutable_leave()->set_failure("it has no memory");
  });
  wire::JoinRequest again = JoinOf(Worker(0, 999));
  again.set_keeps_state(true);
  again.set_token(999);
  Join(Worker(0, 999), again);
  GiveAllParts();
  const Effects rest = GiveKept(1);
  ASSERT_TRUE(rest.complete.has_value());
  EXPECT_EQ(rest.complete->manifest.kept_size(), 1);
}

TEST_F(KeptTest, IsGivenUpWithTheErrorOfAProgram) {
  StartJobOfKeepers();
  GiveAllParts();
  GiveKept(0);
  const Effects effects = GiveKept(
      1, [](wire::CutPart& part) { part.set_kept_error("TypeError: no"); });
  EXPECT_EQ(effects.give_up, std::optional<int32_t>(1));
  EXPECT_THAT(ReplyIn(effects).error(),
              HasSubstr("could not keep its state: TypeError: no"));
}

void SetResiduals(const std::string& file, int shards, int64_t bytes,
                  wire::CutPart* part) {
  checkpoint::Part& residuals = *part->mutable_kept()->mutable_residuals();
  residuals.set_file(file);
  residuals.set_shards(shards);
  residuals.set_bytes(bytes);
}

TEST_F(KeptTest, ResidualsAreListedAndAStateWithoutAnythingIsNot) {
  StartJobOfKeepers();
  GiveAllParts();
  const auto without_program = [](wire::CutPart& part) {
    part.mutable_kept()->clear_file();
    part.mutable_kept()->clear_bytes();
  };
  GiveKept(0, without_program);
  const Effects all = GiveKept(1, [&](wire::CutPart& part) {
    without_program(part);
    SetResiduals("worker-1.residuals.safetensors", 1, 500, &part);
  });
  ASSERT_TRUE(all.complete.has_value());
  const checkpoint::Manifest& manifest = all.complete->manifest;
  ASSERT_EQ(manifest.kept_size(), 1);
  EXPECT_EQ(manifest.kept(0).rank(), 1);
  EXPECT_EQ(manifest.kept(0).residuals().bytes(), 500);
  Complete();
  EXPECT_EQ(SummaryNow().last_checkpoint().bytes(), 2000500);
}

TEST_F(KeptTest, WhatDoesNotFitEndsIt) {
  const std::vector<std::function<void(wire::CutPart&)>> wrong = {
      [](auto& part) { part.mutable_kept()->set_rank(1); },
      [](auto& part) { part.mutable_kept()->set_bytes(-1); },
      [](auto& part) { part.mutable_kept()->set_bytes((1 << 30) + 1); },
      [](auto& part) { part.mutable_kept()->set_file(""); },
      [](auto& part) { part.mutable_kept()->set_file("../x"); },
      [](auto& part) { part.mutable_kept()->set_file("manifest.json"); },
      [](auto& part) { part.mutable_kept()->set_file(FileOf(0)); },
      [](auto& part) { part.mutable_kept()->set_file("worker-1.state"); },
      [](auto& part) { part.mutable_kept()->mutable_residuals(); },
      [](auto& part) { SetResiduals("../x", 1, 100, &part); },
      [](auto& part) { SetResiduals("", 1, 100, &part); },
      [](auto& part) { SetResiduals(FileOf(0), 1, 100, &part); },
      [](auto& part) { SetResiduals("worker-0.state", 1, 100, &part); },
      [](auto& part) { SetResiduals("worker-1.state", 1, 100, &part); },
      [](auto& part) { SetResiduals("a", 0, 100, &part); },
      [](auto& part) { SetResiduals("a", 1000, 100, &part); },
      [](auto& part) { SetResiduals("a", 1, 0, &part); },
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    SCOPED_TRACE(i);
    StartJobOfKeepers();
    GivePart(0, 3);
    GiveKept(1);
    EXPECT_TRUE(GiveKept(0, wrong[i]).give_up.has_value());
  }
}

TEST_F(KeptTest, OfServersAndOfProgramsThatKeepNothingNoneCounts) {
  StartJob();
  AskCheckpoint(7);
  PromiseBoth(12, 14);
  const Effects foreign = GiveKept(0);
  EXPECT_FALSE(foreign.give_up.has_value());
  GiveAllParts(1);
  EXPECT_EQ(SummaryNow().checkpoints_failed(), 0);
}

// ---- What has to wait -------------------------------------------------------

TEST_F(CheckpointTest, MovesAndTheModeWaitUntilAllShardsHaveIt) {
  StartJob();
  AskCheckpoint(100);
  const auto expect_busy = [&] {
    EXPECT_EQ(ReplyIn(Ask(Moving({0}, 1))).code(), wire::BUSY);
    const wire::CallReply mode = ReplyIn(Ask([](wire::Call& call) {
      *call.mutable_set_mode()->mutable_mode() = ModeOf("asp");
    }));
    EXPECT_EQ(mode.code(), wire::BUSY);
    EXPECT_THAT(mode.error(), HasSubstr("a checkpoint is just being taken"));
  };
  expect_busy();
  PromiseBoth(12, 14);
  expect_busy();
  GivePart(0, 3);
  expect_busy();
  GivePart(1, 2);  // Not on the disk as a whole, but no shard needs it.
  EXPECT_EQ(ReplyIn(Ask(Moving({0}, 1))).code(), wire::OK);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("0>1.0"));
}

TEST_F(CheckpointTest, WaitsForMovesThatAreUnderWay) {
  StartJob();
  Ask(Moving({0}, 1));
  AskCheckpoint(100);
  EXPECT_FALSE(Cutting());
  EXPECT_THAT(core_->Status(now_).checkpoint(), HasSubstr("shards that move"));
  Done(0);
  ASSERT_TRUE(Cutting());
  PromiseBoth(12, 14);
  GivePart(0, 2);  // It has given one away.
  EXPECT_TRUE(GivePart(1, 3).complete.has_value());
}

TEST_F(CheckpointTest, AnEarlyEndWaitsAndThenNoCheckpointBegins) {
  StartJob();
  AskCheckpoint(100);
  const auto finish = [](wire::Call& call) {
    call.mutable_finish()->set_reason("enough");
  };
  EXPECT_EQ(ReplyIn(Ask(finish)).code(), wire::OK);
  EXPECT_THAT(ReplyIn(AskCheckpoint(101)).error(),
              HasSubstr("being ended early"));
  PromiseBoth(12, 14);
  EXPECT_FALSE(ViewNow().has_change()) << "the end waits";
  GiveAllParts();
  EXPECT_TRUE(ViewNow().change().has_ending());
  PromiseBoth(20, 22);
  EXPECT_EQ(ViewNow().end_clock(), 22);
}

TEST_F(CheckpointTest, ADropOfACutLetsMovesGoOn) {
  StartJob();
  AskCheckpoint(100);
  PromiseBoth(60, 100);
  EXPECT_EQ(ReplyIn(Ask(Moving({0}, 1))).code(), wire::OK);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("0>1.0"));
}

// ---- Parts ------------------------------------------------------------------

TEST_F(CheckpointTest, IsGivenUpWithTheErrorOfAPart) {
  StartJob();
  AskCheckpoint(100);
  PromiseBoth(12, 14);
  GivePart(0, 3);
  const Effects failed =
      Call(Server(1), servers_[1], ++call_id_, [](wire::Call& call) {
        call.mutable_cut_part()->set_cut(1);
        call.mutable_cut_part()->set_error("no space left on device");
      });
  EXPECT_EQ(failed.give_up, std::optional<int32_t>(1));
  EXPECT_EQ(ReplyIn(failed).code(), wire::REJECTED);
  EXPECT_EQ(ReplyIn(failed).error(),
            "the checkpoint of step 14 was given up: server 1 (pid 4201 on "
            "somewhere) could not write its part: no space left on device");
  EXPECT_THAT(failed.warnings, ElementsAre(HasSubstr("no space left")));
  // The next one is another cut.
  AskCheckpoint(101);
  PromiseBoth(32, 34);
  EXPECT_EQ(ViewNow().cut().number(), 2);
  EXPECT_FALSE(GiveAllParts(1).complete.has_value()) << "of the one before";
  EXPECT_TRUE(GiveAllParts(2).complete.has_value());
}

// The server has died before the cut, and the source says only now that the
// shard was there already: somebody else serves it, who does not have the cut.
TEST_F(CheckpointTest, IsGivenUpForAShardThatWasLostOnItsWay) {
  options_.config.set_replicas(1);
  Restart();
  StartJob();
  const PeerId added = AddServer(2);
  Ask(Moving({0}, 2));
  const run::ServerStats stats = LostOnItsWay(0, 2);
  Pass(absl::Seconds(6), {added});
  AskCheckpoint(100);
  PromiseBoth(12, 14);
  ASSERT_EQ(ViewNow().cut().number(), 1);
  GivePart(1, 2);
  const Effects effects = Tell(0, stats);
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(ViewNow().owner_server(0), 1);
  EXPECT_EQ(effects.give_up, std::optional<int32_t>(1));
  EXPECT_THAT(effects.warnings,
              ::testing::Contains(
                  AllOf(HasSubstr("step 14 was given up"),
                        HasSubstr("server 2, to which shard 0 was just moving "
                                  "from server 0, has died"))));
}

TEST_F(CheckpointTest, RepeatedLateAndForeignPartsChangeNothing) {
  StartJob();
  EXPECT_THAT(GivePart(0, 3).warnings, IsEmpty()) << "before any";
  AskCheckpoint(100);
  EXPECT_THAT(GivePart(0, 3).warnings, IsEmpty()) << "before its clock";
  PromiseBoth(12, 14);
  GivePart(0, 3);
  const Effects again = GivePart(0, 3);
  EXPECT_FALSE(again.complete.has_value());
  EXPECT_FALSE(again.give_up.has_value());
  EXPECT_EQ(Answers(again).size(), 1u) << "it is answered, so it stops";
  const Effects thread =
      Call(Server(1), servers_[1], ++call_id_, [](wire::Call& call) {
        call.mutable_cut_part()->set_cut(1);
        call.mutable_cut_part()->set_thread(1);
        call.mutable_cut_part()->mutable_part()->set_shards(2);
      });
  EXPECT_FALSE(thread.complete.has_value());
  EXPECT_FALSE(thread.give_up.has_value());
  EXPECT_TRUE(GivePart(1, 2).complete.has_value());
  EXPECT_FALSE(GivePart(1, 2).complete.has_value());
}

TEST_F(CheckpointTest, APartThatDoesNotFitEndsIt) {
  const auto give = [&](const std::function<void(checkpoint::Part&)>& fill) {
    Restart();
    servers_.clear();
    workers_.clear();
    StartJob();
    AskCheckpoint(100);
    PromiseBoth(12, 14);
    GivePart(0, 3);
    return Call(Server(1), servers_[1], ++call_id_, [&](wire::Call& call) {
      call.mutable_cut_part()->set_cut(1);
      checkpoint::Part& part = *call.mutable_cut_part()->mutable_part();
      part.set_file(FileOf(1));
      part.set_bytes(100);
      part.set_shards(2);
      fill(part);
    });
  };
  EXPECT_TRUE(give([](auto&) {}).complete.has_value());
  const std::vector<std::function<void(checkpoint::Part&)>> wrong = {
      [](auto& part) { part.set_shards(1); },
      [](auto& part) { part.set_shards(-2); },
      [](auto& part) { part.set_shards(0); },
      [](auto& part) { part.set_bytes(0); },
      [](auto& part) { part.set_bytes(int64_t{1} << 62); },
      [](auto& part) { part.set_file(""); },
      [](auto& part) { part.set_file("../x"); },
      [](auto& part) { part.set_file("a/b"); },
      [](auto& part) { part.set_file("manifest.json"); },
      [](auto& part) { part.set_file(std::string(257, 'x')); },
      [](auto& part) { part.set_file(FileOf(0)); },
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    SCOPED_TRACE(i);
    const Effects effects = give(wrong[i]);
    EXPECT_FALSE(effects.complete.has_value());
    EXPECT_TRUE(effects.give_up.has_value());
  }
}

TEST_F(CheckpointTest, IsGivenUpWhenNothingComes) {
  options_.config.mutable_limits()->set_stall_timeout_ms(20000);
  options_.config.mutable_limits()->set_save_timeout_ms(40000);
  Restart();
  StartJob();
  AskCheckpoint(100);
  PromiseBoth(12, 14);
  Pass(absl::Seconds(50), {});
  GivePart(0, 3);
  Pass(absl::Seconds(59), {});
  EXPECT_NE(core_->Status(now_).checkpoint(), "") << "one has come meanwhile";
  now_ += absl::Seconds(1);
  EXPECT_LE(core_->NextWakeup(), now_ + absl::Milliseconds(1));
  Effects effects;
  core_->OnTick(now_, &effects);
  EXPECT_TRUE(effects.give_up.has_value());
  EXPECT_THAT(
      ReplyIn(effects).error(),
      AllOf(HasSubstr("no part has come for 60 s"),
            HasSubstr("server 1, thread 0"), HasSubstr("save_timeout_ms")));
}

// It keeps all others from being taken, which nobody would notice.
TEST_F(CheckpointTest, ADiskThatHangsWhileItGetsItsNameIsTold) {
  StartJob();
  AskCheckpoint(100);
  PromiseBoth(12, 14);
  GiveAllParts();
  std::vector<int> said_at;
  std::vector<std::string> warnings;
  for (int second = 1; second <= 100; ++second) {
    now_ += absl::Seconds(1);
    Effects effects;
    core_->OnTick(now_, &effects);
    for (size_t i = 0; i < servers_.size(); ++i)
      Heartbeat(Server(i), servers_[i]);
    for (size_t i = 0; i < workers_.size(); ++i)
      Heartbeat(Worker(i), workers_[i]);
    for (const std::string& warning : effects.warnings) {
      said_at.push_back(second);
      warnings.push_back(warning);
    }
  }
  EXPECT_THAT(said_at, ElementsAre(10, 20, 40, 80));
  ASSERT_FALSE(warnings.empty());
  EXPECT_THAT(warnings.back(),
              AllOf(HasSubstr("step 14"), HasSubstr("runs/a/checkpoints"),
                    HasSubstr("80 s"), HasSubstr("no other checkpoint")));
  EXPECT_THAT(
      core_->Status(now_).checkpoint(),
      AllOf(HasSubstr("runs/a/checkpoints"), HasSubstr("waited 100 s")));
  Complete();
  EXPECT_EQ(core_->Status(now_).checkpoint(), "");
  EXPECT_EQ(SummaryNow().checkpoints(), 1);
}

TEST_F(CheckpointTest, AFailureToCompleteItIsToldToo) {
  StartJob();
  AskCheckpoint(100);
  PromiseBoth(12, 14);
  GiveAllParts();
  Effects effects;
  core_->OnCheckpoint(1, absl::ResourceExhaustedError("rename: no room"), now_,
                      &effects);
  EXPECT_EQ(effects.give_up, std::optional<int32_t>(1));
  EXPECT_THAT(ReplyIn(effects).error(), HasSubstr("rename: no room"));
  EXPECT_EQ(SummaryNow().checkpoints_failed(), 1);
  EXPECT_EQ(SummaryNow().checkpoints(), 0);
}

// ---- Deaths and the end -----------------------------------------------------

TEST_F(CheckpointTest, AWorkerThatDiesHoldsNothingUp) {
  StartJob();
  AskCheckpoint(100);
  Promise(0, 12);
  Pass(absl::Seconds(7), {Worker(1)});
  TellReached(5);
  EXPECT_EQ(ViewNow().cut().clock(), 12);
  EXPECT_TRUE(GiveAllParts().complete.has_value());
}

TEST_F(CheckpointTest, AServerWithoutShardsThatLeavesHasNoPart) {
  StartJob();
  const PeerId added = AddServer(2);
  AskCheckpoint(100);
  PromiseBoth(12, 14);
  GiveAllParts();
  EXPECT_THAT(core_->Status(now_).checkpoint(),
              HasSubstr("2 of 3 parts are written; server 2, thread 0"));
  const Effects left = Call(added, servers_[2], ++call_id_,
                            [](wire::Call& call) { call.mutable_leave(); });
  ASSERT_TRUE(left.complete.has_value());
  EXPECT_EQ(left.complete->manifest.part_size(), 2);
}

TEST_F(CheckpointTest, AServerWithoutShardsHasAPartWithoutAFile) {
  StartJob();
  AddServer(2);
  AskCheckpoint(100);
  PromiseBoth(12, 14);
  GiveAllParts();
  const Effects all =
      Call(Server(2), servers_[2], ++call_id_, [](wire::Call& call) {
        call.mutable_cut_part()->set_cut(1);
        call.mutable_cut_part()->mutable_part();
      });
  ASSERT_TRUE(all.complete.has_value());
  EXPECT_EQ(all.complete->manifest.part_size(), 2);
}

TEST_F(CheckpointTest, TheEndOfTheJobGivesItUp) {
  StartJob();
  AskCheckpoint(100);
  PromiseBoth(12, 14);
  GivePart(0, 3);
  AskCheckpoint(101);  // The next.
  const Effects effects = Pass(absl::Seconds(7), {Server(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(effects.give_up, std::optional<int32_t>(1));
  EXPECT_THAT(Answers(effects),
              UnorderedElementsAre("observer.0.5:100 REJECTED",
                                   "observer.0.5:101 REJECTED"));
  EXPECT_EQ(core_->sizes().checkpoint_calls, 0u);
}

TEST_F(CheckpointTest, WhatIsOnTheDiskAtTheEndIsStillCompleted) {
  StartJob();
  AskCheckpoint(100);
  PromiseBoth(12, 14);
  GiveAllParts();
  Effects ended;
  core_->Fail("enough", now_, &ended);
  EXPECT_FALSE(ended.give_up.has_value());
  EXPECT_THAT(Answers(ended), IsEmpty());
  EXPECT_THAT(Answers(Complete()), ElementsAre("observer.0.5:100 OK"));
  EXPECT_EQ(SummaryNow().checkpoints(), 1);
}

// ---- An end after a checkpoint ----------------------------------------------

class SuspendTest : public CheckpointTest {
 protected:
  static std::function<void(wire::Call&)> Suspending(
      const std::string& reason) {
    return
        [=](wire::Call& call) { call.mutable_suspend()->set_reason(reason); };
  }
  Effects Suspend(const std::string& reason = "time is over") {
    return Ask(Suspending(reason));
  }
  // The job has failed for this cause, and says so.
  void ExpectEnd(wire::JobEnd::Cause cause, const std::string& reason) {
    EXPECT_EQ(core_->state(), wire::FAILED);
    EXPECT_EQ(core_->view().end().cause(), cause)
        << wire::JobEnd::Cause_Name(core_->view().end().cause());
    EXPECT_EQ(core_->reason(), reason);
  }
  void ExpectRuns() {
    EXPECT_EQ(core_->state(), wire::RUNNING) << core_->reason();
  }
};

TEST_F(SuspendTest, EndsWhenTheCheckpointIsThere) {
  StartJob();
  const Effects asked = Suspend();
  EXPECT_EQ(ReplyIn(asked).code(), wire::OK);
  EXPECT_THAT(asked.log, ::testing::Contains(HasSubstr("time is over")));
  ASSERT_TRUE(Cutting());
  PromiseBoth(12, 14);
  EXPECT_TRUE(GiveAllParts().complete.has_value());
  ExpectRuns();
  const Effects done = Complete();
  ExpectEnd(wire::JobEnd::SUSPENDED,
            "time is over; step 14 is in runs/a/checkpoints/step-00000014 (2.0 "
            "MB, after 0.21 s); --resume=runs/a/checkpoints/step-00000014 goes "
            "on from there, of `slackline run CONFIG` or, by hand, of every "
            "server");
  EXPECT_EQ(core_->view().end().clock(), 14);
  EXPECT_THAT(done.warnings, IsEmpty()) << "nothing is wrong";
  EXPECT_THAT(done.log, ::testing::Contains(HasSubstr("the job is suspended")));
  EXPECT_THAT(Answers(done), IsEmpty()) << "nobody waits";
  const wire::View* const last = ViewFor(done, Worker(0));
  ASSERT_NE(last, nullptr) << "members are told at once";
  EXPECT_EQ(last->end().cause(), wire::JobEnd::SUSPENDED);
  EXPECT_EQ(SummaryNow().state(), "FAILED");
  EXPECT_EQ(SummaryNow().cause(), "SUSPENDED");
  EXPECT_EQ(SummaryNow().checkpoints(), 1);
}

TEST_F(SuspendTest, AMemberMayAskAndMoreOfThemJoinTheFirst) {
  StartJob();
  EXPECT_THAT(Answers(Call(Worker(1), workers_[1], 900,
                           Suspending("worker 1 has got SIGTERM"))),
              ElementsAre("worker.1.101:900 OK"));
  EXPECT_THAT(Answers(Call(Server(0), servers_[0], 901,
                           Suspending("server 0 has got SIGTERM"))),
              ElementsAre("server.0.200:901 OK"));
  // Repeated, as its answer was lost.
  EXPECT_THAT(Answers(Call(Worker(1), workers_[1], 900,
                           Suspending("worker 1 has got SIGTERM"))),
              ElementsAre("worker.1.101:900 OK"));
  EXPECT_EQ(core_->sizes().checkpoint_calls, 1u);
  PromiseBoth(12, 14);
  GiveAllParts();
  Complete();
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SUSPENDED);
  EXPECT_THAT(core_->reason(), ::testing::StartsWith("worker 1 has got"));
}

TEST_F(SuspendTest, AUserWhoWaitsForTheCheckpointGetsIt) {
  StartJob();
  AskCheckpoint(7);
  Suspend();
  PromiseBoth(12, 14);
  GiveAllParts();
  EXPECT_THAT(Answers(Complete()), ElementsAre("observer.0.5:7 OK"));
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SUSPENDED);
}

TEST_F(SuspendTest, OneThatHasItsClocksAlreadyIsNotTheLast) {
  StartJob();
  AskCheckpoint(7);
  PromiseBoth(12, 14);
  Suspend();
  GiveAllParts();
  Complete();
  ExpectRuns();
  ASSERT_TRUE(Cutting()) << "the next one begins";
  PromiseBoth(20, 22);
  GiveAllParts(2);
  Complete(2);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SUSPENDED);
}

TEST_F(SuspendTest, AStopMeanwhileEndsItAtOnce) {
  StartJob();
  Suspend();
  PromiseBoth(12, 14);
  GiveAllParts();
  const Effects stopped =
      Ask([](wire::Call& call) { call.mutable_stop()->set_reason("enough"); });
  ExpectEnd(wire::JobEnd::STOPPED, "enough");
  EXPECT_EQ(Answers(stopped).size(), 1u) << "only the one who has stopped it";
  // What is on the disk still becomes a checkpoint; the end stays what it is.
  EXPECT_THAT(Answers(Complete()), IsEmpty());
  ExpectEnd(wire::JobEnd::STOPPED, "enough");
}

TEST_F(SuspendTest, AnEndForAnotherReasonMeanwhileIsThat) {
  StartJob();
  Suspend();
  PromiseBoth(12, 14);
  const Effects lost = Pass(absl::Seconds(7), {Server(1)});
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SERVER_LOST);
  EXPECT_THAT(Answers(lost), IsEmpty());
}

// ---- Servers die, and others have copies ------------------------------------

class ReplicatedCheckpointTest : public SuspendTest {
 protected:
  ReplicatedCheckpointTest() {
    options_.config.set_replicas(1);
    options_.config.mutable_limits()->set_stall_timeout_ms(1000000);
    Restart();
  }
};

TEST_F(ReplicatedCheckpointTest, ACheckpointIsGivenUpWithAServerThatHadShards) {
  StartJob();
  AskCheckpoint(7);
  PromiseBoth(12, 14);
  GivePart(1, 2);
  const Effects lost = Pass(absl::Seconds(7), {Server(1)});
  ExpectRuns();
  EXPECT_EQ(lost.give_up, 1);
  EXPECT_THAT(Answers(lost), ElementsAre("observer.0.5:7 BUSY"));
  EXPECT_THAT(lost.warnings,
              ::testing::Contains(AllOf(HasSubstr("step 14 was given up"),
                                        HasSubstr("server 1 (pid"))));
  // What the others have still to say of it is of no use.
  EXPECT_FALSE(GivePart(0, 3).complete.has_value());
  AskCheckpoint(8);
  PromiseBoth(22, 24);
  const Effects whole = GivePart(0, 5, /*cut=*/2);
  EXPECT_TRUE(whole.complete.has_value());
}

TEST_F(ReplicatedCheckpointTest, BeforeItsCutAServersDeathChangesNothing) {
  StartJob();
  AskCheckpoint(7);
  Promise(0, 12);
  Pass(absl::Seconds(7), {Server(1)});
  Promise(1, 14);
  EXPECT_TRUE(GivePart(0, 5).complete.has_value());
}

TEST_F(ReplicatedCheckpointTest, AServerWithoutShardsIsNotMissed) {
  StartJob();
  AddServer(2);
  AskCheckpoint(7);
  PromiseBoth(12, 14);
  Pass(absl::Seconds(7), {Server(2)});
  EXPECT_TRUE(GiveAllParts().complete.has_value());
}

TEST_F(ReplicatedCheckpointTest, ASuspensionTakesTheNextOne) {
  StartJob();
  Suspend();
  PromiseBoth(12, 14);
  Pass(absl::Seconds(7), {Server(1)});
  ExpectRuns();
  ASSERT_TRUE(Cutting()) << "it has asked again";
  PromiseBoth(22, 24);
  EXPECT_TRUE(GivePart(0, 5, /*cut=*/2).complete.has_value());
  Complete(2);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SUSPENDED);
}

TEST_F(SuspendTest, WithoutACheckpointItEndsAllTheSame) {
  options_.checkpoint_root.clear();
  Restart();
  StartJob();
  EXPECT_EQ(ReplyIn(Suspend()).code(), wire::OK);
  ExpectEnd(wire::JobEnd::STOPPED,
            "time is over; without a checkpoint: there is no folder for "
            "checkpoints: start the job with --out, or set checkpoint { "
            "folder: ... }; there is no earlier one");
}

TEST_F(SuspendTest, WhileItFormsItEndsAllTheSame) {
  Suspend();
  ExpectEnd(wire::JobEnd::STOPPED,
            "time is over; without a checkpoint: the job does not run; there "
            "is no earlier one");
}

TEST_F(SuspendTest, AFailedCheckpointEndsItAndTheLastOneIsNamed) {
  StartJob();
  AskCheckpoint(7);
  PromiseBoth(12, 14);
  GiveAllParts();
  Complete();
  Suspend();
  PromiseBoth(20, 22);
  Call(Server(0), servers_[0], ++call_id_, [](wire::Call& call) {
    call.mutable_cut_part()->set_cut(2);
    call.mutable_cut_part()->set_error("no space left on device");
  });
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::STOPPED);
  EXPECT_THAT(
      core_->reason(),
      AllOf(HasSubstr("time is over; without a checkpoint: the checkpoint of "
                      "step 22 was given up: server 0"),
            HasSubstr("no space left on device; the last one is of step 14, in "
                      "runs/a/checkpoints/step-00000014")));
}

TEST_F(SuspendTest, NearItsEndItFinishes) {
  StartJob();
  TellClocks(98, 97);
  Suspend();
  ExpectRuns();
  EXPECT_FALSE(Cutting());
  Leave(1);
  Leave(0, true);
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::COMPLETED);
}

TEST_F(SuspendTest, ProgramsAtWorkAfterTheirLastStepAreNamed) {
  options_.config.mutable_limits()->set_stall_timeout_ms(20000);
  options_.config.mutable_limits()->set_save_timeout_ms(10000);
  Restart();
  StartJob();
  HeartbeatTrained(0);
  HeartbeatTrained(1);
  Leave(0);
  EXPECT_THAT(Suspend().log,
              Contains(AllOf(HasSubstr("the programs of worker 1, which"),
                             HasSubstr("or in 30 s"))));
  Pass(absl::Seconds(29), {});
  ExpectRuns();
  Pass(absl::Seconds(2), {});
  ExpectEnd(wire::JobEnd::STOPPED,
            "time is over; without a checkpoint: none is taken after the last "
            "step, and the job has not ended within 30 s, because the programs "
            "of worker 1 were still at work after it; there is no earlier one");
}

TEST_F(SuspendTest, ACutThatTheEndOvertakesLetsItFinish) {
  StartJob();
  Suspend();
  ASSERT_TRUE(Cutting());
  TellClocks(98, 97);
  PromiseBoth(100, 100);
  ExpectRuns();
  EXPECT_FALSE(ViewNow().has_cut());
  Leave(1);
  Leave(0, true);
  EXPECT_EQ(core_->state(), wire::FINISHED);
}

TEST_F(SuspendTest, AnEarlyEndThatIsUnderWayIsLeftToFinish) {
  StartJob();
  Ask([](wire::Call& call) { call.mutable_finish()->set_reason("enough"); });
  Suspend();
  ExpectRuns();
  ASSERT_TRUE(ViewNow().change().has_ending());
}

TEST_F(SuspendTest, WaitsForMovesButNotForEver) {
  options_.config.mutable_limits()->set_stall_timeout_ms(20000);
  options_.config.mutable_limits()->set_save_timeout_ms(10000);
  Restart();
  StartJob();
  Ask(Moving({0}, 1));
  Suspend();
  EXPECT_FALSE(Cutting());
  Pass(absl::Seconds(29), {});
  ExpectRuns();
  Pass(absl::Seconds(2), {});
  ExpectEnd(wire::JobEnd::STOPPED,
            "time is over; without a checkpoint: it was not there within 30 "
            "s; raise limits { save_timeout_ms: ... }; there is no earlier "
            "one");
  EXPECT_EQ(core_->sizes().checkpoint_calls, 0u);
}

TEST_F(SuspendTest, WhenMovesAreDoneItsCheckpointBegins) {
  StartJob();
  Ask(Moving({0}, 1));
  Suspend();
  EXPECT_FALSE(Cutting());
  Done(0);
  ASSERT_TRUE(Cutting());
  PromiseBoth(12, 14);
  GivePart(0, 2);
  GivePart(1, 3);
  Complete();
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SUSPENDED);
}

TEST_F(SuspendTest, UsersWhoWaitDoNotKeepItFromBeginning) {
  StartJob();
  for (uint64_t id = 100; id < 100 + Checkpointer::kCallersMax; ++id)
    AskCheckpoint(id);
  Suspend();
  ExpectRuns();
  PromiseBoth(12, 14);
  GiveAllParts();
  Complete();
  ExpectRuns();
  ASSERT_TRUE(Cutting()) << "its own";
  PromiseBoth(20, 22);
  GiveAllParts(2);
  Complete(2);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SUSPENDED);
}

TEST_F(SuspendTest, AJobThatHasEndedStaysAsItIs) {
  StartJob();
  Ask([](wire::Call& call) { call.mutable_stop()->set_reason("enough"); });
  EXPECT_EQ(ReplyIn(Suspend()).code(), wire::OK);
  ExpectEnd(wire::JobEnd::STOPPED, "enough");
}

// ---- Going on from one ------------------------------------------------------

class ResumeTest : public CheckpointTest {
 protected:
  ResumeTest() {
    manifest_.set_clock(40);
    manifest_.set_workers(2);
    manifest_.set_steps_total(100);
    manifest_.set_steps_per_epoch(100);
    manifest_.set_seconds(33);
    checkpoint::Table& table = *manifest_.add_table();
    table.set_name("weight");
    table.add_shape(10);
    table.mutable_optimizer()->mutable_momentum()->set_learning_rate(0.5);
    manifest_.add_part()->set_bytes(1234);
  }
};

TEST_F(ResumeTest, AStopWithoutACheckpointNamesTheOneItWentOnFrom) {
  GoOn();
  JoinAllFromCheckpoint();
  Ask([](wire::Call& call) {
    call.mutable_suspend()->set_reason("time is over");
  });
  PromiseBoth(50, 50);
  Call(Server(0), servers_[0], ++call_id_, [](wire::Call& call) {
    call.mutable_cut_part()->set_cut(1);
    call.mutable_cut_part()->set_error("no space left on device");
  });
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::STOPPED);
  EXPECT_THAT(core_->reason(), HasSubstr("the last one is of step 40, in "
                                         "runs/a/checkpoints/step-00000040"));
}

TEST_F(ResumeTest, FoundersAreToldWhereTheirProgramsGoOn) {
  GoOn();
  for (int i = 0; i < options_.servers; ++i)
    EXPECT_EQ(Join(Server(i), JoinFrom(Server(i))).checkpoint(), "");
  EXPECT_EQ(Join(Worker(0)).checkpoint(), options_.resume_folder);
  const wire::JoinReply last = Join(Worker(1));
  EXPECT_EQ(last.checkpoint(), options_.resume_folder);
  EXPECT_EQ(last.checkpoint_sha256(), "sha");
  ASSERT_EQ(core_->state(), wire::RUNNING);
  // It has lost the answer.
  EXPECT_EQ(Join(Worker(1)).checkpoint(), options_.resume_folder);
  Call(Worker(1), last.incarnation(), ++call_id_, [](wire::Call& call) {
    call.mutable_leave()->set_failure("it has no memory");
  });
  wire::JoinRequest later = JoinOf(Worker(1, 999));
  later.set_token(999);
  EXPECT_EQ(Join(Worker(1, 999), later).checkpoint(), "");
}

TEST_F(ResumeTest, WorkersBeginWhereTheyWere) {
  GoOn();
  JoinAllFromCheckpoint();
  ASSERT_EQ(core_->state(), wire::RUNNING);
  const wire::View view = ViewNow();
  EXPECT_THAT(Beginnings(), ElementsAre(40, 40));
  EXPECT_EQ(view.table(0).initializer().kind(),
            wire::Initializer::OF_CHECKPOINT);
  EXPECT_EQ(view.phase_size(), 1);
  EXPECT_EQ(view.worker(0).founder(), true);
  EXPECT_EQ(SummaryNow().resumed_from().clock(), 40);
  EXPECT_EQ(SummaryNow().resumed_from().bytes(), 1234);
  EXPECT_EQ(SummaryNow().steps(), 40) << "until it is heard of them";
}

TEST_F(ResumeTest, EachBeginsAtItsOwnClockWhereTheyMayDiffer) {
  manifest_.set_clock(40);
  for (const int rank : {0, 1}) {
    checkpoint::WorkerClock& worker = *manifest_.add_worker();
    worker.set_rank(rank);
    worker.set_clock(40 + 3 * rank);
  }
  GoOn();
  JoinAllFromCheckpoint();
  EXPECT_THAT(Beginnings(), ElementsAre(40, 43));
  EXPECT_EQ(ViewNow().begins_at(), 40);

  // By all-reduce there is one clock.
  options_.config.mutable_sync()->mutable_allreduce();
  servers_.clear();
  workers_.clear();
  GoOn();
  JoinAllFromCheckpoint();
  EXPECT_THAT(Beginnings(), ElementsAre(40, 40));
}

TEST_F(ResumeTest, TheyMeetWhereAPhaseBeginsBetweenThem) {
  for (const int rank : {0, 1}) {
    checkpoint::WorkerClock& worker = *manifest_.add_worker();
    worker.set_rank(rank);
    worker.set_clock(48 + 3 * rank);
  }
  manifest_.set_clock(48);
  config::Phase& first = *options_.config.mutable_sync()->add_phase();
  first.mutable_ssp()->set_staleness(3);
  first.set_until_epoch(0.5);
  options_.config.mutable_sync()->add_phase()->mutable_bsp();
  GoOn();
  JoinAllFromCheckpoint();
  EXPECT_THAT(Beginnings(), ElementsAre(48, 48));
  EXPECT_EQ(ViewNow().entered(), 0);
}

TEST_F(ResumeTest, OtherWorkersBeginAtThePartOfTheDataThatWasDone) {
  manifest_.set_workers(4);
  manifest_.set_steps_per_epoch(50);  // Four workers need half of the steps.
  manifest_.set_steps_total(50);
  manifest_.set_clock(20);
  manifest_.add_worker()->set_clock(23);
  GoOn();
  JoinAllFromCheckpoint();
  EXPECT_THAT(Beginnings(), ElementsAre(40, 40));
}

TEST_F(ResumeTest, BeginsInThePhaseOfItsClock) {
  config::Phase& first = *options_.config.mutable_sync()->add_phase();
  first.mutable_bsp();
  first.set_until_epoch(0.2);
  options_.config.mutable_sync()->add_phase()->mutable_ssp()->set_staleness(3);
  GoOn();
  JoinAllFromCheckpoint();
  EXPECT_EQ(ViewNow().phase_size(), 2);
  EXPECT_EQ(ViewNow().entered(), 1);
  EXPECT_EQ(ReplyIn(Ask(Moving({0}, 1))).code(), wire::OK);
}

TEST_F(ResumeTest, AJobThatIsDoneHasNothingLeft) {
  manifest_.set_clock(100);
  manifest_.set_steps_total(150);
  steps_total_ = 100;
  GoOn();
  for (const PeerId& peer : {Server(0), Server(1)}) Join(peer, JoinFrom(peer));
  Join(Worker(0));
  const Effects effects = SendJoin(Worker(1), JoinOf(Worker(1)));
  EXPECT_THAT(Beginnings(), ElementsAre(100, 100));
  EXPECT_THAT(effects.log, testing::Contains(HasSubstr(
                               "at step 100 of 100: nothing is left to do")));
  EXPECT_EQ(ViewNow().arrived(), 100) << "nobody is to wait for all-reduce";
}

TEST_F(ResumeTest, AJobThatEndsBeforeItIsRefused) {
  manifest_.set_clock(120);
  manifest_.set_steps_total(150);
  steps_total_ = 100;
  GoOn();
  for (const PeerId& peer : {Server(0), Server(1)}) Join(peer, JoinFrom(peer));
  Join(Worker(0));
  SendJoin(Worker(1), JoinOf(Worker(1)));
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              AllOf(HasSubstr("it is at step 120, and the job has 100 steps"),
                    HasSubstr("train.epochs")));
}

TEST_F(ResumeTest, ValuesOfAWorkerNeedNoStepToGetToTheServers) {
  GoOn();
  for (const PeerId& peer : {Server(0), Server(1)}) Join(peer, JoinFrom(peer));
  for (const int rank : {0, 1}) {
    wire::JoinRequest join = JoinOf(Worker(rank));
    join.mutable_table(0)->mutable_initializer()->set_kind(
        wire::Initializer::OF_WORKER);
    EXPECT_EQ(Join(Worker(rank), join).code(), wire::OK);
  }
  ASSERT_EQ(ViewNow().phase_size(), 1);
  EXPECT_EQ(ModeText(ViewNow().phase(0).mode()), "bsp");
}

TEST_F(ResumeTest, ServersNeedTheSameCheckpoint) {
  GoOn();
  EXPECT_THAT(Join(Server(1), JoinFrom(Server(1), "other")).error(),
              HasSubstr("server 1 has read another checkpoint than server 0"));
  EXPECT_THAT(Join(Server(1), JoinFrom(Server(1), "")).error(),
              HasSubstr("server 1 begins anew"));
  options_.resume_sha256.clear();
  options_.resume = nullptr;
  Restart();
  EXPECT_THAT(Join(Server(1), JoinFrom(Server(1), "sha")).error(),
              HasSubstr("server 0 begins anew"));
  EXPECT_THAT(
      Join(Server(1), JoinFrom(Server(1), std::string(10000, 'x'))).error(),
      HasSubstr("bytes of checkpoint's hash"));
}

TEST_F(ResumeTest, AServerThatIsAddedLaterNeedsNone) {
  GoOn();
  JoinAllFromCheckpoint();
  EXPECT_EQ(Join(Server(2)).code(), wire::OK);
}

TEST_F(ResumeTest, AWorkerCannotSayThatItsTablesAreOfACheckpoint) {
  wire::JoinRequest join = JoinOf(Worker(0));
  join.mutable_table(0)->mutable_initializer()->set_kind(
      wire::Initializer::OF_CHECKPOINT);
  EXPECT_THAT(Join(Worker(0), join).error(),
              HasSubstr("only the coordinator says so"));
}

TEST_F(ResumeTest, OtherTablesAreRefusedByName) {
  const auto reason = [&](const std::function<void()>& change) {
    const checkpoint::Manifest before = manifest_;
    change();
    servers_.clear();
    workers_.clear();
    GoOn();
    JoinAllFromCheckpoint();
    manifest_ = before;
    EXPECT_EQ(core_->state(), wire::FAILED);
    EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::NOT_FORMED);
    return core_->reason();
  };
  EXPECT_THAT(reason([&] { manifest_.mutable_table(0)->set_name("other"); }),
              HasSubstr("the job has table weight[10], which the checkpoint "
                        "has not"));
  EXPECT_THAT(reason([&] { manifest_.mutable_table(0)->set_shape(0, 11); }),
              HasSubstr("has table weight[10] where the checkpoint has "
                        "weight[11]"));
  EXPECT_THAT(reason([&] {
                manifest_.mutable_table(0)->mutable_optimizer()->mutable_adam();
              }),
              AllOf(HasSubstr("has the optimizer momentum"),
                    HasSubstr("take optimizer { adam")));
  EXPECT_THAT(reason([&] { manifest_.add_table()->set_name("bias"); }),
              HasSubstr("the checkpoint has table bias[]"));
}

TEST_F(ResumeTest, ACheckpointOfValuesAloneFitsAnyOptimizer) {
  manifest_.mutable_table(0)->clear_optimizer();
  GoOn();
  JoinAllFromCheckpoint();
  EXPECT_EQ(core_->state(), wire::RUNNING);
}

TEST_F(ResumeTest, ItsTimesCountOn) {
  GoOn();
  JoinAllFromCheckpoint();
  now_ += absl::Seconds(2);
  AskCheckpoint(1);
  PromiseBoth(44, 44);
  const Effects all = GiveAllParts();
  ASSERT_TRUE(all.complete.has_value());
  EXPECT_DOUBLE_EQ(all.complete->manifest.seconds(), 35);
  EXPECT_DOUBLE_EQ(core_->Status(now_).run_seconds(), 2) << "of this run";
}

TEST_F(ResumeTest, TheConfigsStepsCountFromItsClock) {
  manifest_.set_clock(47);
  options_.config.mutable_checkpoint()->set_every_steps(20);
  GoOn();
  JoinAllFromCheckpoint();
  TellClocks(50, 50);
  EXPECT_FALSE(Cutting());
  TellClocks(60, 60);
  EXPECT_TRUE(Cutting());
}

}  // namespace slackline::coordinator_core_checkpoint_test
