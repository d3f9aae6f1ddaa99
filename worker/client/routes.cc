#include "worker/client/routes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/endpoint.h"

namespace slackline {

bool Routes::Has(Owner owner) const {
  const wire::ServerMember* const server = view_->FindServer(owner.server);
  return server != nullptr && owner.thread >= 0 &&
         owner.thread < server->thread_size();
}

std::string Routes::NameOf(Owner owner) const {
  std::string name =
      absl::StrCat("server ", owner.server, " thread ", owner.thread);
  if (Has(owner)) {
    absl::StrAppend(
        &name, " (",
        NetworkEndpoint(view_->FindServer(owner.server)->thread(owner.thread)),
        ")");
  }
  return name;
}

uint64_t Routes::ViewIsAsOf(int32_t shard) const {
  const wire::Move* const move = view_->FindMove(ShardId{shard});
  return move == nullptr ? view_->number() : move->id() - 1;
}

Routes::Change Routes::Adopt(std::shared_ptr<const View> view) {
  Change change;
  // To whom we would have sent until now; of shards that may be elsewhere.
  std::map<int32_t, Owner> known;
  for (const int32_t shard : view_->OwnersThatDiffer(*view))
    known[shard] = OwnerOf(shard);
  for (const auto& [shard, route] : newer_) known[shard] = route.owner;
  const std::shared_ptr<const View> before =
      std::exchange(view_, std::move(view));
  int32_t shards = before->shard_count();
  std::map<int32_t, Region> regions;  // Of shards that were split so far.
  for (int i = before->proto().split_size(); i < view_->proto().split_size();
       ++i) {
    const wire::Split& split = view_->proto().split(i);
    const int32_t kept = split.shard();
    const int32_t split_off = shards++;
    const auto at = known.find(kept);
    known[split_off] =
        at == known.end() ? before->OwnerOf(ShardId{kept}) : at->second;
    if (const auto newer = newer_.find(kept); newer != newer_.end()) {
      const Route route = newer->second;
      newer_[split_off] = route;
    }
    const auto whole = regions.try_emplace(
        kept, before->HasShard(kept) ? before->shard(ShardId{kept}).region
                                     : Region());
    const auto [of_kept, of_split_off] =
        whole.first->second.SplitAt(split.at());
    regions[kept] = of_kept;
    regions[split_off] = of_split_off;
    change.splits.push_back({.kept = kept,
                             .split_off = split_off,
                             .of_kept = of_kept,
                             .of_split_off = of_split_off,
                             .view = view_});
  }
  absl::erase_if(newer_, [&](const auto& entry) {
    return entry.second.as_of <= ViewIsAsOf(entry.first);
  });
  change.moved = std::any_of(
      known.begin(), known.end(),
      [&](const auto& entry) { return OwnerOf(entry.first) != entry.second; });
  return change;
}

bool Routes::Relocate(int32_t shard, const wire::Relocation& relocation) {
  const Owner owner{relocation.server(), relocation.thread()};
  // It may be a server that our view does not have yet.
  if (!view_->HasShard(shard) || !Has(owner)) return false;
  const Owner known = OwnerOf(shard);
  const auto newer = newer_.find(shard);
  if (relocation.as_of() <=
      (newer == newer_.end() ? ViewIsAsOf(shard) : newer->second.as_of)) {
    return false;
  }
  newer_[shard] = {.owner = owner, .as_of = relocation.as_of()};
  return known != owner;
}

}  // namespace slackline
