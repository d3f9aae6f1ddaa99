// Goal: a run's files are whole or say what they lack, and a summary that
// cannot be written is an error and no end in peace. Method: the coordinator's
// thread with a job of one server and one worker that do no more than join and
// leave; a folder in the summary's place, and a limit on the size of files.
#include "server/coordinator/coordinator_thread.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>

#include "common/checkpoint/best_checkpoint.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/net/poller.h"
#include "common/net/zmq/zmq_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/temp_folder.h"

namespace slackline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kEndpoint[] = "inproc://coordinator";
constexpr absl::Duration kWaitMax = absl::Seconds(60);

// Calls back for each line of the log.
class LogTap final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogTap(std::function<void(const std::string&)> on_line)
      : on_line_(std::move(on_line)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    on_line_(std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}
  const std::function<void(const std::string&)> on_line_;
};

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class CoordinatorThreadTest : public ::testing::Test {
 protected:
  CoordinatorThreadTest() {
    options_.core.job = "job";
    options_.core.config_hash = "hash";
    options_.core.lease = absl::Seconds(1);
    options_.endpoint = kEndpoint;
    options_.folder = folder_.path();
    summary_ = folder_.path() + "/summary.json";
  }

  // From its start to the end of the job.
  void RunJob() {
    StartJob();
    FinishJob();
  }
  void StartJob() {
    absl::StatusOr<std::unique_ptr<CoordinatorThread>> thread =
        CoordinatorThread::Start(transport_, options_);
    ASSERT_TRUE(thread.ok()) << thread.status();
    thread_ = *std::move(thread);
    server_life_ = Join(wire::JoinRequest::SERVER);
    worker_life_ = Join(wire::JoinRequest::WORKER);
    ASSERT_GT(server_life_, 0);
  }
  void Call(Channel& from, Incarnation incarnation,
            const std::function<void(wire::Call&)>& fill) {
    Message message;
    wire::Call& call = *message.header.mutable_call();
    call.set_call_id(++call_id_);
    call.set_incarnation(incarnation);
    fill(call);
    ASSERT_TRUE(from.Send(message).ok());
  }
  // The worker asks for a checkpoint, and promises not to pass `clock`; returns
  // once the server knows the cut there.
  void OrderCut(Clock clock) {
    Call(*worker_, 0, [](wire::Call& call) { call.mutable_checkpoint(); });
    PromiseCut(clock);
  }
  // The same once somebody else has asked.
  void PromiseCut(Clock clock) {
    const Message wanted = Await(*worker_, [](const Message& message) {
      return message.header.view_change().change().has_cutting();
    });
    Call(*worker_, worker_life_, [&](wire::Call& call) {
      wire::StepLimit& limit = *call.mutable_step_limit();
      limit.set_change(wanted.header.view_change().change().id());
      limit.set_clock(clock);
    });
    Await(*server_, [clock](const Message& message) {
      return message.header.view_change().cut().clock() == clock;
    });
  }
  // The server has written all of the first cut.
  void GivePart(const std::string& root) {
    const std::vector<float> values(10, 1.5f);
    const ShardState shard{
        .table = "weight",
        .begin = 0,
        .end = 10,
        .version = 4,
        .values = Payload::Copy(values.data(), values.size() * sizeof(float))};
    const absl::StatusOr<checkpoint::Part> part =
        WritePart(PartialFolder(root, 9, 1), "server-0-thread-0.safetensors",
                  absl::MakeConstSpan(&shard, 1));
    ASSERT_TRUE(part.ok()) << part.status();
    Call(*server_, server_life_, [&](wire::Call& call) {
      call.mutable_cut_part()->set_cut(1);
      *call.mutable_cut_part()->mutable_part() = *part;
    });
  }
  void FinishJob() {
    Call(*worker_, worker_life_, [](wire::Call& call) {
      call.mutable_leave()->mutable_result()->set_steps(7);
    });
    Await(*worker_, [](const Message& message) {
      return message.header.view().state() == wire::FINISHED ||
             message.header.view_change().state() == wire::FINISHED;
    });
  }

  Incarnation Join(wire::JoinRequest::Role role) {
    const bool is_worker = role == wire::JoinRequest::WORKER;
    const PeerId self{
        .kind = is_worker ? PeerId::Kind::kWorker : PeerId::Kind::kServer,
        .index = 0,
        .instance = 5};
    absl::StatusOr<std::unique_ptr<Channel>> channel =
        transport_.Connect(self, kEndpoint, {});
    EXPECT_TRUE(channel.ok()) << channel.status();
    (is_worker ? worker_ : server_) = *std::move(channel);
    Channel& mine = is_worker ? *worker_ : *server_;
    Message message;
    wire::JoinRequest& join = *message.header.mutable_join_request();
    join.set_role(role);
    join.set_token(is_worker ? 2 : 1);
    join.set_job("job");
    join.set_config_hash("hash");
    if (is_worker) {
      wire::Table& table = *join.add_table();
      table.set_name("weight");
      table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
      table.add_shape(10);
      join.set_steps_total(7);
      join.set_steps_per_epoch(7);
    } else {
      join.add_thread()->set_tcp("tcp://somewhere:1");
    }
    EXPECT_TRUE(mine.Send(message).ok());
    return Await(mine,
                 [](const Message& reply) {
                   return reply.header.has_join_reply();
                 })
        .header.join_reply()
        .incarnation();
  }

  static Message Await(Channel& channel,
                       const std::function<bool(const Message&)>& wanted) {
    Poller poller;
    poller.Add(channel);
    Message found;
    for (const absl::Time end = absl::Now() + kWaitMax; absl::Now() < end;) {
      EXPECT_TRUE(poller.Wait(end - absl::Now()).ok());
      absl::StatusOr<std::optional<Message>> message = channel.Receive();
      if (!message.ok() || !message->has_value()) continue;
      if (!wanted(**message)) continue;
      found = **message;
      poller.Remove(channel);
      return found;
    }
    ADD_FAILURE() << "no such message";
    poller.Remove(channel);
    return found;
  }

  TempFolder folder_;
  std::string summary_;
  ZmqTransport transport_;
  CoordinatorThread::Options options_;
  std::unique_ptr<CoordinatorThread> thread_;
  std::unique_ptr<Channel> server_;
  std::unique_ptr<Channel> worker_;
  Incarnation server_life_ = 0;
  Incarnation worker_life_ = 0;
  uint64_t call_id_ = 0;
};

