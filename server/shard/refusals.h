// What a shard thread answers to a request that it does not do.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "proto/wire.pb.h"

namespace slackline {

// The same request may be done a little later.
inline wire::Refusal Retry() {
  wire::Refusal refusal;
  refusal.mutable_retry();
  return refusal;
}

// The request makes no sense.
inline wire::Refusal Rejected(std::string why) {
  wire::Refusal refusal;
  refusal.set_rejected(std::move(why));
  return refusal;
}

// The shard is elsewhere; nullopt: who asks has to find out where.
inline wire::Refusal Moved(std::optional<wire::Relocation> to) {
  wire::Refusal refusal;
  refusal.mutable_moved();
  if (to.has_value()) *refusal.mutable_moved()->mutable_to() = *std::move(to);
  return refusal;
}

// Who asks is no member of the job.
inline wire::Refusal Fenced() {
  wire::Refusal refusal;
  refusal.mutable_fenced();
  return refusal;
}

}  // namespace slackline
