// Where the processes of a job run: what `slackline run` asks of that place
// before it starts them there.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "tools/cli/display.h"
#include "tools/cli/members/cluster.h"
#include "tools/cli/members/member_launch.h"
#include "tools/cli/run/run_options.h"
#include "tools/cli/signals.h"

namespace slackline {

// The calls come in this order. Belongs to one thread, and outlives the
// clusters that it starts.
class JobPlace {
 public:
  virtual ~JobPlace() = default;

  // What can be said without going there.
  virtual absl::Status Check() = 0;
  // The folder of the data, as on this machine.
  virtual absl::StatusOr<std::string> FindData() = 0;
  // Of an engine that gives hosts for stand-ins: puts them into `config`, which
  // is that of PlaceOf(), once it has them all. A signal ends the wait.
  virtual absl::Status FindHosts(SignalWatch* /*signals*/,
                                 config::ClusterConfig* /*config*/) {
    return absl::OkStatus();
  }
  // After the loss of hosts, while no cluster is there: true if the engine has
  // given others, which are in `config`, and everything from Connect() on comes
  // again.
  virtual absl::StatusOr<bool> ReplaceHosts(SignalWatch* /*signals*/,
                                            config::ClusterConfig* /*config*/) {
    return false;
  }
  // After the end of a job that has failed: an engine that is gone as a whole;
  // empty: nothing is known of that.
  struct Gone {
    std::string why = {};
    std::string what_to_do = {};
  };
  virtual Gone WhatIsGone() { return {}; }
  // Goes there. A signal ends the attempt.
  virtual absl::Status Connect(SignalWatch* signals) = 0;
  // A port for the coordinator: `port`, which has to be free there, or for 0
  // any free one, which stays so while this lives.
  virtual absl::StatusOr<int> ReservePort(int port) = 0;
  // Refuses, or warns of, a job that is too large.
  virtual absl::Status CheckCapacity(const std::string& data_dir) = 0;
  // Refuses a job that could not start there, with a line for each cause:
  // names, ports, connections, limits and versions. Takes milliseconds where
  // nothing is wrong.
  virtual absl::Status CheckHosts(int coordinator_port) = 0;
  // Starts all processes. `launch` has the paths of this machine, and `config`
  // is that of launch.cluster_file.
  virtual absl::StatusOr<std::unique_ptr<Cluster>> Start(
      const LaunchOptions& launch, const config::ClusterConfig& config) = 0;
  // "\nhosts: n1, n2 (ssh)"; empty: this machine.
  virtual std::string Text() const { return ""; }
};

// As the config's launch block says. What is given outlives the result, and the
// config is read whenever it is asked for.
std::unique_ptr<JobPlace> PlaceOf(const RunOptions& options,
                                  const config::ClusterConfig& config,
                                  Display* display);

}  // namespace slackline
