#include "server/shard/thread_cut.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace slackline {

void ThreadCut::OnView(const ShardParts& at) {
  const wire::View& view = at.view->proto();
  if (view.cut().number() > seen_ || view.state() != wire::RUNNING)
    Drop(at.places);
}

void ThreadCut::Begin(const ShardParts& at) {
  const wire::Cut& cut = at.view->proto().cut();
  if (cut.number() <= seen_) return;
  seen_ = cut.number();
  if (cut.by_worker()) return;
  Pending& pending = pending_.emplace(Pending());
  pending.state.number = cut.number();
  pending.state.run = at.view->proto().run();
  const auto limits = std::make_shared<const CutLimits>(cut);
  const std::vector<ServedShard*> served = at.places.AllServed();
  pending.missing = served.size();
  for (ServedShard* const shard : served) shard->BeginCut(limits);
  // Some may be there already.
  for (ServedShard* const shard : served) {
    if (std::optional<ShardState> state = shard->TakeAtCut())
      Add(*std::move(state), at);
  }
  EndIfComplete(at);
}

void ThreadCut::Drop(ShardPlaces& places) {
  if (!pending_.has_value()) return;
  pending_.reset();
  for (ServedShard* const served : places.AllServed()) served->DropCut();
}

void ThreadCut::Fail(ShardId shard, const absl::Status& why,
                     const ShardParts& at) {
  ShardCutState state{
      .number = pending_->state.number,
      .run = pending_->state.run,
      .error = absl::StrCat("shard ", at.view->ShardName(shard),
                            " has no state at the cut: ", why.message())};
  Drop(at.places);
  at.effects.cut = std::move(state);
}

void ThreadCut::Add(ShardState state, const ShardParts& at) {
  pending_->state.shards.push_back(std::move(state));
  --pending_->missing;
  EndIfComplete(at);
}

void ThreadCut::EndIfComplete(const ShardParts& at) {
  if (!pending_.has_value() || pending_->missing > 0) return;
  std::vector<ShardState>& shards = pending_->state.shards;
  std::sort(shards.begin(), shards.end(),
            [](const ShardState& a, const ShardState& b) {
              return std::tie(a.table, a.region) < std::tie(b.table, b.region);
            });
  at.effects.cut = std::move(pending_->state);
  pending_.reset();
}

}  // namespace slackline
