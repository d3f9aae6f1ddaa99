// What a mode decides. One file per mode, in this folder; nothing else in the
// project asks which mode it is, but for those who choose one, or advise to.
//
// To add a mode: its message in proto/mode.proto and its block in the config, a
// file here, a line in AllRules(), its row in docs/manual/modes.md, its case in
// mode_test.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/sync/modes/mode_problem.h"
#include "common/sync/modes/step_kind.h"
#include "proto/mode.pb.h"

namespace slackline {

// What a shard must have before it answers a pull.
struct PullNeeds {
  // Every participant's pushes of the clocks before this one.
  Clock of_all = std::numeric_limits<Clock>::min();
  Clock complete = 0;  // All clocks before this one are complete.
  // A turn that is given for the pull, which may be that of any gradient, of an
  // earlier or a later clock.
  bool turn = false;
};

// Immutable, without state: parameters come with each call. `mode` is always
// one of this rule's. Any thread may call anything at any time.
class ModeRule {
 public:
  // A number of the mode, as in "dssp:3:15".
  struct Parameter {
    const char* field;  // An int32 of the mode's block.
    const char* sign;   // What people read, as in "dssp:MIN:MAX".
    int32_t least;      // Below it the text of a mode makes no sense.
  };

  virtual ~ModeRule() = default;

  // ---- How people write it.
  virtual sync::Mode::KindCase kind() const = 0;
  // The name of its block in sync::Mode and in the config.
  std::string name() const;
  // The numbers in the order of the text, each at least the one before.
  virtual absl::Span<const Parameter> parameters() const { return {}; }
  // Appends what is wrong in a job of so many workers.
  virtual void Check(const sync::Mode& mode, int workers,
                     std::vector<ModeProblem>* problems) const;

  // ---- What a step is, of this clock of the job. All steps of a phase are of
  // one kind: who enters it asks for its first.
  virtual StepKind StepOf(Clock) const { return StepKind::kOverServers; }

  // ---- In a job.
  // The mode holds for a job as a whole, from its first step over servers to
  // its last: --mode does not name it, no change leads to it or away from it,
  // and the job cannot end early. The job begins with a new optimizer and keeps
  // its workers: none joins, and the loss of one that is not done is its end.
  bool is_of_whole_job() const { return !whole_job().is.empty(); }
  // How people are told of that; all empty where it is not so.
  struct WholeJob {
    absl::string_view is;       // What is so in it: "delays are given".
    absl::string_view job;      // Such a job: "a job with given delays".
    absl::string_view command;  // The command that begins one.
  };
  virtual WholeJob whole_job() const { return {}; }
  // The delays as --delays has them. Empty: none are given.
  virtual std::string GivenDelaysOf(const sync::Mode&) const { return ""; }

  // ---- At a shard.
  // When gradients become updates (server/shard/update_order.h).
  enum class Updates {
    kAtOnce,   // Each as it comes, after the rule for stale gradients.
    kByClock,  // All of a clock wait for each other and make one update.
    kAsGiven,  // Each in its turn.
  };
  virtual Updates updates() const { return Updates::kAtOnce; }
  bool holds_gradients() const { return updates() == Updates::kByClock; }
  // A clock of gradients that wait can do without so many workers. A gradient
  // that comes after its clock is complete is dropped.
  virtual int spare_workers(const sync::Mode&) const { return 0; }
  // What a pull of `clock` needs.
  virtual PullNeeds NeedsOf(const sync::Mode& mode, Clock clock) const = 0;
  // What every pull of the next phase needs, which begins at `from`.
  virtual PullNeeds NeedsAfter(Clock) const { return {}; }
  // Steps by which the leading worker may exceed what NeedsOf() says, as long
  // as measured speeds make it wait less (DsspController).
  virtual int64_t extra_steps(const sync::Mode&) const { return 0; }

  // A worker that is slower than the others holds them up: in each step, or
  // once they lead it by the bound. Else they go on, with or without its
  // gradients, or it is given by how much they wait.
  virtual bool waits_for_slowest() const { return true; }

  // ---- At a worker.
  // A shard may be at a clock that this worker has not reached; the worker then
  // leaves out the steps up to there.
  virtual bool skips_ahead() const { return false; }
};

// The rules of all modes, in the order in which people are told of them.
absl::Span<const ModeRule* const> AllRules();
// The rule of the mode. No mode, or one that is not known, has BSP's, whose
// workers all wait for each other.
const ModeRule& RuleOf(const sync::Mode& mode);
// nullptr: there is no such mode.
const ModeRule* FindRule(absl::string_view name);

// One of each, from the file of its name.
const ModeRule& BspRule();
const ModeRule& SspRule();
const ModeRule& DsspRule();
const ModeRule& AspRule();
const ModeRule& BackupRule();
const ModeRule& AllReduceRule();
const ModeRule& DelaysRule();

// For modes with a bound of staleness: appends a problem unless it is in
// [0, kStalenessBoundMax].
void CheckStaleness(const char* field, int64_t value,
                    std::vector<ModeProblem>* problems);

}  // namespace slackline
