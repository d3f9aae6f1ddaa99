#include "common/view/shard_map.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "common/status.h"

namespace slackline {

int64_t TableElements(const wire::Table& table) {
  int64_t elements = 1;
  for (const int64_t extent : table.shape()) elements *= extent;
  return elements;
}

namespace {

std::set<Owner> ThreadsOf(const wire::View& proto) {
  std::set<Owner> threads;
  for (const wire::ServerMember& server : proto.server()) {
    for (int thread = 0; thread < server.thread_size(); ++thread) {
      threads.insert({server.index(), thread});
    }
  }
  return threads;
}

}  // namespace

absl::Status View::AddSplits(const wire::View& proto) {
  for (const wire::Split& split : proto.split()) {
    if (!HasShard(split.shard()) ||
        split.at() <= shards_[split.shard()].begin ||
        split.at() >= shards_[split.shard()].end) {
      return absl::InvalidArgumentError(
          absl::StrCat("view ", proto.number(), ": shard ", split.shard(),
                       " is to be split at element ", split.at(),
                       ", which is not inside it"));
    }
    ShardRange& kept = shards_[split.shard()];
    ShardRange cut = kept;
    cut.shard = ShardId{shard_count()};
    cut.begin = kept.end = split.at();
    since_[split.shard()] = split.since();
    shards_.push_back(cut);
    since_.push_back(split.since());
  }
  return absl::OkStatus();
}

absl::Status View::AddMoves(const wire::View& proto) {
  const std::set<Owner> known = ThreadsOf(proto);
  for (int i = 0; i < proto.move_size(); ++i) {
    const wire::Move& move = proto.move(i);
    if (!HasShard(move.shard()) ||
        (proto.state() == wire::RUNNING &&
         known.count({move.server(), move.thread()}) == 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "view ", proto.number(), ": shard ", move.shard(),
          " is to move to thread ", move.thread(), " of server ", move.server(),
          "; the view has no such shard or thread"));
    }
    if (!moves_.emplace(move.shard(), i).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "view ", proto.number(), " moves shard ", move.shard(), " twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const View>> View::Create(wire::View proto) {
  std::shared_ptr<View> view(new View);
  for (int t = 0; t < proto.table_size(); ++t) {
    const wire::Table& table = proto.table(t);
    for (const int64_t extent : table.shape()) {
      if (extent < 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "view ", proto.number(), ": table ", table.name(),
            " has an extent of ", extent, ", at least 1 is required"));
      }
    }
    if (table.shard_elements() < 1 ||
        table.first_shard() != view->shard_count()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "view ", proto.number(), ": table ", table.name(), " has shards of ",
          table.shard_elements(), " elements from shard ", table.first_shard(),
          ", expected at least 1 element and shard ", view->shard_count()));
    }
    const int64_t elements = TableElements(table);
    for (int64_t begin = 0; begin < elements; begin += table.shard_elements()) {
      view->shards_.push_back(
          {.shard = ShardId{view->shard_count()},
           .table = TableId{t},
           .begin = begin,
           .end = std::min(elements, begin + table.shard_elements())});
    }
  }
  view->since_.resize(view->shards_.size(), 0);
  SL_RETURN_IF_ERROR(view->AddSplits(proto));
  SL_RETURN_IF_ERROR(view->AddMoves(proto));
  if (proto.owner_server_size() != view->shard_count() ||
      proto.owner_thread_size() != view->shard_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("view ", proto.number(), ": ", proto.owner_server_size(),
                     " owners for ", view->shard_count(), " shards"));
  }
  view->owners_.reserve(view->shards_.size());
  const std::set<Owner> known = ThreadsOf(proto);
  for (int i = 0; i < view->shard_count(); ++i) {
    const Owner owner{proto.owner_server(i), proto.owner_thread(i)};
    // A view that ends the job may do so because that server is gone.
    if (proto.state() == wire::RUNNING && known.count(owner) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("view ", proto.number(), ": shard ", i,
                       " belongs to thread ", owner.thread, " of server ",
                       owner.server, ", which the view does not list"));
    }
    view->owners_.push_back(owner);
  }
  view->by_table_.resize(proto.table_size());
  for (const ShardRange& range : view->shards_) {
    view->by_table_[static_cast<size_t>(range.table)].push_back(range);
  }
  if (proto.split_size() > 0) {
    for (std::vector<ShardRange>& ranges : view->by_table_) {
      std::sort(ranges.begin(), ranges.end(),
                [](const ShardRange& a, const ShardRange& b) {
                  return a.begin < b.begin;
                });
    }
  }
  view->proto_ = std::move(proto);
  return std::shared_ptr<const View>(std::move(view));
}

