// Elastic sampling: every example of the job is done once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/example_range.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_twin.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

class ExampleTwin {
 public:
  ExampleTwin(const Scenario& scenario, const ViewTwin& views,
              Findings& findings)
      : scenario_(scenario), views_(views), findings_(findings) {}

  void OnStepBegun(const Life& life, Clock clock,
                   const std::optional<ExampleRange>& examples);
  // The step was begun with examples.
  bool Has(const Contribution& step) const { return examples_.count(step) > 0; }
  // Steps that the twin's shard owes nothing for.
  void AddWithoutEffect(const ShardTwin& twin,
                        std::set<Contribution>* contained) const;
  // All examples of the job are in what `contained` led to, once, but for those
  // who died.
  void CheckContained(const std::set<Contribution>& contained,
                      const std::string& where);
  // As many examples are done as the coordinator says, if nobody has died,
  // whose last ones nobody knows; of a job that is ended early not fewer.
  void CheckDone(int64_t done);

 private:
  const Scenario& scenario_;
  const ViewTwin& views_;
  Findings& findings_;
  std::map<Contribution, ExampleRange> examples_;  // Of a step.
};

}  // namespace slackline::sim
