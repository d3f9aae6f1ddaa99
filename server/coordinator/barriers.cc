#include "server/coordinator/barriers.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// Enough for a rejoined worker that repeats an old call; names are used once.
constexpr size_t kPassedMax = 1024;
constexpr size_t kNameBytesMax = 256;

}  // namespace

void Barriers::Enter(const Member& worker, uint64_t call_id,
                     const std::string& name, CoordinatorEffects* effects) {
  const auto answer = [&](wire::Code code, const std::string& error) {
    effects->sends.push_back(AnswerTo(worker.peer, call_id, code, error));
  };
  if (name.size() > kNameBytesMax) {
    return answer(wire::REJECTED, absl::StrCat("the barrier's name has ",
                                               name.size(), " bytes; at most ",
                                               kNameBytesMax, " are allowed"));
  }
  if (std::find(passed_.begin(), passed_.end(), name) != passed_.end())
    return answer(wire::OK, "");
  const Waiting waiting{.from = worker.peer, .call_id = call_id};
  const auto barrier = barriers_.find(name);
  if (barrier != barriers_.end() &&
      barrier->second.count(worker.incarnation) > 0) {
    barrier->second[worker.incarnation] = waiting;
    return;
  }
  if (waiting_ >= waiting_max_)
    return answer(wire::RETRY, "too many calls wait already");
  barriers_[name][worker.incarnation] = waiting;
  ++waiting_;
}

void Barriers::Complete(const std::map<int32_t, Member*>& workers,
                        CoordinatorEffects* effects) {
  for (auto barrier = barriers_.begin(); barrier != barriers_.end();) {
    const bool complete =
        std::all_of(workers.begin(), workers.end(), [&](const auto& entry) {
          const Member& worker = *entry.second;
          return worker.done || barrier->second.count(worker.incarnation) > 0;
        });
    if (!complete) {
      ++barrier;
      continue;
    }
    for (const auto& [incarnation, waiting] : barrier->second) {
      effects->sends.push_back(
          AnswerTo(waiting.from, waiting.call_id, wire::OK));
    }
    waiting_ -= static_cast<int>(barrier->second.size());
    if (passed_.size() >= kPassedMax) passed_.pop_front();
    passed_.push_back(barrier->first);
    barrier = barriers_.erase(barrier);
  }
}

void Barriers::Forget(Incarnation incarnation) {
  for (auto barrier = barriers_.begin(); barrier != barriers_.end();) {
    waiting_ -= static_cast<int>(barrier->second.erase(incarnation));
    barrier =
        barrier->second.empty() ? barriers_.erase(barrier) : std::next(barrier);
  }
}

}  // namespace slackline