TEST_F(CoordinatorThreadTest, AFinishedJobHasASummary) {
  RunJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  EXPECT_THAT(ReadAll(summary_), HasSubstr("\"steps\": 7"));
}

TEST_F(CoordinatorThreadTest, AJobThatFailsHasOneToo) {
  absl::StatusOr<std::unique_ptr<CoordinatorThread>> thread =
      CoordinatorThread::Start(transport_, options_);
  ASSERT_TRUE(thread.ok()) << thread.status();
  EXPECT_EQ((*thread)->Finish(), absl::OkStatus());
  EXPECT_THAT(ReadAll(summary_),
              AllOf(HasSubstr("\"state\": \"FAILED\""),
                    HasSubstr("\"cause\": \"STOPPED\""),
                    HasSubstr("\"reason\": \"server 0, which hosts"),
                    Not(HasSubstr("test_accuracy"))));
}

TEST_F(CoordinatorThreadTest, ACheckpointGetsItsFolder) {
  const std::string root = folder_.path() + "/checkpoints";
  options_.core.checkpoint_root = root;
  options_.core.run = 9;
  StartJob();
  OrderCut(4);
  GivePart(root);
  const Message answer = Await(*worker_, [](const Message& message) {
    return !message.header.call_reply().text().empty();
  });
  const std::string folder = root + "/step-00000004";
  EXPECT_THAT(answer.header.call_reply().text(),
              HasSubstr("step 4 is in " + folder));
  const absl::StatusOr<checkpoint::Manifest> manifest = ReadManifest(folder);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->clock(), 4);
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(root, 9, 1)));
  FinishJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  EXPECT_THAT(ReadAll(summary_), AllOf(HasSubstr("\"checkpoints\": 1"),
                                       HasSubstr("\"last_checkpoint\"")));
}

