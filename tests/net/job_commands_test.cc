// The subcommands that talk to a running job, against a coordinator that
// follows the test's script.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/process/exit_code.h"
#include "tests/net/fake_coordinator.h"
#include "tests/support/modes.h"
#include "tests/support/temp_folder.h"
#include "tools/cli/job/checkpoint_command.h"
#include "tools/cli/job/mode_commands.h"
#include "tools/cli/job/rebalance_commands.h"
#include "tools/cli/job/servers_command.h"
#include "tools/cli/job/status_command.h"
#include "tools/cli/job/stop_command.h"
#include "tools/cli/job/top_command.h"

namespace slackline::job_commands_test {

using ::testing::HasSubstr;
using ::testing::Not;

// A job of two servers with one thread each, and one table of four shards, all
// on server 0. The coordinator orders every move that it is asked for, and has
// done one more of them at each status; likewise with a change of the mode,
// that has come one state further.
class JobCommandsTest : public ::testing::Test {
 protected:
  JobCommandsTest()
      : coordinator_([this](const wire::Call& call) { return Answer(call); }) {
    wire::View& view = *status_.mutable_view();
    view.set_job("digits");
    view.set_state(wire::RUNNING);
    wire::Table& table = *view.add_table();
    table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    table.set_name("weight");
    table.add_shape(400);
    table.set_shard_elements(100);
    for (int shard = 0; shard < 4; ++shard) {
      view.add_owner_server(0);
      view.add_owner_thread(0);
    }
    for (const int index : {0, 1}) AddServer(index, 0);
    view.set_steps_total(1000);
    *view.add_phase()->mutable_mode() = ModeOf("bsp");
    job_.config = WriteConfig("MANUAL");
    job_.wait_max = absl::Seconds(30);
  }

  std::string WriteConfig(const std::string& mode) {
    return folder_.Write(
        "cluster.textproto",
        absl::StrCat(
            "job: 'digits' insecure: true coordinator { port: ",
            coordinator_.port(),
            " } server { host: '127.0.0.1' count: 2 } worker { host: "
            "'127.0.0.1' } model { softmax {} } data { teacher_student {} } "
            "optimizer { sgd { learning_rate: 0.1 } } rebalance { mode: ",
            mode, " }"));
  }
  void AddServer(int index, int pid) {
    wire::ServerMember& member = *status_.mutable_view()->add_server();
    member.set_index(index);
    member.add_thread();
    run::ServerStats& stats = *status_.add_server();
    stats.set_index(index);
    stats.set_pid(pid);
    stats.set_alive(true);
    status_.set_next_server(index + 1);
  }

