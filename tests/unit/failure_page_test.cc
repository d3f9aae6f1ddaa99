// Goal: the page of a failed run names the culprit, what it said last and the
// next command, whatever has failed. Method: facts as `slackline run` or a
// coordinator alone has them, and words that the page has to have.
#include "server/coordinator/failure_page.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/view.pb.h"
#include "server/coordinator/run_files.h"
#include "tests/support/temp_folder.h"
#include "tools/cli/run/failure.h"

namespace slackline::failure_page_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

run::Summary Failed(wire::JobEnd::Cause cause, const std::string& reason,
                    const std::vector<std::string>& about = {}) {
  run::Summary summary;
  summary.set_job("small");
  summary.set_state(wire::JobState_Name(wire::FAILED));
  summary.set_cause(wire::JobEnd::Cause_Name(cause));
  summary.set_reason(reason);
  summary.set_ended_at("2026-01-02T03:04:05Z");
  summary.set_wall_seconds(12.5);
  for (const std::string& name : about) summary.add_about(name);
  for (const int rank : {0, 1}) {
    run::WorkerSummary& worker = *summary.add_worker();
    worker.set_rank(rank);
    worker.set_steps(100 + rank);
  }
  return summary;
}

FailedProcess Process(const std::string& name, const ExitStatus& status,
                      const std::vector<std::string>& lines) {
  return {.name = name,
          .host = "node7",
          .pid = 4711,
          .exit_code = status.code,
          .signal = status.signal,
          .how = status.ToString(),
          .log_path = "runs/a/logs/x.log",
          .last_lines = lines};
}

run::Summary WithCheckpoint(run::Summary summary) {
  summary.mutable_last_checkpoint()->set_folder("runs/a/checkpoints/step-90");
  summary.mutable_last_checkpoint()->set_clock(90);
  return summary;
}

run::Summary WithTraceback(run::Summary summary) {
  run::Traceback& traceback = *summary.add_traceback();
  traceback.set_rank(1);
  traceback.set_text(
      "Traceback (most recent call last):\n  train.py, line 9\n"
      "ValueError: odd");
  return summary;
}

// More of them than the page has, with more lines.
run::Summary WithStacks(run::Summary summary) {
  for (int rank = 0; rank < 3; ++rank) {
    run::StoodStill& worker = *summary.add_stood_still();
    worker.set_rank(rank);
    worker.set_seconds(14);
    if (rank > 0) worker.set_where("train.py line 41, in load");
    worker.set_text("main thread:\n");
    for (int i = 0; i < 100; ++i)
      absl::StrAppend(worker.mutable_text(), "  frame ", i, "\n");
  }
  return summary;
}

TEST(FailurePageTest, HasTheStacksOfTheLastWhoStoodStill) {
  const std::string page = FailurePage(
      {.folder = "runs/a",
       .summary = WithStacks(Failed(wire::JobEnd::STOPPED, "by the user"))});
  EXPECT_THAT(
      page,
      AllOf(Not(HasSubstr("worker 0 stood still")),
            HasSubstr("\nWhere worker 1 stood still, 14 s after the job began "
                      "to run: in train.py line 41, in load\n"
                      "  | main thread:\n  |   frame 0\n"),
            HasSubstr("Where worker 2 stood still"),
            HasSubstr("  |   frame 58\n  | ... (summary.json has more)\n"),
            Not(HasSubstr("frame 59\n"))));
}

struct Case {
  const char* name;
  run::Summary summary;
  std::vector<FailedProcess> processes;
  std::vector<std::string> words;
};

