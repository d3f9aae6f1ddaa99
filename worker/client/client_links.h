// ClientLinks: a ClientLink to each shard thread that this worker has had
// something for, which of them have to be looked at, and when.
//
// Owns the links. Transitions: a link is made when something goes to its shard
// thread for the first time, and goes when the view has no such shard thread
// and nothing waits there. Bounds: one link for each shard thread of the view,
// and one for each that has gone and of which something waits. Whatever walks
// over them does so in the order of their owners, or in that in which they were
// touched, so the order of effects depends only on the order of events.
//
// Deterministic, without I/O, threads or clocks. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "worker/client/client_link.h"
#include "worker/client/client_parts.h"
#include "worker/client/shard_split.h"

namespace slackline {

class ClientLinks {
 public:
  // Both outlive this.
  ClientLinks(const ClientOptions& options, const Routes& routes)
      : options_(options), routes_(routes) {}

  // The link to the shard thread, which is made if there is none. Valid until
  // ForgetServersGone(). PumpTouched() will pump it.
  ClientLink& Touch(Owner owner);
  // nullptr if there is none. Whoever changes it without Touch() calls
  // SetWakeup().
  ClientLink* Find(Owner owner);

  void PumpTouched(const ClientParts& parts);
  // Keeps NextWakeup() up to date. The link is one of these.
  void SetWakeup(const ClientLink& link);
  // The next wakeup of a link. InfiniteFuture if nothing waits.
  absl::Time NextWakeup() const {
    return wakeups_.empty() ? absl::InfiniteFuture() : wakeups_.begin()->first;
  }

  // Lets each link do what is due.
  void OnTick(const ClientParts& parts);
  // A clock ends with what was added anywhere: it may go now, and goes.
  void EndClock(const ClientParts& parts);
  // Asks all shards of the view for what `like` asks for.
  void PullAll(const PullUnit& like, const ClientParts& parts);
  // Nobody waits for this pull any more. What waits behind it goes.
  void ForgetPull(uint64_t pull_id, const ClientParts& parts);
  // What servers have refused under an older view, they may accept now.
  void OnNewView(absl::Time soon);
  // Moves what waits for shards that have moved to their owners' links, each
  // shard's pushes in their order, and pumps all links.
  void Reroute(const ClientParts& parts);
  void Split(const ShardSplit& split, ClientCounts& counts);
  // Forgets idle links to shard threads that the view does not have.
  void ForgetServersGone();

  size_t size() const { return links_.size(); }
  // Calls `look` with each link, in the order of their owners.
  template <typename Look>
  void ForEach(Look&& look) const {
    for (const auto& [owner, entry] : links_) look(entry.link);
  }

 private:
  struct Entry {
    ClientLink link;
    bool touched = false;  // It is in touched_.
    // The link's time in wakeups_; InfiniteFuture: it is not there.
    absl::Time wakeup = absl::InfiniteFuture();
  };
  using Links = std::map<Owner, Entry>;

  Entry& EntryTo(Owner owner);
  void Touch(Entry& entry) {
    if (std::exchange(entry.touched, true)) return;
    touched_.push_back(&entry);
  }
  void SetWakeup(Entry& entry);

  const ClientOptions& options_;
  const Routes& routes_;
  Links links_;
  std::vector<Entry*> touched_;  // Links to be pumped, each once.
  // The finite wakeups of links.
  std::set<std::pair<absl::Time, Owner>> wakeups_;
};

}  // namespace slackline
