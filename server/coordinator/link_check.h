// LinkCheck: whether the members of a job that forms can connect with those
// whom they will need: each worker and each server with each server, and each
// worker with each worker that offers a door for that.
//
// Once all have joined, a round begins: each member is sent the endpoints that
// it is to try, and says, with its heartbeats, which of them it has not been
// connected with so far. The job begins when nothing is left. What is left is
// named, in a line for each pair, after a lease; servers that would only move
// shards on a user's demand are not waited for beyond that. A round ends
// without a result when a member is gone, and another one begins with the next
// that completes the job.
//
// Deterministic state machine: the time, which is awake time, goes in.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/control.pb.h"
#include "server/coordinator/membership.h"

namespace slackline {

class LinkCheck {
 public:
  struct Options {
    absl::Duration lease = absl::Seconds(5);
    // Copies, or moves that nobody asks for.
    bool servers_need_each_other = true;
  };
  // `members` outlive it.
  LinkCheck(const Options& options, const Membership* members)
      : options_(options), members_(*members) {}

  bool under_way() const { return round_ != 0; }
  // When the round began that is under way.
  absl::Time since() const { return since_; }
  // All have joined. The members do not change until Stop().
  void Begin(absl::Time awake);
  // A member is gone.
  void Stop();
  // What the member is to try, or nothing if it has said what came of that.
  void PutRound(const Member& member, wire::HeartbeatReply* reply) const;
  // What a member says. What is of another round, or names nobody whom it was
  // to try, is ignored.
  void OnReport(const Member& member, const wire::LinksTried& tried);
  // Nothing that is needed is left.
  bool Complete(absl::Time awake) const;
  // Sentences: which pairs are left, a lease after the round has begun. Each
  // is among the news once.
  std::vector<std::string> Left(absl::Time awake) const;
  std::vector<std::string> TakeNews(absl::Time awake);
  // When there may be news.
  absl::Time NextNews() const;

 private:
  // Role (true: worker) and index.
  using Place = std::pair<bool, int32_t>;
  const Member* At(const Place& place) const;
  bool Needs(const Member& member, const Place& other) const;

  const Options options_;
  const Membership& members_;
  uint64_t round_ = 0;  // 0: none is under way.
  absl::Time since_;
  // Whom a member that has said so has not been connected with, with the
  // thread.
  std::map<Incarnation, std::map<Place, int32_t>> left_;
  std::set<std::string> said_;
  bool told_ = false;  // The lease is over.
};

}  // namespace slackline
