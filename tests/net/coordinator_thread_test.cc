// Goal: a run's files are whole or say what they lack, and a summary that
// cannot be written is an error and no end in peace. Method: the coordinator's
// thread with a job of one server and one worker that do no more than join and
// leave; a folder in the summary's place, and a limit on the size of files.
#include "server/coordinator/coordinator_thread.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/checkpoint/best_checkpoint.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/net/poller.h"
#include "common/net/zmq/zmq_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/must.h"
#include "tests/support/temp_folder.h"

namespace slackline::coordinator_thread_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
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
    options_.core.config.mutable_limits()->set_lease_ms(1000);
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
        .region = {0, 10},
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
      join.add_thread()->add_endpoint("tcp://somewhere:1");
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

TEST_F(CoordinatorThreadTest, ItIsOverOnceItHasToldTheEnd) {
  StartJob();
  EXPECT_FALSE(thread_->over().has_value());
  FinishJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  ASSERT_TRUE(thread_->over().has_value());
  EXPECT_EQ(thread_->over()->cause(), wire::JobEnd::COMPLETED);
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

// What a store holds, which outlives the coordinators that write it.
class Memory {
 public:
  CoordinatorState state() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return state_;
  }
  void SetBroken(bool broken,
                 absl::StatusCode why = absl::StatusCode::kUnavailable) {
    const std::lock_guard<std::mutex> lock(mutex_);
    broken_ = broken;
    why_ = why;
  }
  void LetOtherLead() { other_leads_ = true; }
  void Clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    state_.clear();
  }
  std::unique_ptr<StateStore> NewStore() {
    class Store : public StateStore {
     public:
      explicit Store(Memory* memory) : memory_(memory) {}
      absl::Status Commit(const std::vector<StateChange>& changes) override {
        return memory_->Commit(changes);
      }
      absl::Status AwaitLead() override {
        return memory_->other_leads_
                   ? absl::FailedPreconditionError("another one leads")
                   : absl::OkStatus();
      }

     private:
      Memory* const memory_;
    };
    return std::make_unique<Store>(this);
  }

 private:
  absl::Status Commit(const std::vector<StateChange>& changes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (broken_) return absl::Status(why_, "no space on the disk");
    for (const StateChange& change : changes) {
      if (change.value.has_value()) {
        state_[change.key] = *change.value;
      } else {
        state_.erase(change.key);
      }
    }
    return absl::OkStatus();
  }

  std::mutex mutex_;
  CoordinatorState state_;
  std::atomic<bool> other_leads_{false};
  bool broken_ = false;
  absl::StatusCode why_ = absl::StatusCode::kUnavailable;
};

class RecoveredCoordinatorTest : public CoordinatorThreadTest {
 protected:
  RecoveredCoordinatorTest() {
    options_.core.run = 9;
    options_.core.config.mutable_limits()->set_lease_ms(3000);
  }
  ~RecoveredCoordinatorTest() override { thread_.reset(); }  // Uses memory_.

  CoordinatorThread::Keeping Keeping(const CoordinatorState& state) {
    return {.store = memory_.NewStore(), .state = state, .forget = [this] {
              memory_.Clear();
              return absl::OkStatus();
            }};
  }
  // The job, with records of the first steps that the worker was told are kept.
  void StartJobWithRecords(int64_t count) {
    absl::StatusOr<std::unique_ptr<CoordinatorThread>> thread =
        CoordinatorThread::Start(transport_, options_, Keeping({}));
    ASSERT_TRUE(thread.ok()) << thread.status();
    thread_ = *std::move(thread);
    server_life_ = Join(wire::JoinRequest::SERVER);
    worker_life_ = Join(wire::JoinRequest::WORKER);
    SendRecords(0, count);
    AwaitAcked(count);
  }
  // Of these steps, as after a heartbeat that nobody has answered.
  void SendRecords(int64_t first, int64_t count) {
    Message message;
    message.header.set_run(9);
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(worker_life_);
    heartbeat.set_first_record(first);
    for (int64_t step = first; step < first + count; ++step) {
      run::MetricRecord& record = *heartbeat.add_record();
      record.set_kind(run::MetricRecord::TRAIN);
      record.set_step(step);
    }
    ASSERT_TRUE(worker_->Send(message).ok());
  }
  void AwaitAcked(uint64_t count) {
    Await(*worker_, [count](const Message& message) {
      return message.header.heartbeat_reply().records_acked() == count;
    });
  }
  // It dies of this, or of an event before.
  void BreakStoreAnd(const std::function<void()>& act) {
    memory_.SetBroken(true);
    act();
    while (thread_->failure().ok()) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(thread_->Finish(), thread_->failure());
    memory_.SetBroken(false);
  }
  // In place of the one before; the members connect to it.
  void Recover() {
    options_.endpoint = absl::StrCat("inproc://", ++coordinators_);
    absl::StatusOr<std::unique_ptr<CoordinatorThread>> thread =
        CoordinatorThread::Start(transport_, options_,
                                 Keeping(memory_.state()));
    ASSERT_TRUE(thread.ok()) << thread.status();
    thread_ = *std::move(thread);
    for (auto* channel : {&server_, &worker_}) {
      const bool is_worker = channel == &worker_;
      *channel = Must(transport_.Connect(
          {.kind = is_worker ? PeerId::Kind::kWorker : PeerId::Kind::kServer,
           .index = 0,
           .instance = 5},
          options_.endpoint, {}));
    }
  }

