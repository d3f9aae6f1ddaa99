// CutDuties: when a worker has to keep its part of a checkpoint: the state of
// the steps by all-reduce, and its program's state. The worker's side of
// docs/protocols/checkpoint.md.
//
// Of each cut a worker keeps each part at most once. Deterministic state
// machine without I/O. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>

#include "common/ids.h"
#include "common/view/shard_map.h"
#include "worker/core/worker_actions.h"

namespace slackline {

class CutDuties {
 public:
  // This worker begins with `view`. Who joins after a cut has promised nothing,
  // and nobody waits for its state.
  void Begin(const View& view) { program_cut_ = view.proto().cut().number(); }

  // The worker steps by all-reduce, is the chief, and is at `clock`: whether
  // the state there is that of a checkpoint.
  std::optional<worker_action::KeepState> KeepStateAt(const View& view,
                                                      Clock clock);
  // The worker of this incarnation is at `clock`: whether it is at its limit in
  // a checkpoint, or was taken beyond that since its last step. Only for
  // workers whose program's state is kept.
  std::optional<worker_action::KeepProgram> KeepProgramAt(const View& view,
                                                          Incarnation self,
                                                          Clock clock);

 private:
  int32_t kept_cut_ = 0;  // The last one whose state was kept.
  // The last one of which the program's state was kept, or is not wanted.
  int32_t program_cut_ = 0;
};

}  // namespace slackline
