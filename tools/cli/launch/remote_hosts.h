// The agents of a job, one on each of its hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "tools/cli/agent/agent_link.h"
#include "tools/cli/agent/sent_files.h"
#include "tools/cli/doctor/examination.h"
#include "tools/cli/launch/remote_shell.h"
#include "tools/cli/signals.h"

namespace slackline {

// Belongs to the thread that made it; its end is the end of all agents and
// their processes.
class RemoteHosts {
 public:
  struct Options {
    RemoteShell shell;
    std::string bin_dir;             // Of slackline on the hosts.
    std::vector<std::string> hosts;  // Each once.
  };
  // Starts an agent on each host. Errors name each host on which none answers,
  // or one of another version, and what to do. Aborted: a signal has come.
  // With `unreached` such hosts are there, with what was said of them, and the
  // others are connected.
  static absl::StatusOr<std::unique_ptr<RemoteHosts>> Connect(
      Options options, SignalWatch* signals,
      std::map<std::string, std::string>* unreached = nullptr);
  ~RemoteHosts();
  RemoteHosts(const RemoteHosts&) = delete;
  RemoteHosts& operator=(const RemoteHosts&) = delete;

  const std::vector<std::string>& hosts() const { return options_.hosts; }
  const std::string& engine() const { return options_.shell.name; }
  AgentLink& On(const std::string& host) { return *links_.at(host); }
  // What the agent has said of its host.
  const agent::Hello& About(const std::string& host) const {
    return hellos_.at(host);
  }
  // Anew, of a host whose agent is lost.
  absl::Status Reconnect(const std::string& host);

  struct Request {
    std::string host;
    agent::ToAgent message;
  };
  // The answers, in the order of the requests. An error of an agent, or the
  // loss of one, is the error, and names the host. Without `signals` nothing
  // interrupts the wait. DeadlineExceeded after `wait_max`.
  absl::StatusOr<std::vector<agent::Answer>> Ask(std::vector<Request> requests,
                                                 absl::Duration wait_max,
                                                 SignalWatch* signals);

  // The same with the answer, or the error, of each.
  std::vector<absl::StatusOr<agent::Answer>> AskEach(
      std::vector<Request> requests, absl::Duration wait_max,
      SignalWatch* signals);

  std::vector<absl::StatusOr<doctor::Reply>> AskDoctors(
      std::vector<HostQuestion> questions, absl::Duration wait_max,
      SignalWatch* signals);

  // From here on files of the hosts are written to the folder.
  void WriteFilesTo(const std::string& folder);

 private:
  explicit RemoteHosts(Options options) : options_(std::move(options)) {}
  absl::Status StartAgent(const std::string& host);
  absl::Status AwaitHellos(const std::vector<std::string>& hosts,
                           SignalWatch* signals,
                           std::map<std::string, std::string>* unreached);
  std::vector<uint32_t> SendAll(std::vector<Request>* requests);
  absl::StatusOr<agent::Answer> AwaitAnswer(const std::string& host,
                                            uint32_t number, absl::Time end,
                                            absl::Duration wait_max,
                                            SignalWatch* signals);
  std::string AgentProgram() const;
  // Why no agent answers, of a host whose command has ended.
  std::string WhyNone(const std::string& host, const absl::Status& lost);

  const Options options_;
  std::unique_ptr<SentFiles> files_;
  std::map<std::string, std::unique_ptr<AgentLink>> links_;
  std::map<std::string, agent::Hello> hellos_;
};

}  // namespace slackline
