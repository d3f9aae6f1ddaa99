// Copies: which shard threads follow which shards (View.follower), so that each
// shard has as many copies as the config asks for, and no server that dies
// takes the only one with it.
//
// - When the job begins to run it places the copies of all shards. They are in
//   sync from the start, and those of one server's shards are spread over all
//   others.
// - When a server with shards is gone it says who owns these from now on: of
//   each somebody who has a copy in sync.
// - When shards lack copies it has new ones made, a few at a time. Their owners
//   say when they are in sync.
// - When a server is drained it has the copies there made elsewhere before the
//   server may leave.
//
// A copy is on another server than the shard and its other copies, and on
// another host where there is one; of these threads, on the one with the fewest
// bytes of shards and copies. No copy moves
// for balance alone.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "common/ids.h"
#include "proto/control.pb.h"
#include "proto/coordinator_state.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/part.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class Copies : public CoordinatorPart {
 public:
  struct Options {
    int replicas = 0;  // Copies of each shard, beside the shard itself.
    // Copies that are made at one time, at most, from and to one server. What a
    // server that dies had begun goes on beyond that, from the next owner.
    int concurrent = 4;
  };
  // `members` and `editor` outlive it.
  Copies(const Options& options, const Membership* members, ViewEditor* editor)
      : options_(options), members_(members), editor_(editor) {}

  // The job begins to run; the view says who owns its shards.
  void OnStart(const JobStart& start, CoordinatorEffects* effects) override;
  void OnJoined(const Member& member, CoordinatorEffects*) override {
    if (!member.worker_role()) NoteServers();
  }

  // A server has said how far the copies of its shards are. True if one is in
  // sync that was not.
  bool OnServerStats(const Member& server);

  // Empty if each shard of this server has a copy in sync on another server;
  // else why the job cannot go on without it: completes "server 1 (pid 7 on
  // host) is dead".
  std::string WhyNotReplaceable(int32_t server) const;
  // A server that is replaceable, and all that it had, leaves the view, and
  // others own its shards.
  void OnGone(const GoneMember& gone, CoordinatorEffects* effects) override;
  // The owner of the shard has lost it: a server that has a copy in sync owns
  // it now. Returns which one; nullopt if there is none.
  std::optional<int32_t> Promote(int32_t shard);

  // A server is drained, or has come.
  void NoteServers() { survey_due_ = true; }
  // The shard has moved.
  void NoteMoved(int32_t shard) { changed_.insert(shard); }
  // Orders the copies that can be made now, and drops those that are to go, if
  // there is news. True if shards may move now that waited for their copies.
  bool Advance(const Moment& moment, CoordinatorEffects* effects) override;

  // The view has the rest.
  void Keep(absl::Time now, KeptState* kept) override;
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;

  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const override;
  void PutSummary(run::Summary* summary) const override;

 private:
  using CopyKey = std::pair<int32_t, int32_t>;  // Shard and server.

  // A server that may get copies.
  struct Candidate {
    int32_t server = 0;
    int host = 0;               // Its number in host_of_.
    std::vector<int64_t> load;  // Bytes of shards and copies, by thread.
  };

  // Sets candidates_, host_of_ and bytes_.
  void Measure();
  void AddLoad(Owner place, int64_t bytes);
  int HostOf(int32_t server) const;
  // Looks at all shards, for those that lack copies.
  void Survey();
  bool IsDraining(int32_t server) const;
  // The best thread for one more copy of a shard that these servers have, of
  // the servers that `may` get it now: of those, with the smallest `rank` and
  // then the fewest bytes. `*any`: some server could have it, perhaps later.
  std::optional<Owner> PlaceFor(const std::vector<int32_t>& holders,
                                absl::FunctionRef<bool(int32_t)> may,
                                absl::FunctionRef<int64_t(int32_t)> rank,
                                bool* any) const;
  // Who owns the shards of this server when it is gone, by shard.
  std::map<int32_t, int32_t> HeirsOf(int32_t server);
  void CountBusy();
  bool HasRoom(int32_t server) const;
  // Brings the copies of the shard nearer to what they should be. True if they
  // are as near as they can be.
  bool Settle(int32_t shard);
  void Drop(int32_t shard, int32_t server);
  void Say(CoordinatorEffects* effects);

  const Options options_;
  const Membership* const members_;
  ViewEditor* const editor_;

  // What the last survey has found; loads have what was ordered since, too.
  std::vector<Candidate> candidates_;          // By server.
  absl::flat_hash_map<int32_t, int> host_of_;  // Numbers of hosts, by server.
  std::vector<int64_t> bytes_;                 // By shard.
  std::set<int32_t> changed_;  // Shards to look at in this event.
  std::set<int32_t> lacking_;  // Shards with copies to be made or dropped.
  // Shards with too few copies, and no server is left for more.
  std::set<int32_t> stranded_;
  std::set<CopyKey> copying_;               // Copies that are not in sync.
  absl::flat_hash_map<int32_t, int> busy_;  // How many of these, by server.
  bool survey_due_ = false;
  size_t said_stranded_ = 0;
  bool said_copying_ = false;

  int64_t made_ = 0;               // Copies, since the job began to run.
  int64_t taken_over_ = 0;         // Shards.
  std::vector<std::string> lost_;  // Sentences about servers.
};

}  // namespace slackline
