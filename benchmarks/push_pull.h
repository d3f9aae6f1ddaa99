// What bench_push_pull compares: systems in which workers push bytes to servers
// and pull as many back. Each server and each worker is a process of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace slackline::bench {

struct PushPullSetup {
  enum class Via { kTcp, kIpc, kShm };  // TCP over the loopback interface.
  Via via = Via::kTcp;                  // Raw ZeroMQ has no kShm.
  int workers = 1;
  int servers = 1;
  // What one worker pushes in a step, and what it pulls, over all servers. A
  // multiple of 4 * servers: each server has an equal part, made of floats.
  int64_t bytes = 0;
  int64_t message_bytes = 0;  // Payload of one message, at most.
  // Bytes of pushes (and, separately, of pulls) in flight between a worker and
  // a server. At least message_bytes.
  int64_t window_bytes = 0;
  absl::Duration spin_max;  // As Poller::Options; raw never spins.
  uint64_t seed = 0;
  // Every connection over tcp or ipc is encrypted by CURVE, with keys of this
  // run.
  bool keys = false;
  // Slackline's workers make their gradients in memory of the transport, and
  // not in that of the heap, where frameworks make them.
  bool shared_gradients = false;
};

class PushPullWorker {
 public:
  virtual ~PushPullWorker() = default;
  // One step: pushes everything and pulls everything. Returns when every push
  // has been acknowledged and every byte pulled. With `verify`, both ends also
  // check what they received; such steps are not timed.
  virtual absl::Status Step(bool verify) = 0;
  // Of the bytes pulled by the last step that verified.
  virtual std::string Checksum() const = 0;
};

class PushPullSystem {
 public:
  virtual ~PushPullSystem() = default;
  virtual std::string name() const = 0;
  // Runs in the server's process: tells `ready` the endpoint for workers, then
  // serves until the process is killed. Returns only on failure.
  virtual absl::Status Serve(
      const PushPullSetup& setup, int server,
      const std::function<void(const std::string&)>& ready) = 0;
  // Runs in the worker's process; endpoints by server.
  virtual absl::StatusOr<std::unique_ptr<PushPullWorker>> Connect(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>& endpoints) = 0;
};

// A copy of the bytes each way by the worker itself, without any other process:
// what memory allows.
std::unique_ptr<PushPullSystem> MakeMemoryPushPull();

// Sockets of the kernel and nothing else, over the loopback interface whatever
// setup.via says: no messages, a byte is pulled once it was pushed, one thread
// in each process. The limit for anything over TCP.
std::unique_ptr<PushPullSystem> MakeTcpPushPull();

// ZeroMQ and nothing else: a DEALER per server in each worker, a ROUTER in each
// server, all blocking and without a spin. A message is a fixed header and one
// payload frame; neither end copies or reads payload. The limit for any system
// that sends the same bytes in the same messages over ZeroMQ.
std::unique_ptr<PushPullSystem> MakeRawPushPull();

// Slackline's transport without its protocol: Listener, Channel and
// Poller carrying the messages that Slackline sends (payloads by shard), with
// an answer for each. What a system over this transport loses to raw ZeroMQ
// here, no protocol can win back.
std::unique_ptr<PushPullSystem> MakeTransportPushPull();

// The whole of Slackline in ASP with SGD: coordinator, shard threads,
// WorkerLoop. Unlike in the others, a pull waits until the worker's own push is
// applied, and the servers read every gradient and write every parameter.
std::unique_ptr<PushPullSystem> MakeSlacklinePushPull();

// The same with PushPullSetup::keys; "raw+keys" of "raw".
std::unique_ptr<PushPullSystem> WithKeys(
    std::unique_ptr<PushPullSystem> system);

}  // namespace slackline::bench
