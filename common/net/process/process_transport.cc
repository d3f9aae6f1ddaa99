#include "common/net/process/process_transport.h"

#include <utility>

#include "common/net/shm/shm_transport.h"
#include "common/net/zmq/zmq_transport.h"

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
      network_(std::make_unique<ZmqTransport>(NetworkOptions(follower_.get()))),
      all_(std::make_unique<ShmTransport>(*network_)) {}

std::optional<Secret> ProcessTransport::ring() const {
  if (follower_ == nullptr) return std::nullopt;
  return follower_->keys()->Get()->credentials.ring;
}

}  // namespace slackline
