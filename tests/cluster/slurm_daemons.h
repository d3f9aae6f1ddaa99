// A real Slurm for tests, of three nodes on this machine, whose names are
// loopback addresses: others can connect to them by name. Jobs of the partition
// "high" preempt those of "low", which is the default, and these are queued
// again.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/processes.h"
#include "tools/cli/members/local_hosts.h"

namespace slackline {

// What a test that needs one says when it is skipped.
inline constexpr char kNoSlurm[] =
    "no Slurm to start processes with: root, and what tools/setup.sh --cluster "
    "installs, are needed";

class SlurmDaemons {
 public:
  static bool AreInstalled();

  // Everything of theirs is in the folder. Waits until all nodes are idle.
  explicit SlurmDaemons(const std::string& folder);
  ~SlurmDaemons();

  static constexpr char kFirst[] = "127.0.0.2";
  static constexpr char kSecond[] = "127.0.0.3";
  static constexpr char kThird[] = "127.0.0.4";
  // Of each node, whatever this machine has.
  static constexpr int kProcessors = 6;

  // A command that finds them.
  std::vector<std::string> Command(const std::vector<std::string>& words) const;
  // What a program of Slurm says, which must end well.
  std::string Ask(const std::vector<std::string>& words) const;

  // As if the node lost its power: its daemon and all processes there are
  // killed. Slurm is told that it is down, as it would find out by itself.
  void KillNode(const std::string& node);

 private:
  std::unique_ptr<Process> Start(const std::string& name,
                                 const std::vector<std::string>& words) const;
  const std::string folder_;
  // A short name for a folder in it: a socket there has a path of up to 107
  // characters.
  const std::string spool_;
  std::vector<PortReservation> ports_;
  std::vector<std::unique_ptr<Process>> daemons_;
  std::map<std::string, Process*> daemon_of_node_;
};

}  // namespace slackline
