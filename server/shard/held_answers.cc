#include "server/shard/held_answers.h"

#include <algorithm>
#include <utility>

namespace slackline {

void HeldAnswers::Add(Outgoing out, std::vector<Need> needs) {
  const PeerId to = out.to;
  waiting_[to].push_back({.out = std::move(out), .needs = std::move(needs)});
  ++count_;
}

void HeldAnswers::Release(absl::FunctionRef<bool(const Need&)> met,
                          std::vector<Outgoing>* sends) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    std::deque<Waiting>& messages = at->second;
    while (!messages.empty()) {
      std::vector<Need>& needs = messages.front().needs;
      while (!needs.empty() && met(needs.back())) needs.pop_back();
      if (!needs.empty()) break;
      sends->push_back(std::move(messages.front().out));
      messages.pop_front();
      --count_;
    }
    at = messages.empty() ? waiting_.erase(at) : std::next(at);
  }
}

void HeldAnswers::DropAbout(ShardId shard) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    std::deque<Waiting>& messages = at->second;
    count_ -= std::erase_if(messages, [&](const Waiting& message) {
      return std::any_of(message.needs.begin(), message.needs.end(),
                         [&](const Need& need) { return need.shard == shard; });
    });
    at = messages.empty() ? waiting_.erase(at) : std::next(at);
  }
}

}  // namespace slackline
