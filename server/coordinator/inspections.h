// Inspections: what users ask the members of a job about themselves: their
// stacks, or what they do in the next seconds. The coordinator passes the
// question on with answers to heartbeats, and what comes back part by part to
// the user, who asks for the next part as long as some are missing.
//
// | a user's call              | answer                                      |
// | -------------------------- | ------------------------------------------- |
// | begins, first time         | OK and a number; the members are asked      |
// | begins, again the same     | OK and the same number                      |
// | begins a second timeline   | BUSY: at most one at a time                 |
// | begins with too many open  | BUSY                                        |
// | begins, nobody has joined  | BUSY                                        |
// | goes on, has k parts       | OK: part k if it is here; who is missing    |
// | goes on, number not known  | REJECTED: nobody asked for it for too long  |
//
// | a member's answer          | what becomes of it                          |
// | -------------------------- | ------------------------------------------- |
// | it was missing             | the next part                               |
// | anything else              | nothing: told OK, so that it is not sent on |
//
// Timelines that are asked for while the job forms begin when it runs. Parts
// that the user has are dropped; so is everything of whose user nothing is
// heard for kPatience. At most kBytesMax of parts are here at a time: of
// timelines each member is told its share, and what has no room is an error in
// its place.
//
// It also asks by itself for the stacks of members that hold others up, and
// keeps the last ones for StatusReply.
//
// Nothing of this goes to the next coordinator. Deterministic state machine:
// the time goes in. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/message.h"
#include "proto/control.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/part.h"

namespace slackline {

class Inspections : public CoordinatorPart {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(20);
  static constexpr size_t kOpenMax = 8;  // Users', and as many that are over.
  static constexpr int kNamesMax = 1024;
  static constexpr int32_t kTimelineMsMax = 120'000;
  static constexpr int64_t kBytesMax = 256 << 20;
  static constexpr int64_t kPartBytesMax = 4 << 20;
  static constexpr int64_t kPartBytesMin = 64 << 10;
  static constexpr size_t kTextBytesMax = 64 << 10;
  static constexpr size_t kWhereBytesMax = 1 << 10;
  // Bounds of what is kept for StatusReply.
  static constexpr size_t kKeptMax = 4;
  static constexpr size_t kKeptTextBytesMax = 16 << 10;

  // The members outlive it.
  explicit Inspections(const Membership* members) : members_(*members) {}

  void OnRunning(const Moment& moment, CoordinatorEffects* effects) override;
  // A call of a user, which has `inspect`. Answered at once.
  void OnInspect(const PeerId& from, const wire::Call& call, bool forming,
                 absl::Time now, CoordinatorEffects* effects);
  // A call of a member, which has `inspected`. Answered at once. `seconds`:
  // since the job started to run. Returns the stacks if they were asked for
  // because the member holds others up; nullptr: they were not. They live until
  // the next call.
  const wire::Stacks* OnInspected(const Member& member, const Message& message,
                                  double seconds, absl::Time now,
                                  CoordinatorEffects* effects);
  // While the job forms: it is asked, too, what all are asked.
  void OnJoined(const Member& member, CoordinatorEffects* effects) override;
  void OnGone(const GoneMember& gone, CoordinatorEffects* effects) override;
  // These members keep others from going on: asks for their stacks, and again
  // while it lasts, not more often than every kAgain.
  static constexpr absl::Duration kAgain = absl::Seconds(10);
  void AskFor(const std::vector<Incarnation>& culprits, absl::Time now,
              CoordinatorEffects* effects);
  // Forgets what nobody waits for.
  void OnTime(const Moment& moment, CoordinatorEffects*) override {
    ForgetUnwanted(moment.now);
  }
  WakeUp NextWakeUp() const override;

  // What the member is asked and has not answered.
  void PutQuestions(const Member& member, wire::HeartbeatReply* reply) const;
  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const override;
  void PutSummary(run::Summary* summary) const override;
  // Some user waits, and something may still come.
  bool waited_for() const;
  // Some user waits, and something may still come of this member.
  bool WaitsFor(Incarnation incarnation) const;
  size_t open() const { return open_.size(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Part {
    wire::Inspected inspected;
    Payload frame;
    int64_t bytes() const {
      return static_cast<int64_t>(inspected.ByteSizeLong() + frame.size());
    }
  };
  struct Open {
    wire::Inspection question;
    bool of_user = false;
    PeerId user;
    uint64_t call_id = 0;  // The call that began it.
    absl::Time asked_at;   // When something was heard of the user last.
    bool of_all = false;
    bool waits_for_start = false;
    std::set<Incarnation> missing;
    std::deque<Part> parts;  // Those that the user may not have yet.
    int32_t dropped = 0;     // So many came before these.
    std::vector<std::string> gone;
    // The user has everything.
    bool over() const { return missing.empty() && parts.empty(); }
  };

  uint64_t NewNumber(absl::Time now);
  void Begin(const PeerId& from, const wire::Call& call, bool forming,
             absl::Time now, CoordinatorEffects* effects);
  void GoOn(const PeerId& from, const wire::Call& call, Open* open,
            absl::Time now, CoordinatorEffects* effects);
  // Empty, or why this is no question.
  static std::string WhyUnfit(const wire::Inspect& inspect);
  // The answer with what is here.
  Outgoing StateOf(const PeerId& to, uint64_t call_id, const Open& open,
                   int32_t received) const;
  // Sets how much of what may be here is for each of those who are missing, of
  // a timeline.
  static void SetShare(Open* open);
  // Asks those who are missing at once.
  void Tell(const Open& open, CoordinatorEffects* effects) const;
  void Drop(Open* open, size_t parts);
  // Forgets what no user has asked for in kPatience.
  void ForgetUnwanted(absl::Time now);
  // Forgets the oldest ones that are over, beyond kOpenMax of them.
  void ForgetOld();
  const wire::Stacks* KeepStacks(const Member& member,
                                 const wire::Stacks& stacks, double seconds);

  const Membership& members_;
  std::map<uint64_t, Open> open_;  // By number.
  uint64_t last_number_ = 0;
  int64_t bytes_ = 0;  // Of all parts.
  // Stacks of members that held others up, oldest first.
  std::deque<std::pair<Incarnation, wire::MemberStacks>> kept_;
  std::map<Incarnation, absl::Time> asked_at_;
};

}  // namespace slackline
