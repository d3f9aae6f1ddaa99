// The nodes of a Ray cluster that a job gets, and the way to them: a program in
// Python that is a part of this one (ray_bridge.py).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/io/descriptor.h"
#include "proto/cluster.pb.h"
#include "tools/cli/launch/remote_shell.h"
#include "tools/cli/process.h"
#include "tools/cli/signals.h"

namespace slackline {

// The text of ray_bridge.py.
extern const char kRayBridgeText[];

// Belongs to the thread that made it. Its end gives the nodes back, and ends
// what runs there.
class RayBridge {
 public:
  struct Options {
    config::ClusterConfig config;  // Placed, on hosts or on as many stand-ins.
    // The hosts of the config are nodes of Ray, and no others will do.
    bool on_these_hosts = false;
    // Sentences for people, while a call waits.
    std::function<void(const std::string& text)> say = {};
  };
  // Starts the program, and asks for the nodes. InvalidArgument: more are asked
  // for than can have a process. NotFound: there is no such Python.
  static absl::StatusOr<std::unique_ptr<RayBridge>> Start(Options options);
  ~RayBridge();
  RayBridge(const RayBridge&) = delete;
  RayBridge& operator=(const RayBridge&) = delete;

  // The config that was given, with the addresses of nodes for its hosts, once
  // all are there. Cancelled, Aborted: a signal has come. Others say what Ray
  // has, and what to do.
  absl::StatusOr<config::ClusterConfig> AwaitNodes(SignalWatch* signals);
  // The same after the loss of some, in whose places Ray gives others.
  absl::StatusOr<config::ClusterConfig> ReplaceNodes(SignalWatch* signals);

  // After the loss of some: whether the cluster as a whole is gone, as a
  // sentence that names it; empty: it is there.
  std::string WhyGone();
  // What tells whether it is there again.
  std::string LookCommand() const;

  // Leads to the hosts of the config that was returned last, while this lives.
  RemoteShell Shell() const;

 private:
  explicit RayBridge(Options options) : options_(std::move(options)) {}
  absl::Status StartProgram();
  std::string Request() const;
  absl::Status Say(const std::string& line);
  absl::StatusOr<config::ClusterConfig> AwaitHosts(SignalWatch* signals);
  std::string GoneText(const std::string& why) const;
  // nullopt: no whole line has come.
  absl::StatusOr<std::optional<std::string>> NextLine();
  std::vector<std::string> Words(const std::string& verb) const;

  const Options options_;
  std::vector<std::string> hosts_;  // Of the config that was given.
  std::string python_;              // Its path.
  std::string name_;                // Of the socket of the program.
  std::string head_;                // Of the cluster, HOST:PORT, once known.
  Descriptor text_;                 // Files in memory.
  Descriptor errors_;
  Descriptor to_;
  Descriptor from_;
  bool answers_ = false;  // It has said something.
  std::string received_;
  std::optional<ChildProcess> child_;
};

// The config with other hosts: `from[i]` is `to[i]` now.
config::ClusterConfig WithHosts(config::ClusterConfig config,
                                const std::vector<std::string>& from,
                                const std::vector<std::string>& to);

}  // namespace slackline