  // In the coordinator's thread.
  wire::CallReply Answer(const wire::Call& call) {
    if (before_answer_) before_answer_(call);
    wire::CallReply reply;
    reply.set_code(wire::OK);
    if (call.has_status()) {
      DoOneMove();
      AdvanceMode();
      *reply.mutable_status() = status_;
      return reply;
    }
    if (!refusal_.empty()) {
      reply.set_code(wire::REJECTED);
      reply.set_error(refusal_);
      return reply;
    }
    if (call.has_set_mode()) {
      reply.set_text("will change, said the coordinator");
      mode_ = call.set_mode();
      if (mode_.has_mode()) mode_states_ = 3;
      return reply;
    }
    if (call.has_checkpoint()) {
      checkpoint_ids_.insert(call.call_id());
      if (++checkpoint_calls_ < checkpoint_at_call_) {
        reply.set_code(wire::CODE_UNSPECIFIED);
        status_.set_checkpoint("step 14: 0 of 1 parts are written");
        return reply;
      }
      status_.mutable_last_checkpoint()->set_clock(14);
      reply.set_text("step 14 is in runs/a/checkpoints/step-00000014");
      return reply;
    }
    if (call.has_finish()) {
      wire::View& view = *status_.mutable_view();
      view.set_state(wire::FINISHED);
      view.mutable_end()->set_reason(
          absl::StrCat("ended early, at step 12: ", call.finish().reason()));
      reply.set_text("ends soon");
      return reply;
    }
    if (call.has_stop()) stop_reason_ = call.stop().reason();
    run::Plan& plan = *reply.mutable_plan();
    plan.set_summary("that is the plan");
    if (call.has_rebalance()) Plan({0, 1}, 1, &plan);
    if (call.has_move_shards()) {
      moved_to_thread_ = call.move_shards().thread();
      Plan({call.move_shards().shard().begin(),
            call.move_shards().shard().end()},
           call.move_shards().server(), &plan);
    }
    if (call.has_drain()) {
      drained_ = call.drain().server();
      Plan({3}, 0, &plan);
    }
    if (!call.rebalance().dry_run()) *status_.mutable_plan() = plan;
    return reply;
  }
  static void Plan(const std::vector<int>& shards, int to, run::Plan* plan) {
    for (const int shard : shards) {
      run::PlannedMove& move = *plan->add_move();
      move.set_shard(shard);
      move.set_name(absl::StrCat("shard ", shard));
      move.set_to_server(to);
    }
  }
  void DoOneMove() {
    auto& pending = *status_.mutable_plan()->mutable_move();
    if (!pending.empty()) {
      const run::PlannedMove& move = pending[0];
      run::MoveRecord& record = *status_.add_moved();
      record.set_shard(move.shard());
      record.set_name(move.name());
      record.set_pause_micros(1500 + move.shard());
      status_.mutable_view()->set_owner_server(move.shard(), move.to_server());
      pending.DeleteSubrange(0, 1);
    } else if (drained_ >= 0) {
      status_.mutable_server()->DeleteSubrange(drained_, 1);
      drained_ = -1;
    }
  }

  // What the next status shows of an ordered change.
  void AdvanceMode() {
    wire::View& view = *status_.mutable_view();
    if (mode_states_ == 0) return;
    --mode_states_;
    if (mode_states_ == 2) {
      *view.mutable_change()->mutable_mode() = mode_.mode();
    } else if (mode_states_ == 1) {
      view.clear_change();
      if (drop_change_) return;
      wire::Phase& phase = *view.add_phase();
      *phase.mutable_mode() = mode_.mode();
      phase.set_from(77);
    } else if (!drop_change_) {
      view.set_entered(1);
      run::ModeRecord& record = *status_.add_mode_changed();
      record.mutable_from()->mutable_bsp();
      *record.mutable_to() = ModeOf("ssp:4");
      record.set_from_clock(77);
      record.set_pause_micros(2750);
    }
  }

  // Runs a subcommand, once; what it wrote is in out_ and error_.
  int Run(const std::function<int()>& command) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int exit_code = command();
    // From here on what its thread has written is the test's.
    coordinator_.Stop();
    out_ = testing::internal::GetCapturedStdout();
    error_ = testing::internal::GetCapturedStderr();
    return exit_code;
  }

  // Before the coordinator has its first call, or in its thread.
  wire::StatusReply status_;
  std::string refusal_;
  std::function<void(const wire::Call&)> before_answer_;
  std::string stop_reason_;
  int moved_to_thread_ = -2;
  int drained_ = -1;
  wire::SetMode mode_;
  int mode_states_ = 0;  // To come.
  bool drop_change_ = false;
  int checkpoint_calls_ = 0;
  int checkpoint_at_call_ = 3;  // Answered then.
  std::set<uint64_t> checkpoint_ids_;

  std::string out_;
  std::string error_;
  TempFolder folder_;
  JobOptions job_;
  FakeCoordinator coordinator_;  // Last: its thread uses the others.
};

TEST_F(JobCommandsTest, RebalanceShowsThePlanThenWhatItHasCost) {
  ASSERT_EQ(Run([&] { return RebalanceShards({.job = job_, .output = {}}); }),
            kExitDone)
      << error_;
  const size_t plan = out_.find("that is the plan");
  const size_t moves = out_.find("1.50 ms");
  ASSERT_NE(plan, std::string::npos) << out_;
  ASSERT_NE(moves, std::string::npos) << out_;
  EXPECT_LT(plan, moves);
  EXPECT_THAT(out_, HasSubstr("2 shards moved, 0 B sent"));
  EXPECT_THAT(error_, HasSubstr("moves done"));
}

