// EarlyGather: collectives of the workers' programs before their first batch,
// when nobody has joined the job. A client of the coordinator without a core:
// it repeats its call until it is answered, and decides nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/payload.h"
#include "common/time/time_source.h"
#include "proto/cluster.pb.h"
#include "worker/session/session.h"

namespace slackline {

class EarlyGather {
 public:
  struct Options {
    config::ClusterConfig config;  // Of LoadJobConfig().
    Rank rank{};
    TimeSource time;
  };
  // Nobody needs to listen at the coordinator's address yet.
  static absl::StatusOr<std::unique_ptr<EarlyGather>> Connect(
      const Options& options);

  // As Session::Gather(), of all workers of the config. DeadlineExceeded names
  // who has not come within limits.start_timeout_ms; InvalidArgument: the
  // coordinator refuses; Unavailable: it is gone. One thread calls it.
  absl::StatusOr<Session::Gathered> Gather(uint32_t number,
                                           const Payload& payload);
  // Any thread: what waits, and all later calls, return Cancelled.
  void Interrupt(const std::string& reason);

 private:
  explicit EarlyGather(const Options& options);
  absl::Status interrupted() const;

  const Options options_;
  // Of server 0: nobody else has the coordinator before the job runs.
  const std::string endpoint_;
  ZmqTransport transport_;
  std::unique_ptr<Channel> channel_;
  Waker waker_;
  Poller poller_;
  bool up_ = false;  // Somebody listens at the coordinator's address.
  uint64_t last_call_id_ = 0;
  mutable Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slackline
