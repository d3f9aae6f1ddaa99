#include "common/view/shard_map.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/block/bounds.h"
#include "common/shortened.h"
#include "common/status.h"
#include "common/view/member_lists.h"

namespace slackline {
namespace {

// More than any job has, so that a view that says more is refused before
// anything is made of it.
constexpr int64_t kShardsMax = 1 << 22;
constexpr size_t kNameBytesShown = 64;  // In errors.

template <typename... Args>
absl::Status Unfit(uint64_t number, const Args&... args) {
  return absl::InvalidArgumentError(
      absl::StrCat("view ", number, ": ", args...));
}

template <typename Members>
bool AreSorted(const Members& members) {
  return std::adjacent_find(members.begin(), members.end(),
                            [](const auto& a, const auto& b) {
                              return MemberKey(a) >= MemberKey(b);
                            }) == members.end();
}

bool IsClock(Clock clock) { return clock >= 0 && clock <= kClockMax; }

}  // namespace

int64_t TableElements(const wire::Table& table) {
  int64_t elements = 1;
  for (const int64_t extent : table.shape()) elements *= extent;
  return elements;
}

// ---- Ranges -----------------------------------------------------------------

absl::StatusOr<View::Ranges> View::RangesOf(const wire::View& proto) {
  Ranges ranges;
  const auto count = [&] { return static_cast<int64_t>(ranges.shards.size()); };
  for (int t = 0; t < proto.table_size(); ++t) {
    const wire::Table& table = proto.table(t);
    int64_t elements = 1;
    for (const int64_t extent : table.shape()) {
      if (extent < 1 || extent > kTableElementsMax / elements) {
        return Unfit(proto.number(), "table ",
                     Shortened(table.name(), kNameBytesShown),
                     " has an extent of ", extent, "; at least 1, and at most ",
                     kTableElementsMax, " elements, are required");
      }
      elements *= extent;
    }
    if (table.shard_elements() < 1 || table.first_shard() != count()) {
      return Unfit(proto.number(), "table ",
                   Shortened(table.name(), kNameBytesShown), " has shards of ",
                   table.shard_elements(), " elements from shard ",
                   table.first_shard(),
                   ", expected at least 1 element and shard ", count());
    }
    const Region whole = RegionOf(table);
    if ((whole.size() - 1) / table.shard_elements() >= kShardsMax - count()) {
      return Unfit(proto.number(), "table ",
                   Shortened(table.name(), kNameBytesShown),
                   " makes it more than ", kShardsMax, " shards");
    }
    for (const Region& region : whole.Pieces(table.shard_elements())) {
      ranges.shards.push_back({.shard = ShardId{static_cast<int32_t>(count())},
                               .table = TableId{t},
                               .region = region});
    }
  }
  ranges.since.resize(ranges.shards.size(), 0);
  ranges.by_table.resize(static_cast<size_t>(proto.table_size()));
  for (const ShardRange& range : ranges.shards)
    ranges.by_table[static_cast<size_t>(range.table)].push_back(range);
  SL_RETURN_IF_ERROR(AddSplits(proto.split(), proto.number(), &ranges));
  return ranges;
}

absl::Status View::AddSplits(
    const google::protobuf::RepeatedPtrField<wire::Split>& splits,
    uint64_t number, Ranges* ranges) {
  std::vector<ShardRange>& shards = ranges->shards;
  for (const wire::Split& split : splits) {
    const int32_t id = split.shard();
    const auto at = static_cast<size_t>(id);
    if (id < 0 || at >= shards.size() ||
        !shards[at].region.CanBeSplit(split.at()) ||
        shards.size() >= static_cast<size_t>(kShardsMax)) {
      return Unfit(number, "shard ", id, " is to be split at element ",
                   split.at(), ", which is not inside it");
    }
    ShardRange part = shards[at];
    part.shard = ShardId{static_cast<int32_t>(shards.size())};
    std::tie(shards[at].region, part.region) =
        shards[at].region.SplitAt(split.at());
    ranges->since[at] = split.since();
    shards.push_back(part);
    ranges->since.push_back(split.since());
    std::vector<ShardRange>& table =
        ranges->by_table[static_cast<size_t>(part.table)];
    const auto after =
        std::ranges::lower_bound(table, part.region, {}, &ShardRange::region);
    std::prev(after)->region = shards[at].region;
    table.insert(after, part);
  }
  return absl::OkStatus();
}

// ---- Optimizers -------------------------------------------------------------

absl::StatusOr<std::vector<Optimizer>> View::OptimizersOf(
    const wire::View& proto) {
  std::vector<Optimizer> optimizers;
  optimizers.reserve(static_cast<size_t>(proto.table_size()));
  for (const wire::Table& table : proto.table()) {
    absl::StatusOr<Optimizer> optimizer = Optimizer::Create(table.optimizer());
    if (!optimizer.ok()) {
      return Unfit(proto.number(), "table ",
                   Shortened(table.name(), kNameBytesShown), ": ",
                   optimizer.status().message());
    }
    optimizers.push_back(*std::move(optimizer));
  }
  return optimizers;
}

// ---- Checks -----------------------------------------------------------------

absl::Status View::CheckMembersAndPhases() const {
  if (!AreSorted(servers_) || !AreSorted(workers_))
    return Unfit(number(), "its members are not sorted, or one is there twice");
  if (!IsClock(proto_.begins_at())) {
    return Unfit(number(), "the job begins at clock ", proto_.begins_at(),
                 "; it must be in [0, ", kClockMax, "]");
  }
  for (const wire::WorkerMember& worker : workers_) {
    if (!IsClock(worker.begins_at())) {
      return Unfit(number(), "worker ", worker.rank(), " begins at clock ",
                   worker.begins_at(), "; it must be in [0, ", kClockMax, "]");
    }
  }
  for (int i = 0; i < proto_.phase_size(); ++i) {
    if (i == 0 ? proto_.phase(i).from() != 0
               : proto_.phase(i).from() <= proto_.phase(i - 1).from()) {
      return Unfit(number(), "phase ", i, " begins at clock ",
                   proto_.phase(i).from(),
                   "; the first begins at 0, each other one later than the one "
                   "before");
    }
  }
  if (proto_.entered() < 0 ||
      proto_.entered() >= std::max(proto_.phase_size(), 1)) {
    return Unfit(number(), "phase ", proto_.entered(), " is entered; it has ",
                 proto_.phase_size());
  }
  return absl::OkStatus();
}

absl::Status View::CheckCut() const {
  const wire::Cut& cut = proto_.cut();
  if (cut.number() < 0 || !IsClock(cut.clock()) ||
      (cut.until_size() > 0 && (cut.clock() > 0 || cut.by_worker()))) {
    return Unfit(number(), "cut ", cut.number(), " is at clock ", cut.clock(),
                 " and has ", cut.until_size(),
                 " workers with their own clocks; it has one clock from 0 to ",
                 kClockMax, ", or those of workers over servers");
  }
  int64_t before = -1;
  for (const wire::Cut::Until& until : cut.until()) {
    if (until.rank() <= before || !IsClock(until.clock())) {
      return Unfit(number(), "cut ", cut.number(), " has worker ", until.rank(),
                   " until clock ", until.clock(),
                   "; workers must be sorted by rank, each there once, with "
                   "clocks from 0 to ",
                   kClockMax);
    }
    before = until.rank();
  }
  return absl::OkStatus();
}

bool View::HasThread(Owner owner) const {
  const wire::ServerMember* const server = FindServer(owner.server);
  return server != nullptr && owner.thread >= 0 &&
         owner.thread < server->thread_size();
}

// A view that ends the job may do so because that server is gone.
absl::Status View::CheckOwner(int32_t shard) const {
  const Owner owner = owners_[shard];
  if (proto_.state() != wire::RUNNING || HasThread(owner))
    return absl::OkStatus();
  return Unfit(number(), "shard ", shard, " belongs to thread ", owner.thread,
               " of server ", owner.server, ", which the view does not list");
}

absl::Status View::CheckFollowers(int32_t shard) const {
  if (proto_.state() != wire::RUNNING) return absl::OkStatus();
  for (const wire::Follower& follower : followers_[shard]) {
    if (!HasThread({follower.server(), follower.thread()})) {
      return Unfit(number(), "shard ", shard, " is followed by thread ",
                   follower.thread(), " of server ", follower.server(),
                   ", which the view does not list");
    }
    if (follower.server() == owners_[shard].server) {
      return Unfit(number(), "shard ", shard, " belongs to server ",
                   follower.server(), " and is followed there, too");
    }
  }
  return absl::OkStatus();
}

absl::Status View::CheckPlacement() const {
  for (int32_t i = 0; i < shard_count(); ++i) {
    SL_RETURN_IF_ERROR(CheckOwner(i));
    SL_RETURN_IF_ERROR(CheckFollowers(i));
  }
  return absl::OkStatus();
}

absl::Status View::UnlessShard(int32_t shard) const {
  if (HasShard(shard)) return absl::OkStatus();
  return Unfit(number(), "there is no shard ", shard);
}

absl::Status View::IndexMoves() {
  moves_.clear();
  for (int i = 0; i < proto_.move_size(); ++i) {
    const wire::Move& move = proto_.move(i);
    const Owner to{.server = move.server(), .thread = move.thread()};
    if (!HasShard(move.shard()) ||
        (proto_.state() == wire::RUNNING && !HasThread(to))) {
      return Unfit(number(), "shard ", move.shard(), " is to move to thread ",
                   to.thread, " of server ", to.server,
                   "; the view has no such shard or thread");
    }
    if (!moves_.emplace(move.shard(), i).second)
      return Unfit(number(), "shard ", move.shard(), " moves twice");
  }
  return absl::OkStatus();
}

// ---- Making views -----------------------------------------------------------

absl::StatusOr<std::shared_ptr<const View>> View::Create(wire::View proto) {
  SL_ASSIGN_OR_RETURN(Ranges ranges, RangesOf(proto));
  std::shared_ptr<View> view(new View);
  view->ranges_ = std::make_shared<const Ranges>(std::move(ranges));
  SL_ASSIGN_OR_RETURN(std::vector<Optimizer> optimizers, OptimizersOf(proto));
  view->optimizers_ =
      std::make_shared<const std::vector<Optimizer>>(std::move(optimizers));
  if (proto.owner_server_size() != view->shard_count() ||
      proto.owner_thread_size() != view->shard_count()) {
    return Unfit(proto.number(), proto.owner_server_size(), " owners for ",
                 view->shard_count(), " shards");
  }
  for (int32_t i = 0; i < view->shard_count(); ++i)
    view->owners_.Add({proto.owner_server(i), proto.owner_thread(i)});
  view->proto_ = std::move(proto);
  view->followers_.AddShards(view->shard_count());
  const wire::Follower* before = nullptr;
  for (const wire::Follower& follower : view->proto_.follower()) {
    SL_RETURN_IF_ERROR(view->UnlessShard(follower.shard()));
    if (before != nullptr &&
        std::pair(before->shard(), before->server()) >=
            std::pair(follower.shard(), follower.server())) {
      return Unfit(view->number(), "the follower of shard ", follower.shard(),
                   " on server ", follower.server(),
                   " comes after that of shard ", before->shard(),
                   " on server ", before->server(),
                   "; followers must be sorted, each there once");
    }
    view->followers_.Put(follower);
    before = &follower;
  }
  view->proto_.clear_follower();
  view->proto_.clear_owner_server();
  view->proto_.clear_owner_thread();
  view->servers_ = MemberList<wire::ServerMember>(
      std::exchange(*view->proto_.mutable_server(), {}));
  view->workers_ = MemberList<wire::WorkerMember>(
      std::exchange(*view->proto_.mutable_worker(), {}));
  view->workers_since_ = view->number();
  SL_RETURN_IF_ERROR(view->CheckMembersAndPhases());
  SL_RETURN_IF_ERROR(view->CheckCut());
  SL_RETURN_IF_ERROR(view->CheckPlacement());
  SL_RETURN_IF_ERROR(view->IndexMoves());
  return std::shared_ptr<const View>(std::move(view));
}

absl::StatusOr<std::shared_ptr<const View>> View::With(
    const wire::ViewChange& change) const {
  if (change.base() != number()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a change of view ", change.base(),
                     " cannot be made to view ", number()));
  }
  if (change.number() <= number())
    return Unfit(change.number(), "it changes view ", number());
  std::shared_ptr<View> view(new View(*this));
  wire::View& proto = view->proto_;
  proto.set_number(change.number());
  proto.set_state(change.state());
  if (change.has_end()) *proto.mutable_end() = change.end();
  proto.clear_change();
  if (change.has_change()) *proto.mutable_change() = change.change();
  proto.set_arrived(change.arrived());
  proto.set_end_clock(change.end_clock());
  proto.set_group(change.group());
  proto.set_entered(change.entered());
  proto.mutable_phase()->MergeFrom(change.phase());
  if (change.has_cut()) {
    if (change.cut().number() <= proto.cut().number()) {
      return Unfit(change.number(), "cut ", change.cut().number(),
                   " comes after cut ", proto.cut().number());
    }
    *proto.mutable_cut() = change.cut();
    SL_RETURN_IF_ERROR(view->CheckCut());
  }

  // Owners and followers that are not named below have to be looked at again.
  bool threads_gone = false;
  for (const int32_t index : change.server_gone()) {
    view->servers_.Remove(index);
    threads_gone = true;
  }
  for (const int32_t rank : change.worker_gone()) view->workers_.Remove(rank);
  for (const wire::ServerMember& server : change.server()) {
    const wire::ServerMember* const before = FindServer(server.index());
    threads_gone |=
        before != nullptr && server.thread_size() < before->thread_size();
    view->servers_.Put(server);
  }
  for (const wire::WorkerMember& worker : change.worker())
    view->workers_.Put(worker);
  if (change.worker_size() > 0 || change.worker_gone_size() > 0)
    view->workers_since_ = change.number();
  SL_RETURN_IF_ERROR(view->CheckMembersAndPhases());

  if (change.split_size() > 0) {
    auto ranges = std::make_shared<Ranges>(*ranges_);
    SL_RETURN_IF_ERROR(
        AddSplits(change.split(), change.number(), ranges.get()));
    view->ranges_ = std::move(ranges);
    for (const wire::Split& split : change.split()) {
      view->owners_.Add(view->owners_[split.shard()]);
      view->followers_.AddShardLike(split.shard());
    }
    proto.mutable_split()->MergeFrom(change.split());
  }
  for (const wire::ShardOwner& owner : change.owner()) {
    SL_RETURN_IF_ERROR(view->UnlessShard(owner.shard()));
    view->owners_.Set(owner.shard(), {owner.server(), owner.thread()});
  }
  for (const wire::FollowerGone& gone : change.follower_gone()) {
    SL_RETURN_IF_ERROR(view->UnlessShard(gone.shard()));
    view->followers_.Remove(gone.shard(), gone.server());
  }
  for (const wire::Follower& follower : change.follower()) {
    SL_RETURN_IF_ERROR(view->UnlessShard(follower.shard()));
    view->followers_.Put(follower);
  }
  if (threads_gone) {
    SL_RETURN_IF_ERROR(view->CheckPlacement());
  } else {
    for (const wire::ShardOwner& owner : change.owner()) {
      SL_RETURN_IF_ERROR(view->CheckOwner(owner.shard()));
      SL_RETURN_IF_ERROR(view->CheckFollowers(owner.shard()));
    }
    for (const wire::Follower& follower : change.follower())
      SL_RETURN_IF_ERROR(view->CheckFollowers(follower.shard()));
  }

  if (change.move_gone_size() > 0) {
    const std::vector<int32_t> gone(change.move_gone().begin(),
                                    change.move_gone().end());
    auto& moves = *proto.mutable_move();
    moves.erase(std::remove_if(moves.begin(), moves.end(),
                               [&](const wire::Move& move) {
                                 return std::find(gone.begin(), gone.end(),
                                                  move.shard()) != gone.end();
                               }),
                moves.end());
  }
  proto.mutable_move()->MergeFrom(change.move());
  SL_RETURN_IF_ERROR(view->IndexMoves());
  return std::shared_ptr<const View>(std::move(view));
}