TEST_F(JobCommandsTest, ADryRunMovesNothing) {
  ASSERT_EQ(
      Run([&] {
        return RebalanceShards({.job = job_, .output = {}, .dry_run = true});
      }),
      kExitDone)
      << error_;
  EXPECT_THAT(out_, HasSubstr("that is the plan"));
  EXPECT_THAT(out_, Not(HasSubstr("moved")));
  EXPECT_EQ(error_, "");
}

TEST_F(JobCommandsTest, WithoutWaitingOnlyThePlanIsShown) {
  ASSERT_EQ(Run([&] {
              return RebalanceShards({.job = job_, .output = {.wait = false}});
            }),
            kExitDone)
      << error_;
  EXPECT_THAT(out_, Not(HasSubstr("moved")));
}

TEST_F(JobCommandsTest, JsonIsOneDocumentWithPlanAndMoves) {
  ASSERT_EQ(Run([&] {
              return RebalanceShards({.job = job_, .output = {.json = true}});
            }),
            kExitDone)
      << error_;
  const nlohmann::json json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["plan"]["summary"], "that is the plan");
  EXPECT_EQ(json["plan"]["move"][0]["from_thread"], 0);
  EXPECT_EQ(json["moved"][1]["pause_micros"], 1501);
  EXPECT_EQ(json["abandoned"], nlohmann::json::array());
}

TEST_F(JobCommandsTest, ARefusalIsTheCoordinatorsSentence) {
  refusal_ = "rebalance.mode is OFF";
  EXPECT_EQ(Run([&] { return RebalanceShards({.job = job_, .output = {}}); }),
            kExitFailed);
  EXPECT_EQ(error_, "slackline rebalance: rebalance.mode is OFF\n");
  EXPECT_EQ(out_, "");
}

TEST_F(JobCommandsTest, AJobThatEndsFirstIsAFailure) {
  before_answer_ = [this](const wire::Call& call) {
    if (call.has_status() && status_.plan().move_size() == 1) {
      status_.mutable_view()->set_state(wire::FAILED);
      status_.mutable_view()->mutable_end()->set_reason("server 1 is dead");
      status_.mutable_plan()->add_move()->set_shard(1);
    }
  };
  EXPECT_EQ(Run([&] { return RebalanceShards({.job = job_, .output = {}}); }),
            kExitFailed);
  EXPECT_THAT(error_,
              HasSubstr("the job has ended (failed: server 1 is dead)"));
}

TEST_F(JobCommandsTest, MoveResolvesNamesAndTarget) {
  ASSERT_EQ(Run([&] {
              return MoveShards({.job = job_,
                                 .output = {},
                                 .shards = {"weight[100, 200)", "3"},
                                 .to = "1.0"});
            }),
            kExitDone)
      << error_;
  EXPECT_EQ(moved_to_thread_, 0);
  EXPECT_THAT(out_, HasSubstr("shard 1"));
  EXPECT_THAT(out_, HasSubstr("shard 3"));
  EXPECT_THAT(out_, HasSubstr("2 shards moved"));
}

TEST_F(JobCommandsTest, MoveOfAnUnknownShardIsWrongUsage) {
  EXPECT_EQ(Run([&] {
              return MoveShards(
                  {.job = job_, .output = {}, .shards = {"9"}, .to = "1"});
            }),
            kExitUsage);
  EXPECT_EQ(error_,
            "slackline move: SHARD '9': there is no shard 9; the job has "
            "shards 0 to 3\n");
  EXPECT_EQ(moved_to_thread_, -2) << "the coordinator was not asked";
}

TEST_F(JobCommandsTest, DrainWaitsUntilTheServerHasLeft) {
  ASSERT_EQ(Run([&] {
              return DrainServer({.job = job_, .output = {}, .server = 1});
            }),
            kExitDone)
      << error_;
  EXPECT_THAT(out_, HasSubstr("1 shard moved"));
  EXPECT_THAT(out_, HasSubstr("server 1 has given its shards away and left"));
  EXPECT_EQ(drained_, -1);
}

