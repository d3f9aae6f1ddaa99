#include "tests/sim/sim_stranger.h"

#include <algorithm>

#include "tests/support/strange_message.h"

namespace slackline::sim {
namespace {

constexpr size_t kSamples = 24;
constexpr uint64_t kIdentities = 6;

}  // namespace

void SimStranger::Counts::Add(const Counts& other) {
  sent += other.sent;
  unreadable += other.unreadable;
  answers += other.answers;
}

SimStranger::SimStranger(SimContext* context)
    : context_(context), rng_(Rng(context->scenario.seed).Fork("stranger")) {
  if (context_->scenario.garbage.empty()) return;
  context_->network.on_deliver = [this](const PeerId& from, const PeerId& to,
                                        const Message& message) {
    if (IsStranger(from)) return;
    if (to.kind != PeerId::Kind::kCoordinator &&
        to.kind != PeerId::Kind::kShardThread) {
      return;
    }
    ++seen_;
    if (samples_.size() < kSamples) {
      samples_.push_back({.to = to, .message = message});
    } else if (rng_.Chance(0.2)) {
      samples_[rng_.Below(kSamples)] = {.to = to, .message = message};
    }
  };
  for (const GarbageFault& fault : context_->scenario.garbage) {
    context_->queue.After(
        fault.at, lifetime_.Guard([this, luck = fault.luck] { Send(luck); }));
  }
}

bool SimStranger::IsStranger(const PeerId& peer) {
  return ~peer.instance < kIdentities;
}

bool SimStranger::Change(Rng& rng, Message* message) {
  switch (rng.Below(5)) {
    case 0: {  // Some bytes of the header.
      std::string bytes = message->header.SerializeAsString();
      if (bytes.empty()) return false;
      for (uint64_t left = 1 + rng.Below(4); left > 0; --left)
        bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Below(256));
      return message->header.ParseFromString(bytes);
    }
    case 1: {  // Cut short.
      const std::string bytes = message->header.SerializeAsString();
      return message->header.ParseFromString(
          bytes.substr(0, rng.Below(bytes.size() + 1)));
    }
    case 2:
      ChangePayloads(rng, &message->payloads);
      return true;
    case 3:
      for (uint64_t left = 1 + rng.Below(3); left > 0; --left)
        ChangeField(rng, &message->header);
      return true;
    default:  // As it was, but for who sends it.
      return true;
  }
}

bool SimStranger::MakesSense(const Message& message) {
  const wire::Header& header = message.header;
  const wire::Call& call = header.call();
  return header.has_join_request() || call.has_stop() || call.has_suspend() ||
         call.has_rebalance() || call.has_move_shards() || call.has_drain() ||
         call.has_set_mode();
}

void SimStranger::Send(uint64_t luck) {
  if (samples_.empty()) return;
  Rng rng(luck);
  const Sample& sample = samples_[rng.Below(samples_.size())];
  Message message = sample.message;
  if (message.header.has_join_request()) {
    // Of another job, whose processes have the wrong address.
    message.header.mutable_join_request()->set_job("another");
    message.header.mutable_join_request()->set_token(rng.Next());
  } else if (!Change(rng, &message)) {
    ++counts_.unreadable;
    return;
  } else if (MakesSense(message)) {
    return;
  }
  if (rng.Chance(0.3)) message.header.set_run(rng.Next());  // An earlier one's.
  constexpr PeerId::Kind kKinds[] = {
      PeerId::Kind::kWorker, PeerId::Kind::kServer, PeerId::Kind::kObserver};
  // An index of a member, and an instance that nobody has.
  PeerId self;
  self.kind = kKinds[rng.Below(3)];
  self.index = static_cast<int32_t>(rng.Below(kIdentities)) - 1;
  self.instance = ~uint64_t{0} - rng.Below(kIdentities);
  context_->network.Attach(
      self, context_->scenario.UserNode(),
      [this](const PeerId&, const Message&) { ++counts_.answers; });
  ++counts_.sent;
  context_->network.Send(self, sample.to, std::move(message));
}

}  // namespace slackline::sim
