// ClockAgreement: how the workers of a job agree on a clock at which something
// happens to all of them: another mode begins, the job ends early, or a
// checkpoint is cut (docs/protocols/mode-change.md). Who wants what and when,
// and what becomes of the clock, is that of its three users: ModeChanger,
// EarlyEnd and CutAgreement.
//
// What is wanted waits until no shard moves. Then the view has it as `change`,
// and each worker promises a clock at which it stops until it knows more. When
// all promises are here, and where those who are gone have got to, the largest
// of these clocks is one that nobody has passed. One agreement at a time.
//
// What workers and servers say is taken down in any order and any number of
// times. Deterministic state machine. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "proto/control.pb.h"
#include "proto/coordinator_state.pb.h"
#include "proto/view.pb.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class ClockAgreement {
 public:
  // A live worker, and what it said last of itself.
  struct Worker {
    int32_t rank = 0;
    Incarnation incarnation = 0;
    Clock clock = 0;
    bool done = false;
  };
  struct Wish {
    wire::ModeChange to;  // Another mode, the end of the job, or a cut.
    std::string reason;   // Who wants it, and why.
  };
  // Where the workers stop that the open agreement waits for.
  struct Limits {
    // Each one's clock; that of a worker that is done is the end.
    std::vector<Clock> of;
    // The largest of these, and of where those who are gone have got to, as far
    // as somebody has to get there.
    Clock largest = 0;
    bool all = true;  // False: some are not known yet.
  };

  // nullopt: nothing is wanted. What is wanted stays so until Close().
  const std::optional<Wish>& wish() const { return wish_; }
  bool IsOn(wire::ModeChange::ToCase what) const {
    return wish_.has_value() && wish_->to.to_case() == what;
  }
  // Nothing else is wanted.
  void Want(Wish wish);
  // Puts the wish in the view if there is one that is not there yet, and no
  // shard moves. True if the view changed.
  bool Open(ViewEditor* editor);
  // The clock is in the view, or there will be none.
  void Close(ViewEditor* editor);

  // A worker promises where it stops. Late, or of another agreement: ignored.
  void OnStepLimit(Incarnation incarnation, const wire::StepLimit& limit,
                   const wire::View& view);
  // The worker is no longer a member, as the view of this number is the first
  // to tell.
  void OnGone(Incarnation incarnation, uint64_t view_number);
  // How far the shards of this server were when its threads had seen the view
  // of this number (run::ServerStats).
  void OnServer(int32_t server, uint64_t seen_view, Clock reached);
  // Another phase is listed: all who are here have to get beyond whoever is
  // gone.
  void ForgetTheGone() { gone_in_ = 0; }

  // The view has the wish.
  Limits LimitsOf(const std::vector<Worker>& workers,
                  const ViewEditor& editor) const;

  // For the next coordinator. How far servers are they say anew.
  void Keep(coordinator::ModesState* state) const;
  void Load(const coordinator::ModesState& state);

 private:
  struct Reached {
    uint64_t seen_view = 0;
    Clock clock = 0;
  };

  // No shard is beyond this clock because of a worker that has gone. nullopt:
  // that is not known yet.
  std::optional<Clock> ReachedByTheGone(const ViewEditor& editor) const;

  std::optional<Wish> wish_;
  std::map<Incarnation, Clock> limits_;  // Promises, to the open agreement.
  // The first view without whoever has gone last; 0: nobody has since the last
  // change of the mode was listed.
  uint64_t gone_in_ = 0;
  std::map<int32_t, Reached> servers_;  // By index.
};

// The worker may have completed all of its steps before it hears of an
// agreement.
bool IsAboutToEnd(const ClockAgreement::Worker& worker, const wire::View& view);
// This clock, or the first one after it at which no phase begins. Where one
// begins, some may have left the one before. To end there they would have to
// come into the next; and a cut there would be in two phases.
Clock ClockWithoutBeginning(Clock clock, const wire::View& view);
// Why a change is dropped, as `what` says: its clock would be beyond the end.
std::string TooLateText(const std::string& what, const wire::View& view);

}  // namespace slackline
