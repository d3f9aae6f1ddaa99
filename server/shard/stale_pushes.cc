#include "server/shard/stale_pushes.h"

#include <algorithm>

namespace slackline {
namespace {
constexpr int kBasesPerWorker = 2;

const float* Floats(const Payload& payload) {
  return reinterpret_cast<const float*>(payload.data());
}
}  // namespace

void StalePushes::OnAnswer(Rank rank, Incarnation incarnation, Version version,
                           const Payload& values) {
  if (!rule_.NeedsBase()) return;
  // Of another life of the worker, nothing comes any more.
  std::erase_if(bases_, [&](const Base& base) {
    return base.rank == rank &&
           (base.incarnation != incarnation || base.version == version);
  });
  const auto of_worker = [&](const Base& base) { return base.rank == rank; };
  if (std::count_if(bases_.begin(), bases_.end(), of_worker) >=
      kBasesPerWorker) {
    bases_.erase(std::find_if(bases_.begin(), bases_.end(), of_worker));
  }
  bases_.push_back({.rank = rank,
                    .incarnation = incarnation,
                    .version = version,
                    .values = values});
}

StaleRule::Verdict StalePushes::OnPush(const Push& push) {
  const auto base =
      std::find_if(bases_.begin(), bases_.end(), [&](const Base& known) {
        return known.rank == push.rank &&
               known.incarnation == push.incarnation &&
               known.version == push.base;
      });
  StaleRule::Args args;
  args.gradient = push.gradient->data();
  args.elements = push.gradient->size() / sizeof(float);
  args.now = Floats(*push.values);
  args.then = base == bases_.end() ? nullptr : Floats(base->values);
  args.missed_updates =
      push.base < push.now ? static_cast<int64_t>(push.now - push.base) : 0;
  args.workers = push.workers;
  return rule_.Judge(args, &memory_);
}

void StalePushes::OnUpdate(const Payload& before, const Payload& after) {
  rule_.Updated(Floats(before), Floats(after), after.size() / sizeof(float),
                &memory_);
}

void StalePushes::Forget() {
  bases_.clear();
  memory_ = {};
}

}  // namespace slackline
