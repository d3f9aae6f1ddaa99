#include "server/shard/stale_pushes.h"

#include <algorithm>

namespace slackline {
namespace {
const float* Floats(const Payload& payload) {
  return reinterpret_cast<const float*>(payload.data());
}
}  // namespace

void StalePushes::OnAnswer(Rank rank, Incarnation incarnation, Version version,
                           const Payload& values) {
  Bases& of_worker = bases_of_[rank];
  if (of_worker.incarnation != incarnation) {
    // Of another life of the worker, nothing comes any more.
    of_worker.bases.clear();
    of_worker.incarnation = incarnation;
  }
  auto& bases = of_worker.bases;
  bases.erase(
      std::remove_if(bases.begin(), bases.end(),
                     [&](const Base& base) { return base.version == version; }),
      bases.end());
  if (bases.size() == kBasesPerWorker) bases.erase(bases.begin());
  bases.push_back({.version = version, .values = values});
}

StaleRule::Verdict StalePushes::OnPush(const Push& push) {
  const Payload* then = nullptr;  // What the worker was answered.
  if (const auto of_worker = bases_of_.find(push.rank);
      of_worker != bases_of_.end() &&
      of_worker->second.incarnation == push.incarnation) {
    for (const Base& base : of_worker->second.bases) {
      if (base.version == push.base) then = &base.values;
    }
  }
  StaleRule::Args args;
  args.gradient = push.gradient->data();
  args.elements = push.gradient->size() / sizeof(float);
  args.now = Floats(*push.values);
  args.then = then == nullptr ? nullptr : Floats(*then);
  args.missed_updates =
      push.base < push.now ? static_cast<int64_t>(push.now - push.base) : 0;
  args.workers = push.workers;
  args.maximize = maximize_;
  return rule_.Judge(args, &memory_);
}

void StalePushes::OnUpdate(const Payload& before, const Payload& after) {
  rule_.Updated(Floats(before), Floats(after), after.size() / sizeof(float),
                &memory_);
}

void StalePushes::ForgetStrangers(const Participants& participants) {
  absl::erase_if(bases_of_, [&](const auto& entry) {
    return participants.Find(entry.first, entry.second.incarnation) == nullptr;
  });
}

void StalePushes::Forget() {
  bases_of_.clear();
  memory_ = {};
}

}  // namespace slackline
