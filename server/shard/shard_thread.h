// ShardThread: the driver of a ShardCore. Owns the thread and its ROUTER
// socket, to which workers connect by tcp or ipc and the server's control
// thread by inproc. Decides nothing.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "common/optim/optimizer.h"
#include "proto/cluster.pb.h"
#include "server/shard/shard_core.h"

namespace slackline {

class ShardThread {
 public:
  struct Options {
    ShardCore::Options core;
    std::string host;  // Numeric address to listen on.
    int port = 0;      // 0: the system chooses.
    bool ipc = true;   // Listen for workers on this host as well.
  };
  // Binds, then starts the thread. The error names the endpoint and the fix.
  static absl::StatusOr<std::unique_ptr<ShardThread>> Start(
      NetContext& context, const Options& options, Optimizer optimizer,
      const config::LearningRateSchedule& schedule);
  // Ends the thread; what workers have sent and it has not read is dropped.
  ~ShardThread();

  const wire::Endpoints& endpoints() const { return endpoints_; }
  // Where the control thread connects; it takes View and StatsRequest.
  const std::string& control_endpoint() const { return control_endpoint_; }

 private:
  ShardThread(std::unique_ptr<RouterSocket> router, const Options& options,
              Optimizer optimizer,
              const config::LearningRateSchedule& schedule);
  void Run();
  void Handle(const RouterSocket::Incoming& incoming);
  void Perform();

  std::unique_ptr<RouterSocket> router_;
  wire::Endpoints endpoints_;
  std::string control_endpoint_;
  std::atomic<bool> stopping_{false};
  Waker waker_;
  // Of the thread.
  ShardCore core_;
  ShardCore::Effects effects_;
  std::string trace_;
  std::thread thread_;
};

}  // namespace slackline