ShardId View::OriginOf(ShardId id) const {
  const int32_t first = shard_count() - proto_.split_size();
  const int32_t split = static_cast<int32_t>(id) - first;
  return split < 0 ? id : ShardId{proto_.split(split).shard()};
}

const wire::Move* View::FindMove(ShardId id) const {
  const auto found = moves_.find(static_cast<int32_t>(id));
  return found == moves_.end() ? nullptr : &proto_.move(found->second);
}

const wire::ServerMember* View::FindServer(int32_t index) const {
  for (const wire::ServerMember& server : proto_.server()) {
    if (server.index() == index) return &server;
  }
  return nullptr;
}

std::string View::ShardName(ShardId id) const {
  const ShardRange& range = shard(id);
  return absl::StrCat(table(range.table).name(), "[", range.begin, ", ",
                      range.end, ")");
}

const wire::WorkerMember* View::FindWorker(Rank rank) const {
  for (const wire::WorkerMember& worker : proto_.worker()) {
    if (worker.rank() == static_cast<int32_t>(rank)) return &worker;
  }
  return nullptr;
}

const wire::WorkerMember* View::FindWorker(Rank rank,
                                           Incarnation incarnation) const {
  const wire::WorkerMember* const worker = FindWorker(rank);
  return worker != nullptr && worker->incarnation() == incarnation ? worker
                                                                   : nullptr;
}

const wire::WorkerMember* ChiefOf(const View& view) {
  const wire::WorkerMember* chief = nullptr;
  for (const wire::WorkerMember& worker : view.proto().worker()) {
    if (chief == nullptr || worker.rank() < chief->rank()) chief = &worker;
  }
  return chief;
}

void PlaceTables(absl::Span<const wire::Table> tables,
                 absl::Span<const Owner> threads, int64_t shard_elements,
                 wire::View* view) {
  SL_CHECK(!threads.empty(), "no shard threads to place tables on");
  view->clear_table();
  std::vector<int64_t> shard_sizes;
  for (const wire::Table& table : tables) {
    wire::Table& placed = *view->add_table();
    placed = table;
    if (placed.shard_elements() == 0) placed.set_shard_elements(shard_elements);
    placed.set_first_shard(static_cast<int32_t>(shard_sizes.size()));
    const int64_t elements = TableElements(placed);
    for (int64_t begin = 0; begin < elements;
         begin += placed.shard_elements()) {
      shard_sizes.push_back(
          std::min(placed.shard_elements(), elements - begin));
    }
  }
  std::vector<int> by_size(shard_sizes.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) {
    return shard_sizes[a] > shard_sizes[b];
  });
  std::vector<int64_t> load(threads.size(), 0);
  std::vector<Owner> owners(shard_sizes.size());
  for (const int shard : by_size) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += shard_sizes[shard];
    owners[shard] = threads[least - load.begin()];
  }
  view->clear_owner_server();
  view->clear_owner_thread();
  for (const Owner& owner : owners) {
    view->add_owner_server(owner.server);
    view->add_owner_thread(owner.thread);
  }
}

}  // namespace slackline