wire::View View::ToProto() const {
  wire::View proto = proto_;
  for (int32_t i = 0; i < shard_count(); ++i) {
    proto.add_owner_server(owners_[i].server);
    proto.add_owner_thread(owners_[i].thread);
  }
  followers_.AddTo(proto.mutable_follower());
  servers_.AddTo(proto.mutable_server());
  workers_.AddTo(proto.mutable_worker());
  return proto;
}

// ---- Looking things up ------------------------------------------------------

bool View::OwnsAny(int32_t server) const {
  for (int32_t i = 0; i < shard_count(); ++i) {
    if (owners_[i].server == server) return true;
  }
  return false;
}

bool View::FollowsAny(int32_t server) const {
  for (int32_t i = 0; i < shard_count(); ++i) {
    for (const wire::Follower& follower : followers_[i]) {
      if (follower.server() == server) return true;
    }
  }
  return false;
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

std::string View::ShardName(ShardId id) const {
  const ShardRange& range = shard(id);
  return absl::StrCat(table(range.table).name(), range.region.Text());
}

const wire::ServerMember* View::FindServer(int32_t index) const {
  return servers_.Find(index);
}

const wire::WorkerMember* View::FindWorker(Rank rank) const {
  return workers_.Find(static_cast<int32_t>(rank));
}

const wire::WorkerMember* View::FindWorker(Rank rank,
                                           Incarnation incarnation) const {
  const wire::WorkerMember* const worker = FindWorker(rank);
  return worker != nullptr && worker->incarnation() == incarnation ? worker
                                                                   : nullptr;
}

const wire::WorkerMember* ChiefOf(const View& view) {
  return view.workers().empty() ? nullptr : &*view.workers().begin();
}

// ---- Placement --------------------------------------------------------------

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
    for (const Region& piece : RegionOf(placed).Pieces(placed.shard_elements()))
      shard_sizes.push_back(piece.size());
  }
  std::vector<int> by_size(shard_sizes.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) {
    return shard_sizes[a] > shard_sizes[b];
  });
  // Bytes that a thread has so far, and which one it is.
  using Load = std::pair<int64_t, size_t>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (size_t i = 0; i < threads.size(); ++i) loads.emplace(0, i);
  std::vector<Owner> owners(shard_sizes.size());
  for (const int shard : by_size) {
    const auto [load, least] = loads.top();
    loads.pop();
    loads.emplace(load + shard_sizes[shard], least);
    owners[shard] = threads[least];
  }
  view->clear_owner_server();
  view->clear_owner_thread();
  for (const Owner& owner : owners) {
    view->add_owner_server(owner.server);
    view->add_owner_thread(owner.thread);
  }
}

}  // namespace slackline