// A pipe that nobody reads from stands for a disk that hangs.
class HangingDiskTest : public CoordinatorThreadTest {
 protected:
  // A job that has ended while its checkpoint is completed.
  void RunUntilItHangs() {
    signal(SIGPIPE, SIG_IGN);
    const std::string root = folder_.path() + "/checkpoints";
    options_.core.checkpoint_root = root;
    options_.core.run = 9;
    const std::string partial = PartialFolder(root, 9, 1);
    std::filesystem::create_directories(partial);
    pipe_ = partial + "/manifest.json.partial-" + std::to_string(getpid());
    ASSERT_EQ(mkfifo(pipe_.c_str(), 0600), 0);
    StartJob();
    OrderCut(4);
    GivePart(root);
    FinishJob();
  }
  void ExpectSummaryWithoutIt() {
    EXPECT_THAT(
        ReadAll(summary_),
        AllOf(HasSubstr("\"steps\": 7"), HasSubstr("\"checkpoints\": 0"),
              HasSubstr("\"checkpoints_failed\": 1")));
    // Lets the thread go that was left behind.
    const int reader = open(pipe_.c_str(), O_RDONLY | O_NONBLOCK);
    EXPECT_GE(reader, 0);
    close(reader);
  }
  std::string pipe_;
};

TEST_F(HangingDiskTest, TheSummaryIsWrittenAfterTheTimeForIt) {
  options_.save_timeout = absl::Milliseconds(1);
  RunUntilItHangs();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  ExpectSummaryWithoutIt();
}

TEST_F(HangingDiskTest, WhoInterruptsItNeedNotWait) {
  options_.save_timeout = absl::Hours(24);
  std::string waits;
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<LogTap>([&](const std::string& line) {
        if (line.find("is waited for") == std::string::npos) return;
        waits = line;
        thread_->StopSaving();
      })));
  RunUntilItHangs();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  spdlog::set_default_logger(before);
  EXPECT_THAT(waits, AllOf(HasSubstr("completing the checkpoint of step 4 in"),
                           HasSubstr("save_timeout_ms")));
  ExpectSummaryWithoutIt();
}

TEST_F(CoordinatorThreadTest, TheBestCheckpointIsWrittenDownAndReported) {
  const std::string root = folder_.path() + "/checkpoints";
  options_.core.checkpoint_root = root;
  options_.core.run = 9;
  options_.core.checkpoint.set_best_by(config::Checkpoint::ACCURACY);
  std::filesystem::create_directories(root);
  std::ofstream(root + "/best.json") << "{";  // Not believed.
  StartJob();
  Message evaluated;
  wire::Heartbeat& heartbeat = *evaluated.header.mutable_heartbeat();
  heartbeat.set_incarnation(worker_life_);
  run::MetricRecord& record = *heartbeat.add_record();
  record.set_kind(run::MetricRecord::EVAL);
  record.set_step(1);
  record.set_accuracy(0.75);
  ASSERT_TRUE(worker_->Send(evaluated).ok());
  PromiseCut(2);
  GivePart(root);
  Await(*server_, [](const Message& message) {
    return message.header.call_reply().call_id() != 0;
  });
  FinishJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  const absl::StatusOr<run::BestCheckpoint> best = ReadBest(root);
  ASSERT_TRUE(best.ok()) << best.status();
  EXPECT_EQ(best->clock(), 2);
  EXPECT_EQ(best->evaluated_at(), 1);
  EXPECT_THAT(ReadAll(summary_), AllOf(HasSubstr("\"best_checkpoint\""),
                                       HasSubstr("\"value\": 0.75")));
}

TEST_F(CoordinatorThreadTest, AnEndGivesUpWhatIsUnderWayAndRemovesIt) {
  const std::string root = folder_.path() + "/checkpoints";
  options_.core.checkpoint_root = root;
  options_.core.run = 9;
  StartJob();
  OrderCut(4);
  std::filesystem::create_directories(PartialFolder(root, 9, 1));
  FinishJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(root, 9, 1)));
  EXPECT_THAT(ReadAll(summary_), HasSubstr("\"checkpoints_failed\": 1"));
}

