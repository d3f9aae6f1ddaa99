// A real Slurm for tests, of two nodes on this machine, whose names are
// loopback addresses: others can connect to them by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/processes.h"
#include "tools/cli/run/local_hosts.h"

namespace slackline {

// What a test that needs one says when it is skipped.
inline constexpr char kNoSlurm[] =
    "no Slurm to start processes with: root, and what tools/setup.sh --cluster "
    "installs, are needed";

class SlurmDaemons {
 public:
  static bool AreInstalled();

  // Everything of theirs is in the folder. Waits until both nodes are idle.
  explicit SlurmDaemons(const std::string& folder);
  ~SlurmDaemons();

  static constexpr char kFirst[] = "127.0.0.2";
  static constexpr char kSecond[] = "127.0.0.3";

  // A command that finds them.
  std::vector<std::string> Command(const std::vector<std::string>& words) const;

 private:
  std::unique_ptr<Process> Start(const std::string& name,
                                 const std::vector<std::string>& words) const;
  const std::string folder_;
  std::vector<PortReservation> ports_;
  std::vector<std::unique_ptr<Process>> daemons_;
};

}  // namespace slackline
