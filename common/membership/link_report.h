// LinkReport: what a member says, while its job forms, of whom it can connect
// to.
//
// Deterministic state machine: its driver tries the connections.
// Thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/wire.pb.h"

namespace slackline {

class LinkReport {
 public:
  // Whether these are to be tried from now on, in place of those before.
  bool OnTryLinks(const wire::TryLinks& links, absl::Time now);
  // What has come of it so far. False: of others than those to be tried.
  bool OnTried(const wire::LinksTried& tried);
  // For the next heartbeat.
  const std::optional<wire::LinksTried>& tried() const { return tried_; }
  // Says whom it cannot connect to, once, when it has tried for longer than the
  // lease.
  void SayWhomItMisses(absl::Time now, absl::Duration lease,
                       std::vector<std::string>* log);

 private:
  std::optional<wire::TryLinks> links_;
  absl::Time since_;
  std::optional<wire::LinksTried> tried_;
  bool said_ = false;
};

}  // namespace slackline