TEST_F(JobCommandsTest, DrainOfAnUnknownServerIsWrongUsage) {
  EXPECT_EQ(Run([&] {
              return DrainServer({.job = job_, .output = {}, .server = 2});
            }),
            kExitUsage);
  EXPECT_EQ(error_,
            "slackline drain: server 2 is not in the job; its servers are 0, "
            "1\n");
}

TEST_F(JobCommandsTest, CheckpointWaitsUntilItIsThereAndIsOneCall) {
  ASSERT_EQ(Run([&] { return CheckpointJob({.job = job_}); }), kExitDone)
      << error_;
  EXPECT_EQ(out_,
            "job digits: step 14 is in runs/a/checkpoints/step-00000014\n");
  EXPECT_EQ(checkpoint_calls_, 3);
  EXPECT_EQ(checkpoint_ids_.size(), 1u);
}

TEST_F(JobCommandsTest, CheckpointSaysWhatIsUnderWayWhenItsTimeIsOver) {
  checkpoint_at_call_ = 1 << 20;
  EXPECT_EQ(Run([&] {
              return CheckpointJob(
                  {.job = job_, .deadline = absl::Milliseconds(900)});
            }),
            kExitFailed);
  EXPECT_THAT(error_, HasSubstr("is not there after 900ms (the checkpoint: "
                                "step 14: 0 of 1 parts are written)"));
  EXPECT_EQ(out_, "");
}

TEST_F(JobCommandsTest, CheckpointAsJsonHasItsRecord) {
  ASSERT_EQ(Run([&] { return CheckpointJob({.job = job_, .json = true}); }),
            kExitDone)
      << error_;
  const nlohmann::json json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["checkpoint"]["clock"], 14);
}

TEST_F(JobCommandsTest, ARefusedCheckpointIsTheCoordinatorsSentence) {
  refusal_ = "the job is about to end";
  EXPECT_EQ(Run([&] { return CheckpointJob({.job = job_}); }), kExitFailed);
  EXPECT_EQ(error_, "slackline checkpoint: the job is about to end\n");
}

TEST_F(JobCommandsTest, ModeSetWaitsForTheChangeAndTellsItsCost) {
  ASSERT_EQ(Run([&] { return ChangeMode({.job = job_, .mode = "ssp:4"}); }),
            kExitDone)
      << error_;
  EXPECT_EQ(mode_.ShortDebugString(), "mode { ssp { staleness: 4 } }");
  EXPECT_EQ(mode_states_, 0);
  EXPECT_EQ(out_,
            "job digits: will change, said the coordinator\n"
            "changed from bsp to ssp:4 at clock 77; the workers stood still "
            "for at most 2.75 ms\n");
  EXPECT_EQ(error_, "");
}

TEST_F(JobCommandsTest, ModeSetWithoutWaitingOnlyOrders) {
  ASSERT_EQ(Run([&] {
              return ChangeMode({.job = job_, .mode = "ssp:4", .wait = false});
            }),
            kExitDone)
      << error_;
  EXPECT_EQ(out_, "job digits: will change, said the coordinator\n");
  EXPECT_EQ(mode_states_, 3) << "nobody has looked again";
}

TEST_F(JobCommandsTest, ModeSetAutoHasNoChangeToWaitFor) {
  ASSERT_EQ(Run([&] { return ChangeMode({.job = job_, .mode = "auto"}); }),
            kExitDone)
      << error_;
  EXPECT_TRUE(mode_.has_by_policy());
  EXPECT_EQ(out_, "job digits: will change, said the coordinator\n");
}

TEST_F(JobCommandsTest, AChangeThatIsDroppedIsAFailure) {
  drop_change_ = true;
  EXPECT_EQ(Run([&] { return ChangeMode({.job = job_, .mode = "asp"}); }),
            kExitFailed);
  EXPECT_THAT(error_,
              HasSubstr("slackline mode set: the change to asp was dropped: "
                        "the job ends at step 1000"));
}

