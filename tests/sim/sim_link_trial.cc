#include "tests/sim/sim_link_trial.h"

namespace slackline::sim {
namespace {

constexpr absl::Duration kConnectEvery = absl::Milliseconds(50);

}  // namespace

void SimLinkTrial::Begin(const wire::TryLinks& links) {
  End();
  round_ = links.round();
  for (const wire::ServerMember& server : links.server()) {
    for (int thread = 0; thread < server.thread_size(); ++thread)
      left_.insert({server.index(), thread});
  }
  lifetime_.emplace();
  LookAfter(absl::ZeroDuration());
}

void SimLinkTrial::End() {
  lifetime_.reset();
  round_ = 0;
  left_.clear();
  said_.reset();
}

void SimLinkTrial::LookAfter(absl::Duration delay) {
  machine_->After(delay, lifetime_->Guard([this] { Look(); }));
}

void SimLinkTrial::Look() {
  std::erase_if(left_, [&](const Thread& thread) {
    return context_->network.Connects(
        self_, {.kind = PeerId::Kind::kShardThread,
                .index = thread.first,
                .instance = static_cast<uint64_t>(thread.second)});
  });
  if (!left_.empty()) {
    ++context_->links_missed;
    LookAfter(kConnectEvery);
  }
  if (said_ == left_.size()) return;
  said_ = left_.size();
  wire::LinksTried tried;
  tried.set_round(round_);
  for (const auto& [server, thread] : left_) {
    wire::Unreached& unreached = *tried.add_unreached();
    unreached.set_index(server);
    unreached.set_thread(thread);
  }
  say_(tried);
}

}  // namespace slackline::sim