// Wherever the checkpoints lie: what counts is whose records the folder has.
TEST_F(CoordinatorThreadTest, TheRecordsOfARunGoOnOnceTheJobRuns) {
  const std::string metrics = folder_.path() + "/metrics.jsonl";
  const std::string first = "{\"kind\":\"train\",\"rank\":0,\"step\":3}\n";
  const std::string anew = "{\"kind\":\"train\",\"rank\":0,\"step\":4}\n";
  ASSERT_TRUE(RunFiles::Create(folder_.path(), {.run = 5}).ok());
  std::ofstream(metrics) << first << anew;
  checkpoint::Manifest manifest;
  manifest.set_run(5);
  manifest.set_workers(1);
  manifest.set_steps_per_epoch(7);
  manifest.set_clock(3);
  checkpoint::Table& table = *manifest.add_table();
  table.set_name("weight");
  table.add_shape(10);
  options_.core.resume =
      std::make_shared<const checkpoint::Manifest>(std::move(manifest));
  options_.core.resume_folder = "/elsewhere/step-00000003";
  options_.core.checkpoint_root = folder_.path() + "/checkpoints";
  options_.core.run = 6;
  {
    // Its address is let go of some time after it has ended.
    CoordinatorThread::Options elsewhere = options_;
    elsewhere.endpoint = "inproc://elsewhere";
    const auto never_runs = CoordinatorThread::Start(transport_, elsewhere);
    ASSERT_TRUE(never_runs.ok()) << never_runs.status();
  }
  EXPECT_EQ(ReadAll(metrics), first + anew);
  options_.core.run = 7;
  StartJob();
  FinishJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  EXPECT_EQ(ReadAll(metrics), first);
  EXPECT_TRUE(HasRecordsOf(folder_.path(), 7));
}

TEST_F(CoordinatorThreadTest, ASummaryThatCannotBeWrittenIsAnError) {
  std::filesystem::create_directory(summary_);
  options_.save_timeout = absl::ZeroDuration();
  RunJob();
  EXPECT_THAT(std::string(thread_->Finish().message()),
              AllOf(HasSubstr("its summary could not be written in 1 try"),
                    HasSubstr(summary_), HasSubstr("Is a directory")));
}

TEST_F(CoordinatorThreadTest, ItIsTriedAgainUntilThereIsRoom) {
  std::filesystem::create_directory(summary_);
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<LogTap>([this](const std::string& line) {
        if (line.find("this is tried again for") != std::string::npos)
          std::filesystem::remove(summary_);
      })));
  RunJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  spdlog::set_default_logger(before);
  EXPECT_THAT(ReadAll(summary_), HasSubstr("\"steps\": 7"));
}

TEST_F(CoordinatorThreadTest, WhoInterruptsItNeedNotWait) {
  std::filesystem::create_directory(summary_);
  options_.save_timeout = absl::Hours(24);
  RunJob();
  std::future<absl::Status> finished =
      std::async(std::launch::async, [this] { return thread_->Finish(); });
  thread_->StopSaving();
  EXPECT_THAT(std::string(finished.get().message()), HasSubstr(summary_));
}

// Files of this process may have no more than so many bytes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit before_{};
};

TEST(RunFilesTest, ARunThatGoesOnKeepsWholeLinesOfTheOneBefore) {
  const TempFolder folder;
  run::MetricRecord record;
  record.set_kind(run::MetricRecord::TRAIN);
  const std::string metrics = folder.path() + "/metrics.jsonl";
  {
    const auto files = RunFiles::Create(folder.path(), {.run = 5});
    ASSERT_TRUE(files.ok()) << files.status();
    ASSERT_TRUE((*files)->AppendMetric(record).ok());
  }
  const std::string line = ReadAll(metrics);
  // It died in the middle of a line, of more than a block.
  std::ofstream(metrics, std::ios::app) << std::string(10000, 'x');
  {
    const auto files =
        RunFiles::Create(folder.path(), {.run = 6, .goes_on_from = 5});
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(ReadAll(metrics), line);
    ASSERT_TRUE((*files)->AppendMetric(record).ok());
    EXPECT_EQ(ReadAll(metrics), line + line);
  }
  const auto files = RunFiles::Create(folder.path(), {});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(ReadAll(metrics), "");
}