TEST_F(JobCommandsTest, AChangeThatIsRefusedIsTheCoordinatorsSentence) {
  refusal_ = "the mode is asp already";
  EXPECT_EQ(Run([&] { return ChangeMode({.job = job_, .mode = "asp"}); }),
            kExitFailed);
  EXPECT_EQ(error_, "slackline mode set: the mode is asp already\n");
}

TEST_F(JobCommandsTest, AnUnknownModeIsWrongUsage) {
  EXPECT_EQ(Run([&] { return ChangeMode({.job = job_, .mode = "spp:3"}); }),
            kExitUsage);
  EXPECT_THAT(error_, HasSubstr("slackline mode set: 'spp:3' is no mode; bsp, "
                                "ssp:S (as in ssp:3), "));
  EXPECT_EQ(mode_.choice_case(), wire::SetMode::CHOICE_NOT_SET)
      << "nobody was asked";
}

TEST_F(JobCommandsTest, AJobThatEndsBeforeItsModeChangesIsAFailure) {
  before_answer_ = [this](const wire::Call& call) {
    if (!call.has_status() || mode_states_ != 2) return;
    status_.mutable_view()->set_state(wire::FAILED);
    status_.mutable_view()->mutable_end()->set_reason("server 1 is dead");
  };
  EXPECT_EQ(Run([&] { return ChangeMode({.job = job_, .mode = "ssp:4"}); }),
            kExitFailed);
  EXPECT_THAT(error_,
              HasSubstr("the job has ended (failed: server 1 is dead) before "
                        "the mode had changed; ssp:4 holds from clock 77"));
}

TEST_F(JobCommandsTest, ModeShowTellsThePhases) {
  ASSERT_EQ(Run([&] { return ShowModes({.job = job_}); }), kExitDone) << error_;
  EXPECT_THAT(out_, HasSubstr("job digits: mode bsp"));
  EXPECT_THAT(out_, HasSubstr("         0  bsp   now\n"));
}

TEST_F(JobCommandsTest, StopEndsTheJobEarlyAndWaits) {
  ASSERT_EQ(Run([&] { return StopJob({.job = job_, .reason = "enough"}); }),
            kExitDone)
      << error_;
  EXPECT_EQ(out_,
            "job digits ends soon\n"
            "job digits has finished: ended early, at step 12: enough\n");
}

TEST_F(JobCommandsTest, WhatCannotEndEarlyCanBeStoppedAtOnce) {
  refusal_ = "its delays are given";
  EXPECT_EQ(Run([&] { return StopJob({.job = job_}); }), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("slackline stop --now ends it at once, without "
                                "a model): its delays are given"));
}

TEST_F(JobCommandsTest, StopIsToldAsJson) {
  ASSERT_EQ(Run([&] {
              return StopJob({.job = job_, .reason = "enough", .json = true});
            }),
            kExitDone)
      << error_;
  EXPECT_EQ(nlohmann::json::parse(out_),
            nlohmann::json({{"job", "digits"},
                            {"text", "ends soon"},
                            {"end", "ended early, at step 12: enough"}}));
}

TEST_F(JobCommandsTest, StopAtOnceTellsTheReason) {
  ASSERT_EQ(Run([&] {
              return StopJob({.job = job_,
                              .reason = "enough",
                              .how = StopOptions::How::kAtOnce});
            }),
            kExitDone)
      << error_;
  EXPECT_EQ(out_, "job digits stops: enough\n");
  EXPECT_EQ(stop_reason_, "enough");
}

TEST_F(JobCommandsTest, ModesAreToldAsJson) {
  status_.mutable_view()->mutable_change()->mutable_ending();
  ASSERT_EQ(Run([&] { return ShowModes({.job = job_, .json = true}); }),
            kExitDone)
      << error_;
  EXPECT_EQ(nlohmann::json::parse(out_),
            nlohmann::json::parse(
                R"({"job": "digits", "mode": "bsp", "policy": "",
                    "phases": [{"from_clock": 0, "mode": "bsp", "state": "now"}],
                    "changing_to": "the job's end", "steps_total": 1000,
                    "changed": []})"));
}