  Memory memory_;
  int coordinators_ = 0;  // Their addresses differ.
};

TEST_F(RecoveredCoordinatorTest, RecordsAreInTheirFileOnce) {
  const std::string metrics = folder_.path() + "/metrics.jsonl";
  StartJobWithRecords(2);
  const std::string kept = ReadAll(metrics);
  BreakStoreAnd([&] { SendRecords(2, 2); });
  std::ofstream(metrics, std::ios::app) << "{\"step\":2}\n{\"ste";
  Recover();
  EXPECT_EQ(ReadAll(metrics), kept);
  SendRecords(2, 2);
  AwaitAcked(4);
  std::istringstream lines(ReadAll(metrics));
  std::string line;
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_THAT(line, HasSubstr(absl::StrCat("\"step\":", step)));
  }
  EXPECT_FALSE(std::getline(lines, line));
  FinishJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  EXPECT_EQ(thread_->JobEnd(), absl::OkStatus());
  EXPECT_THAT(ReadAll(summary_), HasSubstr("\"steps\": 7"));
}

TEST_F(RecoveredCoordinatorTest, AnEndIsToldAndItsSummaryWrittenOnce) {
  StartJobWithRecords(1);
  FinishJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  // The first one died before it could write the summary; the second after.
  for (const char* const before : {"", "{}"}) {
    std::filesystem::remove(summary_);
    if (*before != '\0') std::ofstream(summary_) << before;
    Recover();
    SendRecords(1, 0);
    Await(*worker_, [](const Message& message) {
      return message.header.view().state() == wire::FINISHED;
    });
    EXPECT_EQ(thread_->Finish(), absl::OkStatus());
    EXPECT_EQ(thread_->JobEnd(), absl::OkStatus());
    EXPECT_THAT(ReadAll(summary_),
                HasSubstr(*before == '\0' ? "\"steps\": 7" : before));
  }
}

TEST_F(RecoveredCoordinatorTest, NobodyIsToldWhatCannotBeKept) {
  StartJobWithRecords(1);
  const CoordinatorState state = memory_.state();
  BreakStoreAnd([&] { SendRecords(1, 1); });
  EXPECT_THAT(std::string(thread_->failure().message()),
              AllOf(HasSubstr("no space on the disk"),
                    HasSubstr("start server 0 again")));
  const std::optional<Message> told = Must(worker_->Receive());
  EXPECT_FALSE(told.has_value() &&
               told->header.heartbeat_reply().records_acked() > 1);
  EXPECT_FALSE(std::filesystem::exists(summary_)) << "the job has not ended";
  EXPECT_EQ(memory_.state(), state);
}

