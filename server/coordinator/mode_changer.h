// ModeChanger: what the coordinator knows of the job's phases: which are
// planned, which change is wanted or under way, and how far each worker has
// come with it (docs/protocols/mode-change.md). It lets the workers agree on
// one thing after the other: another mode, a cut (cut_agreement.h), and an
// early end (early_end.h), which are changes, too: after a cut the mode is as
// before, and an end is a change to nothing.
//
// A change is wanted (perhaps until moves of shards are done), then open (the
// view has `change`, workers promise where they stop), then it has a clock (the
// view has the phase, the end, or the cut), then all workers have entered the
// phase, or all shards have made the cut. One at a time; an early end and a cut
// wait for a change that has begun, and an early end for a cut.
//
// What workers say is taken down when it comes, in any order and any number of
// times; Advance() draws the conclusions, as edits of the view. Deterministic
// state machine. Thread-compatible.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/sync/modes/mode.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/coordinator_state.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/clock_agreement.h"
#include "server/coordinator/cut_agreement.h"
#include "server/coordinator/early_end.h"
#include "server/coordinator/job_delays.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class ModeChanger {
 public:
  using Worker = ClockAgreement::Worker;
  struct News {
    bool view_changed = false;
    std::vector<run::ModeRecord> changes;  // Done ones, to be kept.
    std::vector<std::string> log;          // Sentences for people.
    // Why the cut that was wanted will not be; empty: it will, or it is none.
    std::string cut_dropped;
  };

  // `delays` outlives it.
  ModeChanger(const config::Sync& sync, JobDelays* delays)
      : sync_(sync),
        delays_(delays),
        cut_(&agreement_, delays),
        end_(&agreement_) {}
  ModeChanger(const ModeChanger&) = delete;
  ModeChanger& operator=(const ModeChanger&) = delete;

  // The job begins to run: lists the config's phases in the view, which has the
  // steps already. Returns sentences about phases that will not be.
  std::vector<std::string> Start(ViewEditor* editor);

  // OK, or why the mode cannot change now, whatever to; UNAVAILABLE for what
  // passes.
  absl::Status MayChange(const wire::View& view,
                         const std::vector<Worker>& workers) const;
  // The mode is to change, as soon as no shard moves. Only if MayChange() is
  // OK. `reason` says who wants it and why.
  void Want(const sync::Mode& mode, const std::string& reason);

  // The job is to end early, or is to be cut (only if MayCut() is OK).
  EarlyEnd& end() { return end_; }
  const EarlyEnd& end() const { return end_; }
  CutAgreement& cut() { return cut_; }
  const CutAgreement& cut() const { return cut_; }
  // OK, or why no cut can be made any more.
  absl::Status MayCut(const wire::View& view,
                      const std::vector<Worker>& workers) const;
  // Calls of workers. What is repeated, late or of another change is no error
  // and changes nothing.
  void OnStepLimit(Incarnation incarnation, const wire::StepLimit& limit,
                   const wire::View& view) {
    agreement_.OnStepLimit(incarnation, limit, view);
  }
  void OnArrive(Incarnation incarnation, const wire::Arrive& arrive,
                const wire::View& view);
  // The end of the job if the workers' models differ.
  std::optional<wire::JobEnd> OnEntered(int32_t rank, Incarnation incarnation,
                                        const wire::Entered& entered,
                                        const wire::View& view);

  // The worker is no longer a member, as the view of this number is the first
  // to tell.
  void OnGone(const Worker& worker, uint64_t view_number);
  // How far the shards of this server were (ClockAgreement::OnServer()).
  void OnServer(int32_t server, uint64_t seen_view, Clock reached) {
    agreement_.OnServer(server, seen_view, reached);
  }

  // Brings the view up to what is known. Call it after each of the calls above,
  // when a worker has gone or is done, and when moves are done. `seconds`:
  // since the job began to run.
  News Advance(const std::vector<Worker>& workers, double seconds,
               ViewEditor* editor);

  // OK, or why no shard may start to move; UNAVAILABLE for what passes.
  absl::Status MayMove(const wire::View& view,
                       const std::vector<Worker>& workers) const;
  // Empty, or why no worker can join just now: the others have completed a
  // phase by all-reduce, where it would be alone, and share out among
  // themselves what the servers need to know.
  static std::string WhyNoneJoins(const wire::View& view);

  // For the next coordinator. How far servers are they say anew.
  void Keep(coordinator::ModesState* state) const;
  void Load(const coordinator::ModesState& state);

  const std::deque<run::ModeRecord>& last_changes() const {
    return last_changes_;
  }
  int32_t changes() const { return changes_; }

 private:
  struct Report {
    int32_t rank = 0;
    Incarnation incarnation = 0;
    wire::Entered entered;
  };

  // Each true if the view changed.
  bool Begin(ViewEditor* editor);
  bool Settle(const std::vector<Worker>& workers, ViewEditor* editor,
              News* news);
  // The change to another mode is open. True once the view has the phase, or it
  // is dropped.
  bool SettleChange(const ClockAgreement::Limits& limits, ViewEditor* editor,
                    std::vector<std::string>* log);
  bool Gather(const std::vector<Worker>& workers, ViewEditor* editor) const;
  bool Enter(const std::vector<Worker>& workers, double seconds,
             ViewEditor* editor, News* news);
  run::ModeRecord RecordOf(int phase, double seconds,
                           const wire::View& view) const;

  const config::Sync sync_;
  JobDelays* const delays_;
  ClockAgreement agreement_;
  CutAgreement cut_;
  EarlyEnd end_;
  std::vector<std::string> reasons_;  // Of each phase of the view.
  std::map<Incarnation, Clock> arrived_;
  std::map<Incarnation, int> entered_;          // Index of the last phase.
  std::map<int, std::vector<Report>> reports_;  // By phase not yet entered.
  std::deque<run::ModeRecord> last_changes_;
  int32_t changes_ = 0;
};

}  // namespace slackline
