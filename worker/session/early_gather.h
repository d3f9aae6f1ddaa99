// EarlyGather: what the workers' programs ask of the coordinator before their
// first batch, when nobody has joined the job: collectives, and where they will
// begin. A client without a core: it repeats its call until it is answered, and
// decides nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/message.h"
#include "common/mutex.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "common/payload.h"
#include "common/time/time_source.h"
#include "proto/cluster.pb.h"
#include "worker/session/session.h"

namespace slackline {

class EarlyGather {
 public:
  struct Options {
    config::ClusterConfig config;  // From LoadJobConfig().
    Rank rank{};
    TimeSource time;
  };
  // Nobody needs to listen at the coordinator's address yet.
  // `network` outlives it.
  static absl::StatusOr<std::unique_ptr<EarlyGather>> Connect(
      Transport& network, const Options& options);

  // As Session::Gather(), of all workers of the config. DeadlineExceeded names
  // who has not come within limits.start_timeout_ms; InvalidArgument: the
  // coordinator refuses; Unavailable: it is gone. One thread calls it.
  absl::StatusOr<Session::Gathered> Gather(uint32_t number,
                                           const Payload& payload);
  // The epoch in which a worker that joins now begins (StatusReply.epoch).
  // Errors as of Gather().
  absl::StatusOr<int64_t> Epoch();
  // Any thread: what waits, and all later calls, return Cancelled.
  void Interrupt(const std::string& reason);

 private:
  // An address at which the coordinator is, or may be where any server takes
  // over while the job runs: a worker may be started again then.
  struct Place {
    std::string endpoint;
    std::unique_ptr<Channel> channel = nullptr;
    bool up = false;  // Somebody listens there.
    absl::Time refused_since = absl::InfiniteFuture();
  };
  explicit EarlyGather(const Options& options);
  absl::Status interrupted() const;
  // Sends the call until it is answered with OK.
  absl::StatusOr<Message> Ask(wire::Call call, const Payload& payload);
  // Whether somebody has begun to listen. Unavailable: the coordinator is gone.
  absl::StatusOr<bool> LookAtLinks();
  // The answer to a call, from whichever place; none has come yet.
  absl::StatusOr<std::optional<Message>> Receive(uint64_t call_id);
  bool any_up() const;

  const Options options_;
  std::vector<Place> places_;
  Waker waker_;
  Poller poller_;
  uint64_t last_call_id_ = 0;
  mutable Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slackline