// Whether or not there is something to be kept.
TEST_F(RecoveredCoordinatorTest, WhoDoesNotLeadAnyMoreWritesAndSaysNothing) {
  const std::string metrics = folder_.path() + "/metrics.jsonl";
  StartJobWithRecords(1);
  const std::string kept = ReadAll(metrics);
  while (Must(worker_->Receive()).has_value()) {
  }
  memory_.LetOtherLead();
  SendRecords(1, 1);
  while (thread_->failure().ok()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(thread_->failure().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(thread_->failure().message()),
              HasSubstr("another one leads"));
  EXPECT_EQ(thread_->Finish(), thread_->failure());
  EXPECT_EQ(ReadAll(metrics), kept);
  EXPECT_FALSE(std::filesystem::exists(summary_));
  const std::optional<Message> told = Must(worker_->Receive());
  EXPECT_FALSE(told.has_value() &&
               told->header.heartbeat_reply().records_acked() > 1);
}

TEST_F(RecoveredCoordinatorTest, AFullDiskDoesNotEndTheJob) {
  StartJobWithRecords(1);
  memory_.SetBroken(true, absl::StatusCode::kResourceExhausted);
  SendRecords(1, 1);
  AwaitAcked(2);
  memory_.SetBroken(false);
  EXPECT_TRUE(memory_.state().empty()) << "nobody goes on with what was";
  FinishJob();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  EXPECT_TRUE(memory_.state().empty());
  EXPECT_THAT(ReadAll(summary_), HasSubstr("\"steps\": 7"));
}

TEST_F(RecoveredCoordinatorTest, ABrokenStateIsRefused) {
  StartJobWithRecords(1);
  for (const char* const key : {"files", "view"}) {
    CoordinatorState state = memory_.state();
    ASSERT_EQ(state.count(key), 1u) << key;
    state[key] = "\xff\xff\xff";
    options_.endpoint = absl::StrCat("inproc://", ++coordinators_);
    const absl::Status refused =
        CoordinatorThread::Start(transport_, options_, Keeping(state)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << key;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(key));
  }
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
  options_.core.config.mutable_limits()->set_save_timeout_ms(1);
  RunUntilItHangs();
  EXPECT_EQ(thread_->Finish(), absl::OkStatus());
  ExpectSummaryWithoutIt();
}

TEST_F(HangingDiskTest, WhoInterruptsItNeedNotWait) {
  options_.core.config.mutable_limits()->set_save_timeout_ms(86400000);
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
  options_.core.config.mutable_checkpoint()->set_best_by(
      config::Checkpoint::ACCURACY);
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
  EXPECT_TRUE(Must(HasRecordsOf(folder_.path(), 7)));
}

// Run 6 went on from run 5, and ended before it had a checkpoint: so did the
// one that goes on from run 5 once more.
TEST_F(CoordinatorThreadTest, WhatRunsOfTheFolderHaveLeftIsRemoved) {
  const std::string root = folder_.path() + "/checkpoints";
  Must(RunFiles::Create(folder_.path(), {.run = 5}));
  Must(RunFiles::Create(folder_.path(), {.run = 6, .goes_on_from = 5}));
  for (const uint64_t run : {4, 5, 6})
    std::filesystem::create_directories(PartialFolder(root, run, 3));
  checkpoint::Manifest manifest;
  manifest.set_run(5);
  options_.core.resume =
      std::make_shared<const checkpoint::Manifest>(std::move(manifest));
  options_.core.checkpoint_root = root;
  options_.core.run = 7;
  Must(CoordinatorThread::Start(transport_, options_));
  EXPECT_TRUE(std::filesystem::exists(PartialFolder(root, 4, 3)))
      << "somebody else's";
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(root, 5, 3)));
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(root, 6, 3)));
}

TEST_F(CoordinatorThreadTest, ASummaryThatCannotBeWrittenIsAnError) {
  std::filesystem::create_directory(summary_);
  options_.core.config.mutable_limits()->set_save_timeout_ms(0);
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
  options_.core.config.mutable_limits()->set_save_timeout_ms(86400000);
  RunJob();
  std::future<absl::Status> finished =
      std::async(std::launch::async, [this] { return thread_->Finish(); });
  thread_->StopSaving();
  EXPECT_THAT(std::string(finished.get().message()), HasSubstr(summary_));
}

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

TEST(RunFilesTest, AFileThatIsShorterThanItWasLacksARecord) {
  TempFolder folder;
  coordinator::FilesState kept;
  {
    const auto files = Must(RunFiles::Create(folder.path(), {.run = 5}));
    run::MetricRecord record;
    ASSERT_TRUE(files->AppendMetric(record).ok());
    ASSERT_TRUE(files->AppendMetric(record).ok());
    kept = files->Kept();
  }
  EXPECT_EQ(
      Must(RunFiles::GoOn(folder.path(), {.run = 5}, kept))->WhatIsMissing(),
      "");
  const std::string metrics = folder.path() + "/metrics.jsonl";
  std::filesystem::resize_file(metrics, kept.metrics().bytes() - 1);
  const auto files = Must(RunFiles::GoOn(folder.path(), {.run = 5}, kept));
  EXPECT_THAT(files->WhatIsMissing(),
              HasSubstr("metrics.jsonl lacks 1 record"));
  EXPECT_EQ(files->Kept().metrics().lost(), 1);
  EXPECT_EQ(files->Kept().metrics().bytes(), kept.metrics().bytes() / 2);
}

