// All server and worker processes of a job, wherever they run.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cli/members/supervisor.h"

namespace slackline {

// Belongs to the thread that started it; its end is the end of all processes.
class Cluster {
 public:
  virtual ~Cluster() = default;

  // Those that have ended since the last call.
  virtual std::vector<MemberExit> Reap() = 0;
  // Starts a process of a running job that has ended once more, with a log of
  // its own. A server begins empty, whatever the job goes on from; server 0
  // goes on with the job. False: its host is away, and it is started once the
  // host is back; until then it counts as running.
  virtual absl::StatusOr<bool> Restart(const JobProcess& member) = 0;
  virtual void Signal(const JobProcess& member, int signal) = 0;
  virtual void SignalAllBut(const JobProcess& member, int signal) = 0;
  // Of the latest start of the process, on this machine.
  virtual std::string LogPath(const JobProcess& member) const = 0;
  // Sentences for people, since the last call.
  virtual std::vector<std::string> TakeNotes() { return {}; }
  // Files of the run that are on other hosts and could not be written here so
  // far, in a sentence that says where they are and why; empty: there is none.
  virtual std::string MissingFiles() { return ""; }
  // The key files in the folder of the run are others now. They are taken to
  // where processes have files of their own.
  virtual void ExchangeKeys() {}
};

}  // namespace slackline