TEST_F(JobCommandsTest, AChangeOfTheModeIsToldAsJson) {
  ASSERT_EQ(Run([&] {
              return ChangeMode({.job = job_, .mode = "ssp:4", .json = true});
            }),
            kExitDone)
      << error_;
  const nlohmann::json json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["text"], "will change, said the coordinator");
  EXPECT_EQ(json["changed"]["to"], "ssp:4");
  EXPECT_EQ(json["changed"]["pause_micros"], 2750);
}

// A run that has ended is answered from its folder; nobody is asked.
class EndedRunTest : public JobCommandsTest {
 protected:
  EndedRunTest() {
    folder_.Write("summary.json",
                  R"({"job": "digits", "mode": "bsp", "state": "FAILED",
                      "cause": "SERVER_LOST", "reason": "server 1 is dead",
                      "steps": 12, "retries": 0})");
    job_.config = folder_.path();
    before_answer_ = [this](const wire::Call&) { asked_ = true; };
  }
  std::atomic<bool> asked_ = false;
};

TEST_F(EndedRunTest, StatusAndTopShowItsResult) {
  ASSERT_EQ(Run([&] { return ShowStatus({.job = job_, .table = {}}); }),
            kStatusFailed)
      << error_;
  EXPECT_THAT(out_, ::testing::StartsWith(
                        "job digits has ended: failed: server 1 is dead\n"));
  EXPECT_THAT(out_, HasSubstr("bsp      12"));
  const std::string status = out_;
  ASSERT_EQ(Run([&] { return ShowTop({.job = job_, .table = {}}); }), kExitDone)
      << error_;
  EXPECT_EQ(out_, status);
  EXPECT_FALSE(asked_);
}

TEST_F(EndedRunTest, TheExitCodeOfStatusIsItsEnd) {
  const auto code_of = [&](const std::string& state, const std::string& cause) {
    folder_.Write("summary.json",
                  absl::StrCat(R"({"job": "digits", "mode": "bsp", "state": ")",
                               state, R"(", "cause": ")", cause, R"("})"));
    return Run([&] { return ShowStatus({.job = job_, .table = {}}); });
  };
  EXPECT_EQ(code_of("FINISHED", "COMPLETED"), kStatusFinished);
  EXPECT_EQ(code_of("FAILED", "STOPPED"), kStatusFailed);
  EXPECT_EQ(code_of("FAILED", "SUSPENDED"), kExitSuspended);
  folder_.Write("summary.json", "{");
  EXPECT_EQ(Run([&] { return ShowStatus({.job = job_, .table = {}}); }),
            kExitFailed);
}

struct StatusCode {
  wire::JobState state;
  wire::JobEnd::Cause cause;
  int code;
};
class StatusCodeTest : public JobCommandsTest,
                       public ::testing::WithParamInterface<StatusCode> {};

TEST_P(StatusCodeTest, TheExitCodeOfStatusIsHowTheJobStands) {
  status_.mutable_view()->set_state(GetParam().state);
  status_.mutable_view()->mutable_end()->set_cause(GetParam().cause);
  EXPECT_EQ(Run([&] { return ShowStatus({.job = job_, .table = {}}); }),
            GetParam().code)
      << error_;
}

INSTANTIATE_TEST_SUITE_P(
    States, StatusCodeTest,
    ::testing::Values(
        StatusCode{wire::FORMING, wire::JobEnd::CAUSE_UNSPECIFIED,
                   kStatusForming},
        StatusCode{wire::RUNNING, wire::JobEnd::CAUSE_UNSPECIFIED,
                   kStatusRunning},
        StatusCode{wire::FINISHED, wire::JobEnd::COMPLETED, kStatusFinished},
        StatusCode{wire::FAILED, wire::JobEnd::STOPPED, kStatusFailed},
        StatusCode{wire::FAILED, wire::JobEnd::SUSPENDED, kExitSuspended}));

