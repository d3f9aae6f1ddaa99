// The agents of a job, one on each of its hosts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
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

// Waits, at most so long. Cancelled: Ctrl-C; Aborted: another signal to end.
// Without `signals` OK at once.
absl::Status CheckSignals(SignalWatch* signals, absl::Duration wait_max);

// Belongs to the thread that made it; its end is the end of all agents and
// their processes.
class RemoteHosts {
 public:
  struct Options {
    RemoteShell shell;
    std::string bin_dir;             // Of slackline on the hosts.
    std::vector<std::string> hosts;  // Each once.
    // What brings this version to the host, as InstallText().
    std::function<std::string(const std::string& host, bool is_there)> install;
    // Sentences for people, while a call waits.
    std::function<void(const std::string& text)> say = {};
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
  // Starts agents anew on hosts where they are lost, for up to `wait_max` from
  // now, since a host may be starting itself. Errors as of Connect().
  absl::Status Reconnect(const std::vector<std::string>& hosts,
                         absl::Duration wait_max, SignalWatch* signals);
  // The same without waiting: begins one try. Then, until it is true, whether
  // the agent is there; an error, as of Connect(), if it is not. `too_late`:
  // one that has not answered is none.
  absl::Status BeginReconnect(const std::string& host);
  absl::StatusOr<bool> HasReconnected(const std::string& host, bool too_late);
  // Of AgentLink::Send(). nullopt: not yet. An error of the agent, or its loss,
  // is the error, and names the host.
  absl::StatusOr<std::optional<agent::Answer>> AnswerTo(const std::string& host,
                                                        uint32_t request,
                                                        bool too_late);

  struct Request {
    std::string host;
    agent::ToAgent message;
  };
  // The answers, in the order of the requests. Errors of agents, or the loss of
  // one, are the error, a line for each host, with the code of the first.
  // Without `signals` nothing interrupts the wait. DeadlineExceeded: an agent
  // has not answered within `wait_max`.
  absl::StatusOr<std::vector<agent::Answer>> Ask(std::vector<Request> requests,
                                                 absl::Duration wait_max,
                                                 SignalWatch* signals);

  // The same with the answer, or the error, of each. Its own error: a signal.
  absl::StatusOr<std::vector<absl::StatusOr<agent::Answer>>> AskEach(
      std::vector<Request> requests, absl::Duration wait_max,
      SignalWatch* signals);
  std::vector<absl::StatusOr<doctor::Reply>> AskDoctors(
      std::vector<HostQuestion> questions, absl::Duration wait_max,
      SignalWatch* signals);

  // From here on files of the hosts are written to the folder. False: they are
  // already.
  bool WriteFilesTo(const std::string& folder);
  // The files of hosts that could not be written to that folder so far.
  std::vector<SentFiles::Missing> MissingFiles() const;

 private:
  explicit RemoteHosts(Options options) : options_(std::move(options)) {}
  absl::Status StartAgent(const std::string& host);
  // The problem of a host whose agent has answered; empty: it will do.
  std::string OtherVersion(const std::string& host,
                           const agent::Hello& hello) const;
  absl::Status AwaitHellos(
      const std::vector<std::string>& hosts, SignalWatch* signals,
      std::map<std::string, std::string>* unreached = nullptr);
  std::string AgentProgram() const;
  // Why no agent answers, of a host whose command has ended.
  std::string WhyNone(const std::string& host, const absl::Status& lost);

  const Options options_;
  std::unique_ptr<SentFiles> files_;
  std::map<std::string, std::unique_ptr<AgentLink>> links_;
  std::map<std::string, agent::Hello> hellos_;
};

}  // namespace slackline
