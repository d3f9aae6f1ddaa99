#include "tests/sim/check/shard_twin.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace slackline::sim {

void UpdateMinClock(ShardTwin& twin) {
  std::optional<Clock> min_clock;
  for (const auto& [life, participant] : twin.participants) {
    if (!participant.present) continue;
    min_clock =
        std::min(min_clock.value_or(participant.clock), participant.clock);
  }
  twin.min_clock = min_clock.value_or(twin.min_clock);
  twin.complete = std::max(twin.complete, twin.min_clock);
}

int PresentCount(const ShardTwin& twin) {
  int count = 0;
  for (const auto& [life, participant] : twin.participants)
    count += participant.present;
  return count;
}

ShardTwin SplitTwin(const View& view, const wire::Split& split, int32_t id,
                    ShardTwin* whole) {
  if (!whole->log.empty())
    whole->earlier.push_back(std::make_shared<const ShardTwin>(*whole));
  ShardTwin rest = *whole;
  rest.leads.clear();
  rest.before_split.clear();
  whole->before_split.push_back({split.since(), whole->versions});
  const int64_t length = split.at() - whole->range.region.begin();
  const auto keep = [&](Tensor& values) {
    values.resize(static_cast<size_t>(length));
  };
  const auto split_off = [&](Tensor& values) {
    values.erase(values.begin(), values.begin() + length);
  };
  std::for_each(whole->versions.begin(), whole->versions.end(), keep);
  std::for_each(rest.versions.begin(), rest.versions.end(), split_off);
  for (Versions& slots : whole->slots)
    std::for_each(slots.begin(), slots.end(), keep);
  for (Versions& slots : rest.slots)
    std::for_each(slots.begin(), slots.end(), split_off);
  const Region both = whole->range.region;
  whole->range.region = {both.begin(), split.at()};
  rest.range.region = {split.at(), both.end()};
  rest.range.shard = ShardId{id};
  rest.origin = split.shard();
  // At those places it was whole.
  for (ShardTwin* const part : {whole, &rest}) {
    for (auto& [index, logged] : part->log) logged.exact = false;
  }
  for (ShardTwin* const part : {whole, &rest}) {
    part->name = absl::StrCat(view.table(part->range.table).name(),
                              part->range.region.Text());
  }
  return rest;
}

bool Deposes(const View& view, int32_t shard, Owner owner) {
  if (view.OwnerOf(ShardId{shard}) == owner) return false;
  const wire::Move* const move = view.FindMove(ShardId{shard});
  return move == nullptr || Owner{move->server(), move->thread()} != owner;
}

}  // namespace slackline::sim
