// Gathers: collectives of the workers' programs. Each worker brings some bytes;
// once all that are waited for have come, each gets those of all.
//
// A gather is known by its place in the program and its number there, so calls
// of several workers belong together without a count of calls: a worker that
// joins late, or again, calls what the others call at that place. A worker is
// waited for at its present place and at later ones. Who has called at a later
// place is not waited for at an earlier one, and who joins a running job not
// before it has said where it begins. Who goes on from a checkpoint is waited
// for from its first step on.
//
// What a gather has brought is kept for a while: a worker that repeats its call
// because the answer was lost, or comes when the others have gone on, gets what
// all others got.
//
// At place 0, before the first batch, nobody has joined yet: the gather waits
// for all workers of the config, and its result is kept for the whole job, for
// a worker that is started again.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/ids.h"
#include "common/payload.h"
#include "proto/control.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/state/kept_state.h"

namespace slackline {

class Gathers {
 public:
  struct Options {
    int workers = 1;                   // Of the config.
    size_t kept_bytes_max = 64 << 20;  // Results at place 0; as much after it.
    size_t kept_max = 16;              // Results after place 0.
    uint32_t start_max = 1024;         // Gathers at place 0.
  };
  explicit Gathers(const Options& options) : options_(options) {}

  // A call of a member. Waits, unless it is answered at once. One that waits
  // already is told for whom, with RETRY. A late copy of one that the worker
  // has given up, since it has made a later call, is ignored.
  void Enter(const Member& worker, const wire::Call& call,
             const Payload& payload, CoordinatorEffects* effects);
  // A call at place 0, of a process that has not joined.
  void EnterBeforeStart(const PeerId& from, const wire::Call& call,
                        const Payload& payload, CoordinatorEffects* effects);
  // A member brings nothing. Answered at once.
  void OnGoesOn(const Member& worker, const wire::Call& call,
                CoordinatorEffects* effects);
  // The job runs, with these workers. Nobody comes to place 0 any more.
  void Start(const std::map<int32_t, const Member*>& workers,
             CoordinatorEffects* effects);
  // Answers the gathers that are complete. Call it after the calls above, and
  // when a worker is gone.
  void Complete(CoordinatorEffects* effects);
  // Who is gone brings nothing and is not waited for.
  void Forget(Incarnation incarnation);

  // For the next coordinator: what is new since the last call, and everything.
  // Who waits calls again. `is_member`: else the state is broken.
  // InvalidArgument: of the state.
  void Keep(KeptState* kept);
  absl::Status Load(const StateReader& reader,
                    absl::FunctionRef<bool(Incarnation)> is_member);

  size_t open() const { return open_.size(); }
  size_t waiting() const;  // Calls.
  size_t kept() const { return kept_.size(); }
  size_t bytes() const;  // Of all that is here.

 private:
  using Place = std::pair<uint64_t, uint32_t>;  // Place, and the number there.
  struct Caller {
    PeerId peer;
    uint64_t call_id = 0;
  };
  struct Entry {
    Caller from;
    Incarnation incarnation = 0;  // 0 at place 0.
    Payload payload;
  };
  struct Position {
    int32_t rank = 0;
    Place place;
  };
  struct Result {
    Place place;
    std::vector<int32_t> ranks;
    std::vector<Payload> payloads;

    size_t bytes() const;
  };
  using Round = std::map<int32_t, Entry>;  // By rank.

  // Whether the rank has made a later call since: this is a late copy of one
  // that it has given up.
  bool IsGivenUp(int32_t rank, const Caller& call);
  // The worker is at this place, or beyond it.
  void Reach(const Member& worker, const Place& place);
  void Wait(const Place& place, int32_t rank, Entry entry,
            CoordinatorEffects* effects);
  const Result* Kept(const Place& place) const;
  static std::string KeyOf(const Place& place);
  void Keep(Result result);
  // Whether a gather waits for a worker at this position, which has not come.
  static bool WaitsFor(const Position& position, const Place& place,
                       const Round& round) {
    return position.place <= place && round.count(position.rank) == 0;
  }
  bool IsComplete(const Place& place, const Round& round) const;
  std::set<int32_t> Missing(const Place& place, const Round& round) const;
  static void Answer(const Caller& to, const Result& result,
                     CoordinatorEffects* effects);

  const Options options_;
  bool started_ = false;
  std::map<Place, Round> open_;
  std::map<int32_t, Caller> last_calls_;  // By rank.
  std::map<Incarnation, Position> positions_;
  std::map<uint32_t, Result> kept_of_start_;  // By number.
  size_t bytes_of_start_ = 0;
  std::deque<Result> kept_;  // The last ones, oldest first.
  size_t kept_bytes_ = 0;
  std::optional<Place> last_;      // The last that was complete after place 0.
  std::set<Incarnation> changed_;  // Whose positions are new since Keep().
  bool news_ = false;              // Anything else is new since Keep().
};

}  // namespace slackline
