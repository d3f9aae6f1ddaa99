// Hosts whose agents were lost, and the processes that are to be started there
// once agents answer again. Nothing here waits: Poll() goes on with each.
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
#include "tools/cli/launch/remote_hosts.h"
#include "tools/cli/members/supervisor.h"

namespace slackline {

// A host that starts anew takes a minute or two.
inline constexpr absl::Duration kHostReturnMax = absl::Minutes(5);

// Belongs to the thread of its cluster.
class ReturningHosts {
 public:
  // A message, and what has to live until it is answered.
  struct BeginRequest {
    agent::ToAgent message;
    std::shared_ptr<void> needs;
  };
  struct Options {
    std::function<absl::StatusOr<BeginRequest>(const std::string& host)> begin;
    // OK: this answer to it will do.
    std::function<absl::Status(const std::string& host,
                               const agent::Answer& answer)>
        check;
    std::function<agent::ToAgent(const JobProcess& member)> start;
  };
  ReturningHosts(Options options, RemoteHosts* hosts)
      : options_(std::move(options)), remote_(hosts) {}

  bool Awaits(const std::string& host) const { return hosts_.count(host) > 0; }
  // To be started on a host whose agent was lost.
  void Add(const std::string& host, const JobProcess& member, absl::Time now);
  // True: it was to be started, and is not any more.
  bool Drop(const JobProcess& member);

  struct Started {
    JobProcess member;
    int pid = 0;
  };
  struct Failed {
    std::string host;
    JobProcess member;
    std::string why;
  };
  struct Progress {
    std::vector<Started> started;
    std::vector<Failed> failed;  // For good.
    std::vector<std::string> notes;
  };
  Progress Poll(absl::Time now);

 private:
  enum class State { kWaits, kConnects, kBegins, kStarts };
  struct Host {
    State state = State::kWaits;
    absl::Time give_up_at;
    absl::Time next_try;
    absl::Time state_until;  // What is not there by then does not come.
    int tries = 0;
    std::vector<JobProcess> members;  // Not asked for yet.
    uint32_t begin = 0;               // The number of the request.
    std::shared_ptr<void> needs;
    std::map<uint32_t, JobProcess> starts;
  };
  void Try(const std::string& name, absl::Time now, Host* host);
  void OnTryFailed(const std::string& name, const std::string& why,
                   absl::Time now, Host* host, Progress* progress);
  void PollHello(const std::string& name, absl::Time now, Host* host,
                 Progress* progress);
  void PollBegin(const std::string& name, absl::Time now, Host* host,
                 Progress* progress);
  void PollStarts(const std::string& name, absl::Time now, Host* host,
                  Progress* progress);

  const Options options_;
  RemoteHosts* const remote_;
  std::map<std::string, Host> hosts_;
};

}  // namespace slackline