std::vector<Case> Cases() {
  using End = wire::JobEnd;
  return {
      {"worker out of memory",
       Failed(End::NO_WORKER_LEFT, "the last worker is dead", {"worker 1"}),
       {Process("worker 1", {.signal = SIGKILL, .maybe_out_of_memory = true},
                {"step 101"})},
       {"worker 1 (pid 4711 on node7) was killed by signal 9 (SIGKILL)",
        "dmesg | grep -i 'out of memory'", "| step 101",
        "worker 0 100, worker 1 101 (steps done)"}},
      {"traceback that the job has",
       WithTraceback(Failed(
           End::STOPPED, "worker 1 has failed: ValueError: odd", {"worker 1"})),
       {Process("worker 1", {.code = 1}, {"ValueError: odd"})},
       {"the program of worker 1 has failed where its traceback says",
        "Where worker 1 failed:", "  | ValueError: odd"}},
      {"traceback in a log alone",
       Failed(End::STOPPED, "worker 0 (pid 1) exited with code 1"),
       {Process("worker 0", {.code = 1},
                {"Traceback (most recent call last):", "ImportError: torch"})},
       {"the program of worker 0 has failed where its traceback says",
        "| ImportError: torch"}},
      {"Python without the package",
       Failed(End::STOPPED, "worker 0 (pid 1) exited with code 1"),
       {Process("worker 0", {.code = 1},
                {"Traceback (most recent call last):",
                 "ModuleNotFoundError: No module named 'slackline'"})},
       {"the Python of the workers has no slackline: install its wheel",
        "--set launch.environment=PYTHONPATH=DIR"}},
      {"script that is not there",
       Failed(End::STOPPED, "worker 0 (pid 1) exited with code 2"),
       {Process("worker 0", {.code = 2}, {"python3: can't open file 'x.py'"})},
       {"mend what the sentence above and the end of the log of worker 0 name",
        "| python3: can't open file"}},
      {"nothing was started",
       Failed(End::NOT_FORMED, "host n1: folder /r cannot be made"),
       {},
       {"What to do: mend what the sentence above names\n"}},
      {"data missing",
       Failed(End::NOT_FORMED,
              "worker 0 did not join within 8000 ms; worker 0 (pid 5) cannot "
              "join: data/mnist is not there",
              {"worker 0"}),
       {},
       {"data/mnist is not there", "who:        worker 0",
        "start all processes again as before, all servers with --new-run\n"}},
      {"server lost without replicas",
       WithCheckpoint(Failed(End::SERVER_LOST,
                             "server 1 is dead, and its shards had no copies",
                             {"server 1"})),
       {},
       {"`replicas: 1`", "on_server_loss: RESTORE", "who:        server 1",
        "checkpoint: step 90 in runs/a/checkpoints/step-90",
        "--new-run --resume=runs/a/checkpoints/step-90"}},
      {"worker lost that the delays need",
       Failed(End::WORKER_LOST, "worker 1 is dead", {"worker 1"}),
       {},
       {"on_server_loss: RESTORE", "who:        worker 1"}},
      {"start timeout",
       Failed(End::NOT_FORMED, "worker 1 on b did not join within 60000 ms",
              {"worker 1"}),
       {},
       {"whether they reach the coordinator", "start_timeout_ms"}},
      {"config refused",
       Failed(End::NOT_FORMED,
              "worker 1 was started with another config than the coordinator",
              {"worker 1"}),
       {Process("worker 1", {.code = 1},
                {"[error] train.seed: its value is 2"})},
       {"mend what the sentence above and the end of the log of worker 1 name",
        "| [error] train.seed: its value is 2"}},
      {"disk full",
       Failed(End::STOPPED, "server 0 cannot go on", {"server 0"}),
       {Process("server 0", {.code = 1},
                {"writing x: No space left on device"})},
       {"make room on the disk (`df -h runs/a`)"}},
      {"gradient that is no number",
       Failed(End::DIVERGED, "worker 0: the loss is nan at step 7",
              {"worker 0"}),
       {},
       {"a smaller learning rate", "nonfinite: SKIP"}},
      {"coordinator gone",
       Failed(End::SERVER_LOST, "server 0 (pid 4711) was killed by signal 9",
              {"server 0"}),
       {Process("server 0", {.signal = SIGKILL}, {})},
       {"server 0 was killed by SIGKILL", "it is empty"}},
      {"own program that never joined",
       Failed(End::STOPPED,
              "worker 1 (pid 4711) exited with code 0 before the job had "
              "started"),
       {Process("worker 1", {.code = 0}, {"bye"})},
       {"the program of worker 1 ended well without having joined the job",
        "slackline.join()"}},
      {"stopped by a user",
       Failed(End::STOPPED, "maintenance"),
       {},
       {"maintenance", "somebody has stopped the job",
        "no process is known to be at fault", "on its standard error"}},
  };
}

