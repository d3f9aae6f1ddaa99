// Routes: which shard thread owns which shard, as far as this worker knows. The
// newest view says it of all shards; what a server has told of a shard since
// counts until a view is as new as that.
//
// Owns the view and what servers have told. Transitions: Adopt() a newer view,
// which may split shards in two, and Relocate() one shard. It knows at most one
// newer place for each shard. Every shard has exactly one owner at any time,
// and the owner is a thread of a server that the view has had.
//
// Deterministic, without I/O, threads or clocks. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/ids.h"
#include "common/view/shard_map.h"
#include "proto/data.pb.h"
#include "worker/client/shard_split.h"

namespace slackline {

class Routes {
 public:
  // What a newer view has changed.
  struct Change {
    std::vector<ShardSplit> splits;  // In the order of the view.
    // Some shard is elsewhere, so what waits for it has to be moved there.
    bool moved = false;
  };

  // `view` is RUNNING and has tables.
  explicit Routes(std::shared_ptr<const View> view) : view_(std::move(view)) {}

  const View& view() const { return *view_; }
  const std::shared_ptr<const View>& shared_view() const { return view_; }
  // The shard is one of the view.
  Owner OwnerOf(int32_t shard) const {
    const auto newer = newer_.find(shard);
    return newer == newer_.end() ? view_->OwnerOf(ShardId{shard})
                                 : newer->second.owner;
  }
  // Whether the view has this shard thread.
  bool Has(Owner owner) const;
  // "server 1 thread 0 (tcp://10.0.0.7:4100)" for messages to people.
  std::string NameOf(Owner owner) const;

  // The view is newer than view(). Both parts of a shard that it splits in two
  // are where the whole was, unless the view is newer than that knowledge.
  Change Adopt(std::shared_ptr<const View> view);

  // Learns where the shard is, if that is newer than what is known and the view
  // has that shard and that shard thread; else nothing changes. True if the
  // shard is elsewhere: what waits for it has to be moved there.
  bool Relocate(int32_t shard, const wire::Relocation& relocation);

 private:
  // Who owns a shard, and how new that knowledge is: see data.proto,
  // Relocation.
  struct Route {
    Owner owner;
    uint64_t as_of = 0;
  };
  // How new it is what the view says of the shard.
  uint64_t ViewIsAsOf(int32_t shard) const;

  std::shared_ptr<const View> view_;
  // What servers have told that is newer than the view, by shard.
  absl::flat_hash_map<int32_t, Route> newer_;
};

}  // namespace slackline
