// Asks the hosts of a job what a diagnosis is made of, in the order in which
// one answer leads to the next question.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/doctor.pb.h"

namespace slackline {

struct HostQuestion {
  std::string host;
  doctor::Question question;
};
// The reply, or the error, of each, in their order; IsInterruption(): a signal
// has come.
using AskHosts = std::function<std::vector<absl::StatusOr<doctor::Reply>>(
    std::vector<HostQuestion> questions, absl::Duration wait_max)>;

// Cancelled, by Ctrl-C, or Aborted, by another signal.
bool IsInterruption(const absl::Status& status);

class Examination {
 public:
  // `job` has the hosts; `facts` in the end has what they said.
  Examination(doctor::Job job, AskHosts ask);

  const doctor::Job& job() const { return facts_.job(); }
  // What is known of this machine, and of hosts that cannot be asked.
  doctor::Facts& facts() { return facts_; }
  void SetUnreached(const std::string& host, const std::string& why) {
    HostOf(host)->set_unreached(why);
  }

  // Of all: IsInterruption(), and nothing else. A host that does not answer is
  // unreached. Asks every host one question.
  absl::Status AskAll(
      absl::Duration wait_max,
      const std::function<doctor::Question(const doctor::HostNeed&)>& question);
  // Every host listens where its processes will.
  absl::Status OpenDoors();
  // And does so no more.
  absl::Status CloseDoors();
  // In rounds, in each of which every host tries one other, so that no two
  // measure at one host. `from_here`: this machine tries the coordinator.
  absl::Status MeasurePairs(bool from_here);
  // All at once, and nothing is measured.
  absl::Status TryPairs(bool from_here);

 private:
  doctor::Host* HostOf(const std::string& name);
  const doctor::HostNeed* NeedOf(const std::string& name) const;
  std::vector<std::string> Reached() const;
  // The doors of `to` that are open, and at which processes of host `from` will
  // connect; empty: this machine, which follows the job at its coordinator.
  doctor::Try TargetsAt(const std::string& from, const doctor::Host& to,
                        bool transfer) const;
  // Calls `take` with the place and the reply of each host whose reply can be
  // used; others are unreached. IsInterruption(), and nothing else.
  absl::Status ForEachReply(
      const std::vector<std::string>& hosts,
      std::vector<absl::StatusOr<doctor::Reply>> replies,
      const std::function<void(size_t, doctor::Reply)>& take);
  void TryFromHere(bool transfer);

  const AskHosts ask_;
  doctor::Facts facts_;
};

// What would keep the job from its start, as far as a few milliseconds tell it:
// names, ports, connections, limits, and the versions of Slackline's programs
// on other hosts. FailedPrecondition has a line for each. The doors are closed
// again.
absl::Status CheckHosts(doctor::Job job, bool from_here, const AskHosts& ask);

}  // namespace slackline