TEST_F(EndedRunTest, JsonIsItsSummary) {
  ASSERT_EQ(
      Run([&] { return ShowStatus({.job = job_, .table = {}, .json = true}); }),
      kStatusFailed)
      << error_;
  const nlohmann::json json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["folder"], folder_.path());
  EXPECT_EQ(json["summary"]["steps"], 12);
  EXPECT_EQ(json["summary"]["state"], "FAILED");
}

TEST_F(EndedRunTest, WhatNeedsARunningJobSaysHowItHasEnded) {
  EXPECT_EQ(Run([&] {
              return DrainServer({.job = job_, .output = {}, .server = 1});
            }),
            kExitFailed);
  EXPECT_EQ(error_, absl::StrCat("slackline drain: the run in ", folder_.path(),
                                 " has ended: failed: server 1 is dead\n"));
  EXPECT_FALSE(asked_);
}

TEST_F(JobCommandsTest, AnotherJobAtTheAddressIsLeftAlone) {
  status_.mutable_view()->set_job("letters");
  EXPECT_EQ(Run([&] { return StopJob({.job = job_}); }), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("of job 'letters', not of 'digits'"));
  EXPECT_EQ(stop_reason_, "");
}

TEST_F(JobCommandsTest, AConfigThatIsNotThereIsWrongUsage) {
  job_.config = folder_.File("none");
  EXPECT_EQ(Run([&] { return ShowStatus({.job = job_, .table = {}}); }),
            kExitUsage);
  EXPECT_THAT(error_, HasSubstr("slackline status: cluster config"));
}

TEST_F(JobCommandsTest, TopShowsABlockAfterTheOther) {
  TopOptions options{.job = job_, .table = {}};
  options.interval = absl::Milliseconds(1);
  options.count = 3;
  ASSERT_EQ(Run([&] { return ShowTop(options); }), kExitDone) << error_;
  const std::vector<std::string> blocks =
      absl::StrSplit(out_, "job digits is running");
  EXPECT_EQ(blocks.size(), 4);
  EXPECT_THAT(out_, Not(HasSubstr("\x1b"))) << "no terminal";
}

TEST_F(JobCommandsTest, TopAsJsonIsAnObjectInEachLine) {
  TopOptions options{.job = job_, .table = {}};
  options.interval = absl::Milliseconds(1);
  options.count = 3;
  options.json = true;
  ASSERT_EQ(Run([&] { return ShowTop(options); }), kExitDone) << error_;
  const std::vector<std::string> lines =
      absl::StrSplit(out_, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3);
  for (const std::string& line : lines) {
    const nlohmann::json json = nlohmann::json::parse(line);
    EXPECT_EQ(json["view"]["job"], "digits");
    EXPECT_EQ(json["server"][0]["pulls_parked"], 0);
    EXPECT_EQ(json["gone"], nlohmann::json({"worker 0"}));
  }
}

TEST_F(JobCommandsTest, TopSaysHowTheJobHasEnded) {
  int calls = 0;
  before_answer_ = [&](const wire::Call&) {
    if (++calls < 3) return;
    status_.mutable_view()->set_state(wire::FAILED);
    status_.mutable_view()->mutable_end()->set_reason("worker 2 left");
  };
  TopOptions options{.job = job_, .table = {}};
  options.interval = absl::Milliseconds(1);
  ASSERT_EQ(Run([&] { return ShowTop(options); }), kExitDone) << error_;
  EXPECT_THAT(out_,
              ::testing::EndsWith("job digits has ended: failed: worker 2 "
                                  "left\n"));
}

TEST_F(JobCommandsTest, TopEndsWithAnInterrupt) {
  TopOptions options{.job = job_, .table = {}};
  options.interval = absl::Hours(1);
  // Comes while the first status is asked for, and is seen after it.
  const pthread_t self = pthread_self();
  before_answer_ = [self, sent = false](const wire::Call&) mutable {
    if (!std::exchange(sent, true)) pthread_kill(self, SIGINT);
  };
  EXPECT_EQ(Run([&] { return ShowTop(options); }), kExitDone) << error_;
  EXPECT_THAT(out_, HasSubstr("job digits is running"));
}

