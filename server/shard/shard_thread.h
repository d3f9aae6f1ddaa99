// ShardThread: the driver of a ShardCore. Owns the thread, its ROUTER socket,
// to which workers and other shard threads connect by tcp or ipc and the
// server's control thread by inproc, and DEALER sockets to the shard threads
// that it hands shards over to. Measures the load. Decides nothing.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "common/optim/optimizer.h"
#include "proto/cluster.pb.h"
#include "server/shard/load_meter.h"
#include "server/shard/shard_core.h"

namespace slackline {

class ShardThread {
 public:
  struct Options {
    ShardCore::Options core;
    std::string host;  // Numeric address to listen on.
    int port = 0;      // 0: the system chooses.
    config::Limits::Transport transport = config::Limits::AUTO;
    // For experiments: works this many times slower than it could. At least 1.
    double slowdown = 1;
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
  ShardThread(NetContext& context, std::unique_ptr<RouterSocket> router,
              const Options& options, Optimizer optimizer,
              const config::LearningRateSchedule& schedule);
  void Run();
  // What the batch from `begin` on cost: to be told to the meter.
  void Account(absl::Time begin, absl::Duration cpu_begin,
               LoadMeter::Batch batch);
  // Takes in what has arrived; the time that messages waited goes to `*batch`.
  void HandleBatch(absl::Time begin, LoadMeter::Batch* batch);
  void Handle(const RouterSocket::Incoming& incoming);
  void OnView(const wire::View& view);
  void Perform();
  void SendHandOver(const Outgoing& outgoing);
  Outgoing StatsReplyTo(const PeerId& to);
  void Stop(const absl::Status& status);

  NetContext& context_;
  const Options options_;
  std::unique_ptr<RouterSocket> router_;
  wire::Endpoints endpoints_;
  std::string control_endpoint_;
  std::atomic<bool> stopping_{false};
  Waker waker_;
  // Of the thread.
  ShardCore core_;
  ShardCore::Effects effects_;
  std::vector<ShardWork> work_;  // Of the present batch.
  LoadMeter meter_;
  absl::Duration sleep_owed_;    // For Options::slowdown.
  absl::Duration kept_waiting_;  // For a processor, as of the last look at it,
  absl::Duration kept_in_batches_;  // and as far as it is in batches already.
  absl::Time next_look_;
  Poller poller_;
  std::shared_ptr<const View> view_;
  std::optional<PeerId> control_;  // Who brought it.
  struct Link {
    uint64_t incarnation = 0;  // Of the server at its other end.
    std::unique_ptr<DealerSocket> socket;
  };
  std::map<Owner, Link> links_;
  std::string trace_;
  std::thread thread_;
};

}  // namespace slackline
