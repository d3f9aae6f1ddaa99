#include "tools/cli/job/move_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace slackline {

MoveWatch::MoveWatch(const run::Plan& plan, const wire::StatusReply& before) {
  for (const run::PlannedMove& move : plan.move()) {
    planned_[move.shard()] = move;
  }
  for (const run::MoveRecord& record : before.moved()) {
    seen_.insert(record.SerializeAsString());
  }
}

void MoveWatch::Update(const wire::StatusReply& status) {
  updated_ = true;
  view_ = status.view();
  pending_ = 0;
  under_way_ = 0;
  for (const run::PlannedMove& move : status.plan().move()) {
    if (planned_.count(move.shard()) == 0) continue;
    ++pending_;
    if (move.ordered()) ++under_way_;
  }
  for (const run::MoveRecord& record : status.moved()) {
    if (seen_.insert(record.SerializeAsString()).second &&
        planned_.count(record.shard()) > 0) {
      moved_.push_back(record);
    }
  }
}

bool MoveWatch::Recorded(int32_t shard) const {
  return std::any_of(moved_.begin(), moved_.end(),
                     [shard](const run::MoveRecord& record) {
                       return record.shard() == shard;
                     });
}

int MoveWatch::Unrecorded() const {
  const auto recorded = std::count_if(
      planned_.begin(), planned_.end(),
      [this](const auto& entry) { return Recorded(entry.first); });
  return static_cast<int>(planned_.size() - recorded - Abandoned().size());
}

std::vector<std::string> MoveWatch::Abandoned() const {
  std::vector<std::string> sentences;
  for (const auto& [shard, move] : planned_) {
    const bool there = shard < view_.owner_server_size() &&
                       view_.owner_server(shard) == move.to_server() &&
                       view_.owner_thread(shard) == move.to_thread();
    if (Recorded(shard) || there) continue;
    sentences.push_back(absl::StrCat(
        "shard ", shard, " (", move.name(), ") was not moved to ",
        move.to_server(), ".", move.to_thread(),
        "; the coordinator has given that move up, its log says why"));
  }
  return sentences;
}

std::string MoveWatch::Line() const {
  const int all = static_cast<int>(planned_.size());
  return absl::StrCat(all - pending_, " of ", all,
                      all == 1 ? " move" : " moves", " done, ", under_way_,
                      " under way");
}

}  // namespace slackline
