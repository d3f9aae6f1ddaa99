// Which elements of which table a shard holds, which server thread owns it,
// which ones have copies of it, and which rule updates it: the immutable,
// indexed form of a wire::View. Every thread may read it unlocked; whatever
// changes the cluster makes a new one with a larger number.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/optim/optimizer.h"
#include "common/region.h"
#include "common/view/followers.h"
#include "common/view/member_list.h"
#include "common/view/owners.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"

namespace slackline {

// Number of elements of a table: the product of its shape.
int64_t TableElements(const wire::Table& table);
// All of a table.
inline Region RegionOf(const wire::Table& table) {
  return Region::First(TableElements(table));
}

// Which part of which table a shard is.
struct ShardRange {
  ShardId shard{};
  TableId table{};
  Region region;
};

// A view with its shards looked up. Call it through shared_ptr<const View>.
// Made of a message, it is checked whole before anything of it is used.
class View {
 public:
  // InvalidArgument names what does not fit: shapes and shard sizes of at least
  // 1, an optimizer for each table, a number of shards within bounds, shards
  // numbered in table order without gaps, splits inside their shards, at most
  // one move for each shard, one owner for each shard, followers of shards that
  // there are, sorted by shard and server, each there once; while the job runs,
  // owners, targets and followers that are threads of listed servers, and no
  // follower on the server of its shard's owner; members sorted by index and
  // rank; phases in the order of their clocks, the first from 0; a cut with one
  // clock, or with those of workers that are sorted by rank.
  static absl::StatusOr<std::shared_ptr<const View>> Create(wire::View proto);

  // The view that the change makes of this one. They share what is the same:
  // members, and owners, followers and ranges of shards, that do not change are
  // not copied. FailedPrecondition: the change is against another view.
  // InvalidArgument: as of Create().
  absl::StatusOr<std::shared_ptr<const View>> With(
      const wire::ViewChange& change) const;

  // The message, but for the owners and followers of shards and the members,
  // which are below.
  const wire::View& proto() const { return proto_; }
  // The whole message, with one owner for each shard.
  wire::View ToProto() const;
  uint64_t number() const { return proto_.number(); }

  int32_t shard_count() const {
    return static_cast<int32_t>(ranges_->shards.size());
  }
  const ShardRange& shard(ShardId id) const {
    return ranges_->shards[static_cast<size_t>(id)];
  }
  bool HasShard(int32_t id) const { return id >= 0 && id < shard_count(); }
  Owner OwnerOf(ShardId id) const { return owners_[static_cast<int32_t>(id)]; }
  // The shards of both views that have different owners in them, in order.
  // Cheap if one view was made from the other and little is different.
  std::vector<int32_t> OwnersThatDiffer(const View& other) const {
    return owners_.Differences(other.owners_);
  }
  // Who has copies of the shard, by server.
  absl::Span<const wire::Follower> FollowersOf(ShardId id) const {
    return followers_[static_cast<int32_t>(id)];
  }
  // The shards of both views that have different followers in them, in order.
  // As cheap as OwnersThatDiffer().
  std::vector<int32_t> FollowersThatDiffer(const View& other) const {
    return followers_.Differences(other.followers_);
  }
  // Whether any shard is owned by a thread of this server. Looks at all shards.
  bool OwnsAny(int32_t server) const;
  // Whether any shard is followed by a thread of this server. Looks at all
  // shards.
  bool FollowsAny(int32_t server) const;
  // The number of the first view in which the shard has this range; 0: it had
  // it from the start.
  uint64_t RangeSince(ShardId id) const {
    return ranges_->since[static_cast<size_t>(id)];
  }
  // The shard that this one was split off from; itself if it was there from the
  // start.
  ShardId OriginOf(ShardId id) const;
  // The move of the shard that is ordered and not known to be done, or nullptr.
  const wire::Move* FindMove(ShardId id) const;
  // All shards of a table in element order.
  absl::Span<const ShardRange> ShardsOf(TableId table) const {
    return ranges_->by_table[static_cast<size_t>(table)];
  }
  const wire::Table& table(TableId id) const {
    return proto_.table(static_cast<int>(id));
  }
  // The rule that updates it, wherever that happens.
  const Optimizer& optimizer(TableId id) const {
    return (*optimizers_)[static_cast<size_t>(id)];
  }
  // "mlp.0.weight[65536, 131072)" for messages to people.
  std::string ShardName(ShardId id) const;

  const MemberList<wire::ServerMember>& servers() const { return servers_; }
  const MemberList<wire::WorkerMember>& workers() const { return workers_; }
  // nullptr if there is none.
  const wire::ServerMember* FindServer(int32_t index) const;
  const wire::WorkerMember* FindWorker(Rank rank) const;
  const wire::WorkerMember* FindWorker(Rank rank,
                                       Incarnation incarnation) const;
  // The number of a view from which on the workers have been these.
  uint64_t WorkersSince() const { return workers_since_; }

 private:
  // What elements each shard has.
  struct Ranges {
    std::vector<ShardRange> shards;
    std::vector<uint64_t> since;
    std::vector<std::vector<ShardRange>> by_table;
  };
  View() = default;
  View(const View&) = default;

  static absl::StatusOr<Ranges> RangesOf(const wire::View& proto);
  static absl::StatusOr<std::vector<Optimizer>> OptimizersOf(
      const wire::View& proto);
  // Splits shards as these splits of view `number` say.
  static absl::Status AddSplits(
      const google::protobuf::RepeatedPtrField<wire::Split>& splits,
      uint64_t number, Ranges* ranges);
  absl::Status CheckMembersAndPhases() const;
  absl::Status CheckCut() const;
  bool HasThread(Owner owner) const;
  absl::Status CheckOwner(int32_t shard) const;
  absl::Status CheckFollowers(int32_t shard) const;
  // Checks the owners and the followers of all shards.
  absl::Status CheckPlacement() const;
  absl::Status UnlessShard(int32_t shard) const;
  // Looks up the moves, and checks them.
  absl::Status IndexMoves();

  wire::View proto_;  // Without owners, followers and members.
  MemberList<wire::ServerMember> servers_;
  MemberList<wire::WorkerMember> workers_;
  std::shared_ptr<const Ranges> ranges_;
  std::shared_ptr<const std::vector<Optimizer>> optimizers_;  // By table.
  uint64_t workers_since_ = 0;
  Owners owners_;
  Followers followers_;
  std::map<int32_t, int> moves_;  // Indices into proto_, by shard.
};

// The chief: the worker of the lowest rank in the view. nullptr without
// workers.
const wire::WorkerMember* ChiefOf(const View& view);

// Elements of a shard, as limits.shard_kib says.
inline int64_t ShardElements(const config::Limits& limits) {
  return int64_t{limits.shard_kib()} * 1024 /
         static_cast<int64_t>(sizeof(float));
}

// Numbers the shards of `tables` in order (sets first_shard) and gives each to
// one of `threads`, largest first to the thread with the fewest bytes so far;
// ties go to the earlier thread. Fills table, owner_server and owner_thread.
// `threads` has at least one entry. A table whose shard_elements is 0 gets
// `shard_elements`.
void PlaceTables(absl::Span<const wire::Table> tables,
                 absl::Span<const Owner> threads, int64_t shard_elements,
                 wire::View* view);

}  // namespace slackline