TEST(RunFilesTest, RecordsInAnotherFolderAreMissing) {
  const TempFolder here;
  const TempFolder there{"there."};
  const run::MetricRecord record;
  coordinator::FilesState kept;
  {
    const auto files =
        Must(RunFiles::Create(there.path(), {.run = 5, .folder = 1}));
    ASSERT_TRUE(files->AppendMetric(record).ok());
    kept = files->Kept();
  }
  const std::string first = ReadAll(there.path() + "/metrics.jsonl");
  {
    // A folder of an earlier job, which has records of its own.
    const auto files =
        Must(RunFiles::Create(here.path(), {.run = 4, .folder = 2}));
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(files->AppendMetric(record).ok());
  }
  const auto go_on = [&](const TempFolder& folder, uint64_t token) {
    auto files =
        Must(RunFiles::GoOn(folder.path(), {.run = 5, .folder = token}, kept));
    EXPECT_TRUE(files->AppendMetric(record).ok());
    EXPECT_THAT(files->WhatIsMissing(), AllOf(HasSubstr("metrics.jsonl lacks "),
                                              HasSubstr("another folder"),
                                              Not(HasSubstr("moves.jsonl"))));
    kept = files->Kept();
  };
  go_on(here, 3);
  EXPECT_EQ(ReadAll(here.path() + "/metrics.jsonl"), first);
  EXPECT_EQ(kept.metrics().lost(), 1);
  // The same folder once more lacks no more.
  go_on(here, 4);
  EXPECT_EQ(ReadAll(here.path() + "/metrics.jsonl"), first + first);
  EXPECT_EQ(kept.metrics().lost(), 1);
  // Back there: what it has does not end where these records begin.
  go_on(there, 5);
  EXPECT_EQ(ReadAll(there.path() + "/metrics.jsonl"), first);
  EXPECT_EQ(kept.metrics().lost(), 2);
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
  EXPECT_FALSE(Must(HasRecordsOf(folder.path(), 5))) << "no file";
  ASSERT_TRUE(RunFiles::Create(folder.path(), {.run = 5}).ok());
  ASSERT_TRUE(
      RunFiles::Create(folder.path(), {.run = 6, .goes_on_from = 5}).ok());
  EXPECT_TRUE(Must(HasRecordsOf(folder.path(), 5)));
  EXPECT_TRUE(Must(HasRecordsOf(folder.path(), 6)));
  // One that goes on from a third run begins the records anew.
  ASSERT_TRUE(
      RunFiles::Create(folder.path(), {.run = 7, .goes_on_from = 4}).ok());
  EXPECT_FALSE(Must(HasRecordsOf(folder.path(), 6)));
  EXPECT_TRUE(Must(HasRecordsOf(folder.path(), 7)));
  ASSERT_TRUE(RunFiles::Create(folder.path(), {}).ok());
  EXPECT_FALSE(Must(HasRecordsOf(folder.path(), 7)));
  EXPECT_FALSE(Must(HasRecordsOf(folder.path(), 0))) << "no run";
}

// Somebody may have put anything there.
TEST(RunFilesTest, OfAFileOfRunsThatIsTooLargeNothingIsRead) {
  const TempFolder folder;
  const std::string runs = folder.Write("runs.txt", "0000000000000005\n");
  EXPECT_TRUE(Must(HasRecordsOf(folder.path(), 5)));
  std::filesystem::resize_file(runs, kRunsFileBytesMax + 1);
  const absl::Status failed =
      RunFiles::Create(folder.path(), {.run = 6, .goes_on_from = 5}).status();
  EXPECT_TRUE(absl::IsDataLoss(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()),
              AllOf(HasSubstr(runs), HasSubstr("has 1048577 bytes"),
                    HasSubstr("at most 1048576 are read")));
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

}  // namespace slackline::coordinator_thread_test
