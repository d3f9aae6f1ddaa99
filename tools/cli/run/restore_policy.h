// RestorePolicy: whether a job that has failed is started again from its last
// checkpoint, as checkpoint { on_server_loss: RESTORE } asks for.
//
// Deterministic: no processes, files or clocks. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/view.pb.h"
#include "tools/cli/members/supervisor.h"

namespace slackline {

class RestorePolicy {
 public:
  // So often in a row a job may be lost without a newer checkpoint; then
  // whatever kills it will do so again.
  static constexpr int kLossesMax = 3;

  // How a run of the job has failed.
  struct End {
    // Of its summary, or as the supervisor knows it if there was none.
    wire::JobEnd::Cause cause = wire::JobEnd::CAUSE_UNSPECIFIED;
    std::vector<std::string> about;  // As in the summary: "worker 2".
    // It is the coordinator who has decided so.
    bool coordinator_says = false;
    // The user has asked for an end, of this program or of the job, and not
    // only that it be suspended: a job that is lost before it is can be
    // restored.
    bool asked_for = false;
    // These as in Supervisor.
    bool ran = false;
    bool lost_a_process = false;
    std::vector<MemberExit> dead;
  };

  // Whether processes were lost, which others can replace; what fails by itself
  // would do so again. The job's ends, in order.
  bool IsLoss(const End& end);
  // After each loss: whether the job may begin again. `newest` is the sequence
  // (checkpoint::Manifest) of the newest checkpoint that this job has written;
  // 0: none.
  bool MayGoOn(uint64_t newest);

 private:
  bool ran_ = false;  // One of the job's runs.
  uint64_t newest_ = 0;
  int losses_ = 0;  // Since then.
};

}  // namespace slackline
