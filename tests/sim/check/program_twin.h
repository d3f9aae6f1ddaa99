// What programs keep in checkpoints: each begins with what it had, and a
// checkpoint has what it was at the cut.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "tests/sim/check/cut_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"
#include "tests/sim/job/sim_checkpoint.h"

namespace slackline::sim {

class ProgramTwin {
 public:
  ProgramTwin(const Scenario& scenario, const ViewTwin& views,
              Findings& findings)
      : scenario_(scenario), views_(views), findings_(findings) {}

  // A worker's program begins, with this of the checkpoint from which the job
  // goes on; and it is done with a step.
  void OnProgramBegins(Rank rank, Incarnation incarnation, bool founder,
                       const std::string& state);
  void OnProgramStep(Rank rank, Incarnation incarnation, Clock clock);
  void CheckPrograms(const TwinCut& cut, const SimCheckpoint& checkpoint);

 private:
  const Scenario& scenario_;
  const ViewTwin& views_;
  Findings& findings_;
  // What they had at first, and the steps that they have done.
  std::map<Life, std::string> program_began_;
  std::map<Life, std::set<Clock>> program_steps_;
};

}  // namespace slackline::sim
