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
    absl::StatusOr<std::unique_ptr<CoordinatorThread>> thread =
        CoordinatorThread::Start(transport_, options_);
    ASSERT_TRUE(thread.ok()) << thread.status();
    thread_ = *std::move(thread);
    const Incarnation server = Join(wire::JoinRequest::SERVER);
    const Incarnation worker = Join(wire::JoinRequest::WORKER);
    ASSERT_GT(server, 0);
    Message leave;
    wire::Call& call = *leave.header.mutable_call();
    call.set_call_id(1);
    call.set_incarnation(worker);
    call.mutable_leave()->mutable_result()->set_steps(7);
    ASSERT_TRUE(worker_->Send(leave).ok());
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