TEST(RunFilesTest, RecordsOfStepsThatAreDoneAnewAreDropped) {
  const TempFolder folder;
  const std::string metrics = folder.path() + "/metrics.jsonl";
  const std::string modes = folder.path() + "/modes.jsonl";
  ASSERT_TRUE(RunFiles::Create(folder.path(), {.run = 5}).ok());
  const std::string kept =
      "{\"kind\":\"train\",\"rank\":0,\"step\":20}\n"
      "{\"kind\":\"train\",\"rank\":1,\"step\":24}\n"
      "{\"kind\":\"eval\",\"rank\":1,\"step\":20}\n"
      "not of ours\n{\"step\":\"x\"}\n";
  const std::string lost =
      "{\"kind\":\"train\",\"rank\":0,\"step\":21}\n"
      "{\"kind\":\"train\",\"rank\":1,\"step\":25}\n"
      "{\"kind\":\"eval\",\"rank\":1,\"step\":22}\n";
  std::ofstream(metrics) << kept << lost << "{\"kind\":\"eval\",\"ra";
  std::ofstream(modes) << "{\"from_clock\":5}\n{\"from_clock\":21}\n";
  const auto files =
      RunFiles::Create(folder.path(), {.run = 6, .goes_on_from = 5});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(ReadAll(metrics), kept + lost) << "until the job runs";
  ASSERT_TRUE((*files)->DropAfter({.all = 20, .own = {{1, 24}}}).ok());
  EXPECT_EQ(ReadAll(metrics), kept);
  EXPECT_EQ(ReadAll(modes), "{\"from_clock\":5}\n");
  run::MetricRecord record;
  record.set_step(21);
  ASSERT_TRUE((*files)->AppendMetric(record).ok());
  EXPECT_THAT(ReadAll(metrics),
              AllOf(StartsWith(kept), HasSubstr("\"step\":21")));
}

TEST(RunFilesTest, AFolderKnowsItsRuns) {
  const TempFolder folder;
  EXPECT_FALSE(HasRecordsOf(folder.path(), 5)) << "no file";
  ASSERT_TRUE(RunFiles::Create(folder.path(), {.run = 5}).ok());
  ASSERT_TRUE(
      RunFiles::Create(folder.path(), {.run = 6, .goes_on_from = 5}).ok());
  EXPECT_TRUE(HasRecordsOf(folder.path(), 5));
  EXPECT_TRUE(HasRecordsOf(folder.path(), 6));
  // One that goes on from a third run begins the records anew.
  ASSERT_TRUE(
      RunFiles::Create(folder.path(), {.run = 7, .goes_on_from = 4}).ok());
  EXPECT_FALSE(HasRecordsOf(folder.path(), 6));
  EXPECT_TRUE(HasRecordsOf(folder.path(), 7));
  ASSERT_TRUE(RunFiles::Create(folder.path(), {}).ok());
  EXPECT_FALSE(HasRecordsOf(folder.path(), 7));
  EXPECT_FALSE(HasRecordsOf(folder.path(), 0)) << "no run";
}

TEST(RunFilesTest, AFullDiskLosesWholeRecordsAndIsSaidOnce) {
  const TempFolder folder;
  const auto files = RunFiles::Create(folder.path(), {});
  ASSERT_TRUE(files.ok()) << files.status();
  run::MetricRecord record;
  record.set_kind(run::MetricRecord::TRAIN);
  ASSERT_TRUE((*files)->AppendMetric(record).ok());
  const std::string metrics = folder.path() + "/metrics.jsonl";
  const std::string first = ReadAll(metrics);
  {
    const FileSizeLimit limit(first.size() + 10);
    const absl::Status failed = (*files)->AppendMetric(record);
    EXPECT_THAT(std::string(failed.message()),
                AllOf(HasSubstr("write " + metrics), HasSubstr("too large")));
    EXPECT_EQ((*files)->AppendMetric(record), absl::OkStatus()) << "said once";
    EXPECT_EQ(ReadAll(metrics), first) << "no part of a line";
  }
  EXPECT_TRUE((*files)->AppendMetric(record).ok()) << "there is room again";
  EXPECT_EQ(ReadAll(metrics), first + first);
  EXPECT_THAT((*files)->WhatIsMissing(),
              AllOf(HasSubstr("metrics.jsonl lacks 2 records: write"),
                    HasSubstr("too large")));
}

}  // namespace
}  // namespace slackline
