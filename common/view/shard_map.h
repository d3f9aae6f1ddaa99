// Which elements of which table a shard holds, and which server thread owns it:
// the immutable, indexed form of a wire::View. Every thread may read it
// unlocked; whatever changes the cluster makes a new one with a larger number.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "proto/wire.pb.h"

namespace slackline {

// Number of elements of a table: the product of its shape.
int64_t TableElements(const wire::Table& table);

// Elements [begin, end) of one table.
struct ShardRange {
  ShardId shard{};
  TableId table{};
  int64_t begin = 0;
  int64_t end = 0;
  int64_t elements() const { return end - begin; }
  size_t bytes() const {
    return static_cast<size_t>(elements()) * sizeof(float);
  }
};

// A view with its shards looked up. Call it through shared_ptr<const View>.
class View {
 public:
  // InvalidArgument names the table or shard that does not fit: shapes and
  // shard sizes of at least 1, shards numbered in table order without gaps,
  // splits inside their shards, at most one move for each shard, one owner for
  // each shard, and owners and targets, while the job runs, threads of listed
  // servers.
  static absl::StatusOr<std::shared_ptr<const View>> Create(wire::View proto);

  const wire::View& proto() const { return proto_; }
  uint64_t number() const { return proto_.number(); }

  int32_t shard_count() const { return static_cast<int32_t>(shards_.size()); }
  const ShardRange& shard(ShardId id) const {
    return shards_[static_cast<size_t>(id)];
  }
  bool HasShard(int32_t id) const { return id >= 0 && id < shard_count(); }
  Owner OwnerOf(ShardId id) const { return owners_[static_cast<size_t>(id)]; }
  // The number of the first view in which the shard has this range; 0: it had
  // it from the start.
  uint64_t RangeSince(ShardId id) const {
    return since_[static_cast<size_t>(id)];
  }
  // The shard that this one was cut off from; itself if it was there from the
  // start.
  ShardId OriginOf(ShardId id) const;
  // The move of the shard that is ordered and not known to be done, or nullptr.
  const wire::Move* FindMove(ShardId id) const;
  // All shards of a table in element order.
  absl::Span<const ShardRange> ShardsOf(TableId table) const {
    return by_table_[static_cast<size_t>(table)];
  }
  const wire::Table& table(TableId id) const {
    return proto_.table(static_cast<int>(id));
  }
  // "mlp.0.weight[65536, 131072)" for messages to people.
  std::string ShardName(ShardId id) const;

  // nullptr if there is none.
  const wire::ServerMember* FindServer(int32_t index) const;
  const wire::WorkerMember* FindWorker(Rank rank) const;
  const wire::WorkerMember* FindWorker(Rank rank,
                                       Incarnation incarnation) const;

 private:
  View() = default;
  // Reads the splits and the moves, and checks them.
  absl::Status AddSplits(const wire::View& proto);
  absl::Status AddMoves(const wire::View& proto);

  wire::View proto_;
  std::vector<ShardRange> shards_;
  std::vector<uint64_t> since_;
  std::vector<Owner> owners_;
  std::vector<std::vector<ShardRange>> by_table_;
  std::map<int32_t, int> moves_;  // By shard: index into the proto.
};

// The chief: the worker of the lowest rank in the view. nullptr without
// workers.
const wire::WorkerMember* ChiefOf(const View& view);

// Numbers the shards of `tables` in order (sets first_shard) and gives each to
// one of `threads`, largest first to the thread with the fewest bytes so far;
// ties go to the earlier thread. Fills table, owner_server and owner_thread.
// `threads` has at least one entry. A table whose shard_elements is 0 gets
// `shard_elements`.
void PlaceTables(absl::Span<const wire::Table> tables,
                 absl::Span<const Owner> threads, int64_t shard_elements,
                 wire::View* view);

}  // namespace slackline