TEST(FailurePageTest, NamesTheCulpritAndWhatToDo) {
  for (const Case& each : Cases()) {
    SCOPED_TRACE(each.name);
    const FailureFacts facts = {.folder = "runs/a",
                                .summary = each.summary,
                                .processes = each.processes};
    const std::string page = FailurePage(facts);
    for (const std::string& word : each.words)
      EXPECT_THAT(page, HasSubstr(word));
    EXPECT_THAT(page, AllOf(HasSubstr("The job small has failed."),
                            HasSubstr(each.summary.reason()),
                            HasSubstr("2026-01-02T03:04:05Z, after 12.5 s")));
    const std::vector<std::string> lines =
        absl::StrSplit(FailureInShort(facts), '\n');
    ASSERT_EQ(lines.size(), 3U);
    EXPECT_THAT(page, HasSubstr(lines[0].substr(sizeof("what to do:"))));
    EXPECT_EQ(lines[2], "all that is known: runs/a/failure.txt");
  }
}

// What the config has is not advised, whoever was lost.
TEST(FailurePageTest, WhatTheConfigHasIsNotAdvised) {
  FailedProcess with_host = Process("worker 0", {}, {});
  with_host.lost_with_host = true;
  run::Summary with_copies = Failed(wire::JobEnd::SERVER_LOST, "two are dead");
  with_copies.set_replicas(1);
  const std::vector<FailureFacts> failures = {
      {.folder = "runs/a",
       .summary = Failed(wire::JobEnd::WORKER_LOST, "worker 1 is dead")},
      {.folder = "runs/a",
       .summary = Failed(wire::JobEnd::SERVER_LOST, "server 1 is dead")},
      {.folder = "runs/a", .summary = with_copies},
      {.folder = "runs/a",
       .summary = Failed(wire::JobEnd::SERVER_LOST, "a host is gone"),
       .processes = {with_host}}};
  for (FailureFacts facts : failures) {
    SCOPED_TRACE(facts.summary.reason());
    EXPECT_THAT(FailurePage(facts), HasSubstr("on_server_loss: RESTORE"));
    facts.on_server_loss = config::Checkpoint::RESTORE;
    EXPECT_THAT(FailurePage(facts),
                AllOf(Not(HasSubstr("RESTORE")), HasSubstr("What to do: ")));
  }
}

TEST(FailurePageTest, TheCommandIsTheOneThatIsGiven) {
  const FailureFacts facts = {
      .folder = "runs/a",
      .summary = Failed(wire::JobEnd::SERVER_LOST, "gone"),
      .command = "slackline run x --resume y"};
  // Who gives it has put the logs into the folder, too.
  EXPECT_THAT(FailurePage(facts),
              AllOf(HasSubstr("Then:       slackline run x --resume y\n"),
                    Not(HasSubstr("on its standard error"))));
  EXPECT_THAT(FailureInShort(facts), HasSubstr("then: slackline run x"));
}

TEST(FailurePageTest, WhoeverKnowsBetterSaysWhatToDo) {
  const FailureFacts facts = {
      .folder = "runs/a",
      .summary = Failed(wire::JobEnd::SERVER_LOST, "the cluster is gone"),
      .processes = {Process("server 0", {.signal = SIGKILL}, {})},
      .what_to_do = "begin the cluster again"};
  EXPECT_THAT(FailurePage(facts),
              HasSubstr("What to do: begin the cluster again\n"));
}

TEST(FailurePageTest, StaysAPageHoweverMuchWasSaid) {
  run::Summary summary = Failed(wire::JobEnd::NO_WORKER_LEFT, "gone");
  for (int rank = 2; rank < 1000; ++rank) summary.add_worker()->set_rank(rank);
  for (int rank = 0; rank < 100; ++rank) {
    run::Traceback& traceback = *summary.add_traceback();
    traceback.set_rank(rank);
    for (int i = 0; i < 1000; ++i)
      absl::StrAppend(traceback.mutable_text(), "line ", i, "\n");
  }
  FailureFacts facts = {.folder = "runs/a", .summary = summary};
  const std::vector<std::string> lines(100, std::string(10000, 'x'));
  for (int i = 0; i < 10; ++i) {
    facts.processes.push_back(
        Process(absl::StrCat("worker ", i), {.code = 1}, lines));
  }
  const std::string page = FailurePage(facts);
  EXPECT_LT(page.size(), 32U << 10);
  EXPECT_THAT(page,
              AllOf(HasSubstr("| line 999\n"), Not(HasSubstr("line 979\n")),
                    HasSubstr("and 988 more")));
}

