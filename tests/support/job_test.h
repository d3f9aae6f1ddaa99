// Fixture for tests that run whole jobs: the three programs as real processes,
// in a folder of the test. Afterwards no process may be left; if the test has
// failed, the folder with all logs stays and is named.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"
#include "tests/support/processes.h"
#include "tools/cli/members/local_hosts.h"

namespace slackline {

// Jobs of these tests take seconds; machines that test are busy.
inline constexpr absl::Duration kJobMax = absl::Seconds(90);
inline constexpr char kEndedWell[] = "exited with code 0";
inline constexpr char kFailed[] = "exited with code 1";

struct SmallJobOptions {
  int workers = 4;
  std::string train = "epochs: 3 seed: 1";  // The block's text.
  int lease_ms = 5000;                      // Time for a machine that is busy.
};
// Text of a config: 2 servers, a small net on generated data, 400 / workers
// steps per epoch. Without a coordinator port, which `slackline run` picks.
std::string SmallJob(const SmallJobOptions& options = {});

class JobTest : public ::testing::Test {
 protected:
  JobTest();
  ~JobTest() override;

  std::string Path(const std::string& name) const;
  // Writes a file in the test's folder; returns its path.
  std::string Write(const std::string& name, const std::string& text) const;
  // Writes SmallJob() with a coordinator port that is free, and stays so for
  // the length of the test.
  std::string WriteWithPort(const std::string& name, const std::string& text);

  // `slackline ARGUMENTS`, with its output in NAME.log.
  std::unique_ptr<Process> StartTool(const std::string& name,
                                     const std::vector<std::string>& arguments);
  // `slackline run` with its folder at Path(name).
  std::unique_ptr<Process> StartRun(
      const std::string& name, const std::string& config,
      const std::vector<std::string>& arguments = {});
  // A run that must end well.
  void Run(const std::string& name, const std::string& config,
           const std::vector<std::string>& arguments = {});
  // slackline_server or slackline_worker, with its files in Path(out) and its
  // output in NAME.log.
  std::unique_ptr<Process> StartMember(
      const std::string& name, const std::string& program, int index,
      const std::string& cluster_file, const std::string& out,
      const std::vector<std::string>& arguments = {});
  // slackline_replay, with its folder at Path(name).
  std::unique_ptr<Process> StartReplay(
      const std::string& name, const std::string& cluster_file,
      const std::string& delays,
      const std::vector<std::string>& arguments = {});
  // All members of SmallJob(), servers first.
  std::vector<std::unique_ptr<Process>> StartSmallJobByHand(
      const std::string& cluster_file, const std::string& out,
      const std::vector<std::string>& arguments = {});

  // Asks the coordinator of the config until `accept`; waits for the file, too.
  // nullopt, and a failure with the last status, after `wait_max`.
  std::optional<wire::StatusReply> AwaitStatus(
      const std::string& cluster_file, absl::Duration wait_max,
      const std::function<bool(const wire::StatusReply&)>& accept);
  // Until each worker has completed some steps, so that the job is in its
  // midst.
  std::optional<wire::StatusReply> AwaitProgress(
      const std::string& cluster_file);

  // Until the process has joined as this worker, and has completed some steps:
  // the one of before may still be listed.
  std::optional<wire::StatusReply> AwaitNewWorker(
      const std::string& cluster_file, int rank, pid_t before);
  // Ends the run with its folder at Path(name) early, by `slackline stop`,
  // which must end well, and so must the run. How many steps each worker
  // completes that is there. A test that waits for events takes a job that is
  // far too long, and ends it when they have come: no machine is too slow for
  // them.
  int64_t EndEarly(const std::string& name, Process* run);

  // Runs the commands of a page of docs/manual/ that begin with `slackline `,
  // in the test's folder, with examples/ beside it; each must end well. How
  // many there are.
  int RunCommandsOfPage(const std::string& page);

  // None of the processes that mention the test's folder may be left shortly
  // after this call.
  void ExpectNoProcessLeft() const;

 private:
  std::string folder_;
  std::vector<PortReservation> ports_;
};

// 0, and a failure, if the status does not have it.
pid_t WorkerPid(const wire::StatusReply& status, int rank);
pid_t ServerPid(const wire::StatusReply& status, int index);
// To a process that `slackline run` has started for this test.
void SignalProcess(pid_t pid, int signal);

}  // namespace slackline
