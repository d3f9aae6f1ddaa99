// Goal: a job whose delays are given begins only if it can follow them, keeps
// its mode, its workers and the places of its shards, and ends with a sentence
// when it loses a worker that the delays count on. Method: a job of a few
// members, played by hand on virtual time.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"
#include "tests/unit/coordinator_core_fixture.h"

namespace slackline::coordinator_core_delays_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CoordinatorDelaysTest : public PlacementTest {
 protected:
  void Give(const std::string& given) {
    options_.config.mutable_sync()->mutable_delays()->set_given(given);
    const absl::StatusOr<DelaySource> source = DelaySource::Load(given);
    ASSERT_TRUE(source.ok()) << source.status();
    Give(*source);
  }
  void Give(const DelaySource& source) {
    options_.delays = std::make_shared<const DelaySource>(source);
    Restart();
  }
  // Of these workers and steps, with one shard.
  static DelaySource RecordingOf(int workers, Clock steps) {
    DelayTrace trace;
    trace.workers = workers;
    trace.shards.resize(1);
    for (Clock clock = 0; clock < steps; ++clock) {
      const auto version = static_cast<int64_t>(trace.shards[0].updates.size());
      for (int32_t rank = 0; rank < workers; ++rank) {
        trace.shards[0].updates.push_back(
            {.clock = clock, .ranks = {rank}, .workers = workers});
        trace.shards[0].reads.push_back(
            {.rank = rank, .clock = clock, .version = version});
      }
    }
    return DelaySource::OfTrace(std::move(trace));
  }
  void JoinAll() {
    for (const PeerId& peer : {Server(0), Server(1), Worker(0), Worker(1)})
      Join(peer);
  }
};

TEST_F(CoordinatorDelaysTest, BeginsAndSaysWhatIsKept) {
  Give("constant:3");
  for (const PeerId& peer : {Server(0), Server(1), Worker(0)}) Join(peer);
  const CoordinatorCore::Effects effects =
      SendJoin(Worker(1), JoinOf(Worker(1)));
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(core_->view().phase(0).mode().delays().given(), "constant:3");
  EXPECT_THAT(effects.log,
              Contains(HasSubstr("keep up to 4 earlier versions")));
}

TEST_F(CoordinatorDelaysTest, ElasticSamplingHasNoStepsThatDelaysCouldName) {
  Give("constant:3");
  for (const PeerId& peer : {Server(0), Server(1)}) Join(peer);
  for (const PeerId& peer : {Worker(0), Worker(1)}) {
    wire::JoinRequest join = JoinOf(peer);
    join.mutable_elastic()->set_examples(10);
    join.mutable_elastic()->set_batch_size(2);
    join.mutable_elastic()->set_total(20);
    Join(peer, join);
  }
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(), HasSubstr("elastic sampling"));
}

TEST_F(CoordinatorDelaysTest, DelaysThatDoNotFitEndTheJobBeforeItRuns) {
  options_.shard_elements = 10;
  options_.config.mutable_sync()->mutable_delays()->set_given("a recording");
  const struct {
    DelaySource source;
    const char* why;
  } cases[] = {
      {RecordingOf(3, 7), "are those of 3 workers, the job has 2"},
      {RecordingOf(2, 8), "the job has 7 steps"},
      {RecordingOf(2, 6), "has no gradient of rank 0 and clock 6"},
  };
  for (const auto& c : cases) {
    Give(c.source);
    JoinAll();
    EXPECT_EQ(core_->state(), wire::FAILED);
    EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::NOT_FORMED);
    EXPECT_THAT(core_->reason(),
                AllOf(HasSubstr("cannot follow the delays"), HasSubstr(c.why)));
  }
  options_.shard_elements = 2;
  Give(RecordingOf(2, 7));
  JoinAll();
  EXPECT_THAT(core_->reason(),
              HasSubstr("recorded with 1 shards, and the job's model has 5"));
}

TEST_F(CoordinatorDelaysTest, AServerWithAnotherRecordingIsRefused) {
  Give("uniform:2");
  wire::JoinRequest join = JoinOf(Server(1));
  join.set_delays_sha256("of another one");
  const wire::JoinReply reply = Join(Server(1), join);
  EXPECT_EQ(reply.code(), wire::REJECTED);
  EXPECT_THAT(reply.error(),
              HasSubstr("has read other recorded delays than server 0"));
}

TEST_F(CoordinatorDelaysTest, TheModeStaysAndShardsMayMove) {
  Give("uniform:2");
  StartJob();
  const wire::CallReply mode = ReplyIn(Ask([](wire::Call& call) {
    *call.mutable_set_mode()->mutable_mode() = ModeOf("asp");
  }));
  EXPECT_EQ(mode.code(), wire::REJECTED);
  EXPECT_THAT(mode.error(), HasSubstr("delays are given for a whole job"));
  const wire::CallReply move = ReplyIn(Ask(Moving({0}, 1)));
  EXPECT_EQ(move.code(), wire::OK) << move.error();
}

TEST_F(CoordinatorDelaysTest, NoJobChangesToGivenDelays) {
  StartJob();
  const wire::CallReply reply = ReplyIn(Ask([](wire::Call& call) {
    call.mutable_set_mode()->mutable_mode()->mutable_delays()->set_given(
        "uniform:2");
  }));
  EXPECT_EQ(reply.code(), wire::REJECTED);
  EXPECT_THAT(reply.error(), HasSubstr("slackline run --delays"));
}

TEST_F(CoordinatorDelaysTest, ALostWorkerEndsTheJobAndIsNamed) {
  Give("uniform:2");
  StartJob();
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::WORKER_LOST);
  EXPECT_THAT(core_->view().end().worker(), ElementsAre(1));
  EXPECT_THAT(core_->reason(),
              AllOf(HasSubstr("worker 1 (pid"),
                    HasSubstr("the others cannot go on without its")));
}

TEST_F(CoordinatorDelaysTest, WhoIsDoneMayGoAndNobodyComesInItsPlace) {
  Give("uniform:2");
  StartJob();
  Leave(1);
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  const wire::JoinReply reply = Join(Worker(1, 777), JoinOf(Worker(1, 777)));
  EXPECT_EQ(reply.code(), wire::RETRY);
  EXPECT_THAT(reply.error(), HasSubstr("no worker joins it once it runs"));
}

// The program may be at work after its last step.
TEST_F(CoordinatorDelaysTest, WhoHasDoneItsLastStepMayGo) {
  Give("uniform:2");
  StartJob();
  HeartbeatTrained(1);
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(core_->state(), wire::RUNNING) << core_->reason();
}

TEST_F(CoordinatorDelaysTest, WhoseLastGradientsMayBeLostEndsTheJob) {
  Give("uniform:2");
  StartJob();
  Message message;
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat.set_incarnation(workers_[1]);
  run::WorkerStats& stats = *heartbeat.mutable_worker();
  stats.set_clock(steps_total_);
  stats.mutable_progress()->set_clock(steps_total_);
  stats.mutable_progress()->set_activity(
      run::WorkerProgress::WAITING_FOR_SERVER);
  Send(Worker(1), message);
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::WORKER_LOST);
}

}  // namespace slackline::coordinator_core_delays_test
