#include "common/net/process_transport.h"

#include <utility>

namespace slackline {
namespace {

ZmqTransport::Options NetworkOptions(const KeyFollower* follower) {
  ZmqTransport::Options options;
  if (follower != nullptr) options.keys = follower->keys();
  return options;
}

}  // namespace

ProcessTransport::ProcessTransport(const std::optional<KeySource>& source,
                                   KeyFollower::Say say)
    : follower_(source.has_value()
                    ? std::make_unique<KeyFollower>(*source, std::move(say))
                    : nullptr),
      network_(NetworkOptions(follower_.get())),
      all_(network_) {}

std::optional<Secret> ProcessTransport::ring() const {
  if (follower_ == nullptr) return std::nullopt;
  return follower_->keys()->Get()->credentials.ring;
}

}  // namespace slackline
