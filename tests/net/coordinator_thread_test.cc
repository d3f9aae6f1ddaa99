// Goal: a run's files are whole or say what they lack, and a summary that
// cannot be written is an error and no end in peace. Method: the coordinator's
// thread with a job of one server and one worker that do no more than join and
// leave; a folder in the summary's place, and a limit on the size of files.
#include "server/coordinator/coordinator_thread.h"

#include <signal.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>

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
  Call(*worker_, 0, [](wire::Call& call) { call.mutable_checkpoint(); });
  const Message wanted = Await(*worker_, [](const Message& message) {
    return message.header.view_change().change().has_cutting();
  });
  Call(*worker_, worker_life_, [&](wire::Call& call) {
    wire::StepLimit& limit = *call.mutable_step_limit();
    limit.set_change(wanted.header.view_change().change().id());
    limit.set_clock(4);
  });
  Await(*server_, [](const Message& message) {
    return message.header.view_change().cut().clock() == 4;
  });
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

TEST_F(CoordinatorThreadTest, AnEndGivesUpWhatIsUnderWayAndRemovesIt) {
  const std::string root = folder_.path() + "/checkpoints";
  options_.core.checkpoint_root = root;
  options_.core.run = 9;
  StartJob();
  Call(*worker_, 0, [](wire::Call& call) { call.mutable_checkpoint(); });
  const Message wanted = Await(*worker_, [](const Message& message) {
    return message.header.view_change().change().has_cutting();
  });
  Call(*worker_, worker_life_, [&](wire::Call& call) {
    wire::StepLimit& limit = *call.mutable_step_limit();
    limit.set_change(wanted.header.view_change().change().id());
    limit.set_clock(4);
  });
  Await(*server_, [](const Message& message) {
    return message.header.view_change().cut().clock() == 4;
  });
  std::filesystem::create_directories(PartialFolder(root, 9, 1));
  FinishJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(root, 9, 1)));
  EXPECT_THAT(ReadAll(summary_), HasSubstr("\"checkpoints_failed\": 1"));
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
    const auto files = RunFiles::Create(folder.path());
    ASSERT_TRUE(files.ok()) << files.status();
    ASSERT_TRUE((*files)->AppendMetric(record).ok());
  }
  const std::string line = ReadAll(metrics);
  // It died in the middle of a line, of more than a block.
  std::ofstream(metrics, std::ios::app) << std::string(10000, 'x');
  {
    const auto files =
        RunFiles::Create(folder.path(), RunFiles::Earlier::kKept);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(ReadAll(metrics), line);
    ASSERT_TRUE((*files)->AppendMetric(record).ok());
    EXPECT_EQ(ReadAll(metrics), line + line);
  }
  const auto files = RunFiles::Create(folder.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(ReadAll(metrics), "");
}

TEST(RunFilesTest, RecordsOfStepsThatAreDoneAnewAreDropped) {
  const TempFolder folder;
  checkpoint::Manifest checkpoint;
  checkpoint.set_clock(20);
  checkpoint::WorkerClock& worker = *checkpoint.add_worker();
  worker.set_rank(1);
  worker.set_clock(24);
  ASSERT_TRUE(DropRecordsAfter(folder.path(), checkpoint).ok()) << "no files";
  const std::string metrics = folder.path() + "/metrics.jsonl";
  const std::string kept =
      "{\"kind\":\"train\",\"rank\":0,\"step\":20}\n"
      "{\"kind\":\"train\",\"rank\":1,\"step\":24}\n"
      "{\"kind\":\"eval\",\"rank\":1,\"step\":20}\n"
      "not of ours\n{\"step\":\"x\"}\n";
  const std::string modes = folder.path() + "/modes.jsonl";
  std::ofstream(metrics) << kept
                         << "{\"kind\":\"train\",\"rank\":0,\"step\":21}\n"
                            "{\"kind\":\"train\",\"rank\":1,\"step\":25}\n"
                            "{\"kind\":\"eval\",\"rank\":1,\"step\":22}\n"
                            "{\"kind\":\"eval\",\"ra";
  std::ofstream(modes) << "{\"from_clock\":5}\n{\"from_clock\":21}\n";
  ASSERT_TRUE(DropRecordsAfter(folder.path(), checkpoint).ok());
  EXPECT_EQ(ReadAll(metrics), kept);
  EXPECT_EQ(ReadAll(modes), "{\"from_clock\":5}\n");
}

TEST(RunFilesTest, AFullDiskLosesWholeRecordsAndIsSaidOnce) {
  const TempFolder folder;
  const auto files = RunFiles::Create(folder.path());
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
