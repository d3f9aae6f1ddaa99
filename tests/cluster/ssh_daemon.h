// A real sshd for tests, with keys of its own, at several loopback addresses
// that stand for hosts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/processes.h"
#include "tools/cli/members/local_hosts.h"

namespace slackline {

// What a test that needs one says when it is skipped.
inline constexpr char kNoSshd[] =
    "no sshd to start processes with: tools/setup.sh --cluster installs it";

class SshDaemon {
 public:
  // Its path; empty: it is not installed.
  static std::string Program();

  // Makes its keys in the folder, and waits until it listens.
  explicit SshDaemon(const std::string& folder);

  // Addresses of the daemon.
  static constexpr char kFirst[] = "127.0.0.2";
  static constexpr char kSecond[] = "127.0.0.3";
  // Where it listens as well, and whose key nobody knows, or another one.
  static constexpr char kUnknown[] = "127.0.0.4";
  static constexpr char kChanged[] = "127.0.0.5";

  // Nobody gets in any more; who is in, stays.
  void Stop() { daemon_.reset(); }
  void Start();

  int port() const { return port_.port(); }
  // The block ssh of a config, by which `slackline run` gets in.
  std::string Block() const { return BlockWithKey("user"); }
  // With a key that the daemon does not accept.
  std::string BlockWithOtherKey() const { return BlockWithKey("other"); }

 private:
  std::string BlockWithKey(const std::string& key) const;
  const std::string folder_;
  const PortReservation port_;
  std::unique_ptr<Process> daemon_;
};

}  // namespace slackline
