// CoordinatorPart: what CoordinatorCore asks of each of its parts, in the order
// of its list (part_list.h). What a part is told of messages, it has calls of
// its own for.
//
// A part does nothing in most of these calls; what it leaves out does nothing.
// Parts are deterministic state machines: the time goes in, and what is to be
// done comes out as effects and as edits of the view. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/state/kept_state.h"

namespace slackline {

// When something happens, on the three clocks that parts go by.
struct Moment {
  absl::Time now;    // What the driver says.
  absl::Time awake;  // Membership::AwakeTime(now): what leases go by.
  // Since the job began to run, in all of its runs. Of a job that runs.
  double seconds = 0;
};

struct Member;  // membership.h

// What the job begins with.
struct JobStart {
  Moment moment;
  // The tables that the members bring. Of a job that goes on from a checkpoint
  // their values are there.
  std::vector<wire::Table> tables;
  double seconds_before = 0;  // It has run for so long in earlier runs.
};

// Somebody is no member any more, whatever its state was.
struct GoneMember {
  const Member& member;         // As it was.
  const std::string& sentence;  // Says that it is gone, and why.
  absl::Time now;
};

// When a part has something to do if nothing happens before: on the driver's
// clock, and in awake time.
struct WakeUp {
  absl::Time at = absl::InfiniteFuture();
  absl::Time awake = absl::InfiniteFuture();
};

// What a user wants to know who asks for the job's status.
struct StatusQuestion {
  Moment moment;
  int64_t moves_known = 0;  // So many first records are left out.
};

class CoordinatorPart {
 public:
  virtual ~CoordinatorPart() = default;

  // Somebody has joined.
  virtual void OnJoined(const Member&, CoordinatorEffects*) {}
  // The job is to begin: the view has its members and its length. Puts its own
  // share into the view.
  virtual void OnStart(const JobStart&, CoordinatorEffects*) {}
  // The job begins to run: the view has its tables, members, phases and length.
  virtual void OnRunning(const Moment&, CoordinatorEffects*) {}
  // A member is gone. The view has a worker no longer, unless the job has
  // ended: then it stays as it is. A server is in it, for the part that gives
  // its shards to others, unless the job forms, or has ended because nobody can
  // replace the server.
  virtual void OnGone(const GoneMember&, CoordinatorEffects*) {}

  // Draws the conclusions of what it has been told in this event, and of what
  // the view says. True: parts before it, or those that wait, may have
  // something to conclude from that, so all are asked again
  // (PartList::Advance()). Asked again without news, it changes nothing and
  // returns false.
  virtual bool Advance(const Moment&, CoordinatorEffects*) { return false; }
  // Some part has returned true, or has learned of something for which others
  // wait: what waits may go on.
  virtual void OnNews() {}
  // The job has ended in this event, however. Advance() follows once more.
  virtual void OnEnded(const Moment&, CoordinatorEffects*) {}
  // The event is at its end: the view, with all edits, has been sent. Answers
  // calls that have waited for that.
  virtual void AnswerCalls(CoordinatorEffects*) {}

  // For the next coordinator: puts what is new since the last call. Called at
  // the end of each event.
  virtual void Keep(absl::Time, KeptState*) {}
  // What another coordinator has kept, in a part that knows nothing yet. Parts
  // that come before it in the list are loaded. DataLoss names the key that is
  // broken; then the part is of no use.
  virtual absl::Status Load(const StateReader&, const Moment&,
                            CoordinatorEffects*) {
    return absl::OkStatus();
  }

  // What it does then, it does in OnTime() or Advance(), in an event at that
  // time or later.
  virtual WakeUp NextWakeUp() const { return {}; }
  // Some of the time has passed. Leases have run out, and the job has begun if
  // all were there.
  virtual void OnTime(const Moment&, CoordinatorEffects*) {}

  // What it knows of the job, for people: now, and when all is over. Other
  // parts set other fields.
  virtual void PutStatus(const StatusQuestion&, wire::StatusReply*) const {}
  // Parts that come before it in the list have set theirs.
  virtual void PutSummary(run::Summary*) const {}
};

}  // namespace slackline