TEST(FailurePageTest, GoesWithTheSummary) {
  const TempFolder folder;
  const std::string page = FailurePath(folder.path());
  ASSERT_TRUE(WriteSummaryFile(folder.path(),
                               Failed(wire::JobEnd::DIVERGED, "nan"),
                               config::Checkpoint::FAIL)
                  .ok());
  EXPECT_TRUE(std::filesystem::exists(page));
  // A suspended run has not failed, nor has a finished one.
  run::Summary other = Failed(wire::JobEnd::SUSPENDED, "SIGTERM");
  ASSERT_TRUE(
      WriteSummaryFile(folder.path(), other, config::Checkpoint::FAIL).ok());
  EXPECT_FALSE(std::filesystem::exists(page));
  ASSERT_TRUE(WriteSummaryFile(folder.path(),
                               Failed(wire::JobEnd::DIVERGED, "nan"),
                               config::Checkpoint::FAIL)
                  .ok());
  other.set_state(wire::JobState_Name(wire::FINISHED));
  ASSERT_TRUE(
      WriteSummaryFile(folder.path(), other, config::Checkpoint::FAIL).ok());
  EXPECT_FALSE(std::filesystem::exists(page));
  // What is put aside takes it along, and a new run removes it.
  ASSERT_TRUE(WriteSummaryFile(folder.path(),
                               Failed(wire::JobEnd::DIVERGED, "nan"),
                               config::Checkpoint::FAIL)
                  .ok());
  const auto aside = PutRunAside(folder.path(), /*with_checkpoints=*/true);
  ASSERT_TRUE(aside.ok()) << aside.status();
  EXPECT_FALSE(std::filesystem::exists(page));
  EXPECT_TRUE(std::filesystem::exists(FailurePath(*aside)));
  ASSERT_TRUE(WriteSummaryFile(folder.path(),
                               Failed(wire::JobEnd::DIVERGED, "nan"),
                               config::Checkpoint::FAIL)
                  .ok());
  ASSERT_TRUE(RunFiles::Create(folder.path(), {.run = 1, .folder = 2}).ok());
  EXPECT_FALSE(std::filesystem::exists(page));
}

std::vector<std::string> NamesOf(const std::vector<LoggedExit>& exits) {
  std::vector<std::string> names;
  for (const LoggedExit& each : exits)
    names.push_back(absl::StrCat(each.exit.pid));
  return names;
}

TEST(FailurePageTest, WhoHasOnlyFollowedIsNotAtFault) {
  const auto exit_of = [](bool worker, int index, int pid) {
    return LoggedExit{.exit = {.member = {.worker = worker, .index = index},
                               .pid = pid,
                               .status = {.code = 1},
                               .error_line = ""},
                      .log_path = ""};
  };
  const std::vector<LoggedExit> exits = {
      exit_of(true, 2, 1),  // Was started again,
      exit_of(true, 0, 2), exit_of(true, 2, 3), exit_of(true, 1, 4),
      exit_of(false, 0, 5)};
  const std::vector<MemberExit> dead = {exits[0].exit, exits[1].exit};
  const run::Summary summary =
      WithTraceback(Failed(wire::JobEnd::STOPPED, "worker 2", {"worker 2"}));
  EXPECT_THAT(NamesOf(ExitsAtFault(summary, exits, dead)),
              ElementsAre("3", "4"));
  // Once the first has failed, the others end by themselves, unless killed.
  const run::Summary nobody = Failed(wire::JobEnd::STOPPED, "worker 0");
  std::vector<MemberExit> first = {exits[1].exit, exits[3].exit};
  EXPECT_THAT(NamesOf(ExitsAtFault(nobody, exits, first)), ElementsAre("2"));
  first[1].status = {.signal = SIGKILL};
  EXPECT_THAT(NamesOf(ExitsAtFault(nobody, exits, first)),
              ElementsAre("2", "4"));
  EXPECT_THAT(
      NamesOf(ExitsAtFault(Failed(wire::JobEnd::STOPPED, "me"), exits, {})),
      ElementsAre());
}

}  // namespace slackline::failure_page_test
