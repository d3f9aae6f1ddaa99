#include "common/net/process/process_transport.h"

#include <utility>

#include "common/net/shm/shm_transport.h"
#include "common/net/zmq/zmq_transport.h"

namespace slackline {
namespace {

ZmqTransport::Options NetworkOptions(const KeyWatch* watch) {
  ZmqTransport::Options options;
  if (watch != nullptr) options.keys = watch->keys();
  return options;
}

}  // namespace

ProcessTransport::ProcessTransport(const std::optional<KeySource>& source,
                                   KeyWatch::Say say)
    : key_watch_(source.has_value()
                     ? std::make_unique<KeyWatch>(*source, std::move(say))
                     : nullptr),
      network_(
          std::make_unique<ZmqTransport>(NetworkOptions(key_watch_.get()))),
      all_(std::make_unique<ShmTransport>(*network_)) {}

std::optional<Secret> ProcessTransport::ring() const {
  if (key_watch_ == nullptr) return std::nullopt;
  return key_watch_->keys()->Get()->credentials.ring;
}

}  // namespace slackline