// `slackline servers add` with a program that does not talk to anybody; the
// coordinator of the test lists it when it has written its process id.
class AddServerTest : public JobCommandsTest {
 protected:
  void WriteProgram(const std::string& script) {
    const std::string program =
        folder_.Write("slackline_server", absl::StrCat("#!/bin/sh\n", script));
    ASSERT_EQ(chmod(program.c_str(), 0755), 0);
  }
  AddServerOptions Options() const {
    AddServerOptions options;
    options.job = job_;
    options.bin_dir = folder_.path();
    options.log = folder_.File("log");
    return options;
  }
  ~AddServerTest() override {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  int pid_ = 0;
};

constexpr char kStays[] =
    "echo \"$@\" > \"$(dirname $0)/arguments\"\n"
    "echo $$ > \"$(dirname $0)/pid.new\"\n"
    "mv \"$(dirname $0)/pid.new\" \"$(dirname $0)/pid\"\n"
    "exec sleep 1000\n";

TEST_F(AddServerTest, StartsAServerThatOutlivesTheCommand) {
  WriteProgram(kStays);
  before_answer_ = [this](const wire::Call&) {
    std::ifstream file(folder_.File("pid"));
    if (pid_ == 0 && file >> pid_) AddServer(2, pid_);
  };
  AddServerOptions options = Options();
  options.host = "127.0.0.2";
  options.threads = 3;
  ASSERT_EQ(Run([&] { return slackline::AddServer(options); }), kExitDone)
      << error_;
  EXPECT_EQ(ReadWholeFile(folder_.File("arguments")),
            absl::StrCat("--cluster=", job_.config,
                         " --index=2 --add --host=127.0.0.2 --threads=3\n"));
  EXPECT_EQ(kill(pid_, 0), 0);
  EXPECT_THAT(out_, HasSubstr(absl::StrCat(
                        "server 2 (pid ", pid_,
                        ") is in job digits; log: ", folder_.File("log"))));
  EXPECT_THAT(out_, HasSubstr("`slackline rebalance"));
}

TEST_F(AddServerTest, OfARunFolderItGetsTheFolderAndALogInIt) {
  WriteProgram(kStays);
  WriteConfig("AUTO");
  before_answer_ = [this](const wire::Call&) {
    std::ifstream file(folder_.File("pid"));
    if (pid_ == 0 && file >> pid_) AddServer(2, pid_);
  };
  AddServerOptions options = Options();
  options.job.config = folder_.path();
  options.log.clear();
  options.json = true;
  ASSERT_EQ(Run([&] { return slackline::AddServer(options); }), kExitDone)
      << error_;
  EXPECT_EQ(ReadWholeFile(folder_.File("arguments")),
            absl::StrCat("--cluster=", job_.config,
                         " --index=2 --add --out=", folder_.path(), "\n"));
  const std::string log = folder_.File("logs/server-2.log");
  EXPECT_EQ(ReadWholeFile(log), "");
  EXPECT_EQ(
      nlohmann::json::parse(out_),
      nlohmann::json(
          {{"job", "digits"}, {"server", 2}, {"pid", pid_}, {"log", log}}));
}

TEST_F(AddServerTest, AServerThatEndsAtOnceIsAFailureWithItsReason) {
  WriteProgram("echo '10:00:00.000 server 2 error: no such host'; exit 1\n");
  EXPECT_EQ(Run([&] { return slackline::AddServer(Options()); }), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("slackline servers add: server 2 exited with "
                                "code 1 before it was in the job: no such "
                                "host (log: "));
}

TEST_F(AddServerTest, AJobThatDoesNotRunGetsNone) {
  WriteProgram("exit 0\n");
  status_.mutable_view()->set_state(wire::FORMING);
  EXPECT_EQ(Run([&] { return slackline::AddServer(Options()); }), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("job digits is forming; a server can be added "
                                "while it is running"));
}

TEST_F(AddServerTest, AMissingProgramIsNamed) {
  EXPECT_EQ(Run([&] { return slackline::AddServer(Options()); }), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("/slackline_server is not there"));
}

}  // namespace slackline::job_commands_test
