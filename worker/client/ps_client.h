// PsClient: the communication thread of a worker. Drives a MemberCore towards
// the coordinator and, once the job runs over servers, a ClientCore towards the
// shard threads. The trainer thread talks to it through the blocking calls
// below.
//
// Every wait has a deadline, and ends early with the reason when the job ends
// or the lease runs out. After an error all later calls return that error:
//   Aborted            the lease ran out though we live: make a new PsClient
//   Cancelled          Interrupt() was called
//   DeadlineExceeded   names what was waited for
//   FailedPrecondition the coordinator refused us, or the job FAILED; says why
//   OutOfRange         the job has FINISHED: there is nothing left to do
//   Unavailable        the coordinator is gone
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/membership/member_core.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "proto/cluster.pb.h"
#include "worker/client/client_core.h"
#include "worker/conditions/delay_line.h"
#include "worker/conditions/link_model.h"

namespace slackline {

class PsClient {
 public:
  struct Options {
    MemberCore::Options member;
    std::string coordinator_endpoint;
    size_t window_bytes = 4 << 20;
    size_t message_bytes = 256 << 10;
    // Push() waits while this much is not acknowledged.
    size_t unacknowledged_bytes_max = 256 << 20;
    absl::Duration wait_timeout = absl::Seconds(120);
    int slot_count = 0;  // Of the job's optimizer.
    config::Limits::Transport transport = config::Limits::AUTO;
    // What traffic with the shard threads has to pass.
    std::optional<LinkModel> link;
  };
  using PullResult = ClientCore::PullResult;

  static absl::StatusOr<std::unique_ptr<PsClient>> Start(
      NetContext& context, const Options& options);
  ~PsClient();

  // ---- Trainer thread -------------------------------------------------------

  // Waits until all members are there. The view is RUNNING.
  absl::StatusOr<std::shared_ptr<const View>> WaitUntilRunning();
  // Makes this worker take part at every shard. The clock it starts at, and the
  // parameters to start with.
  struct Joined {
    Clock start = 0;
    PullResult parameters;
  };
  absl::StatusOr<Joined> JoinShards();
  // As ClientCore::Push(). Returns before the gradient is sent.
  absl::Status Push(Clock clock, TableId table, Payload gradient,
                    std::shared_ptr<const std::vector<Version>> base_versions);
  // As ClientCore::SkipTo(). Returns before anything is sent.
  absl::Status SkipTo(Clock clock);
  // As ClientCore::Pull(), and as ClientCore::PullState(). One of them at a
  // time.
  absl::Status StartPull(Clock clock, Clock own_clock);
  absl::Status StartPullState(Clock clock);
  absl::StatusOr<PullResult> WaitPull();
  // The same, but returns without one when there is a view with another number.
  absl::StatusOr<std::optional<PullResult>> WaitPullOrView(uint64_t number);
  // As ClientCore::Install(). Returns before anything is sent.
  absl::Status Install(Clock clock,
                       std::vector<ClientCore::InstalledShard> shards);
  // Waits until every push is acknowledged.
  absl::Status WaitPushed();
  // Waits for the answer of the coordinator. DeadlineExceeded after `wait_max`.
  absl::StatusOr<MemberCore::CallResult> Call(wire::Call call, Payload value,
                                              absl::Duration wait_max);
  // The same in two steps; DeadlineExceeded allows to wait again.
  struct PendingCall {
    std::optional<uint64_t> id;  // Once it was sent. The client's.
  };
  std::shared_ptr<const PendingCall> StartCall(wire::Call call, Payload value);
  absl::StatusOr<MemberCore::CallResult> WaitCall(const PendingCall& call,
                                                  absl::Duration wait_max);
  // A call whose answer does not matter; it is repeated until there is one.
  void Notify(wire::Call call);
  // Returns after that time, or with the error that ends it.
  absl::Status Sleep(absl::Duration time);
  // Waits for a view that `accept`s; also returns the last view of a job that
  // ended well. `what` completes "waited for ... ".
  absl::StatusOr<std::shared_ptr<const View>> WaitForView(
      const std::function<bool(const View&)>& accept, const std::string& what,
      absl::Duration wait_max);

  // ---- Any thread -----------------------------------------------------------

  std::shared_ptr<const View> view() const;
  // Goes with the next heartbeats; bytes and retries are filled in.
  void SetStats(const run::WorkerStats& stats);
  // As MemberCore::AddRecord().
  void AddRecord(const run::MetricRecord& record, absl::Time made_at);
  // Ends all waits with Cancelled and tells the coordinator that we leave.
  void Interrupt(const std::string& reason);
  // Called on the communication thread: `on_failure` once, when an error ends
  // everything, `on_view` with each newer view; at once with what there is.
  // What on_view returns is for the coordinator, as in Notify(). They replace
  // the last ones; nullptr clears them, and then no call is in progress. They
  // must not call this object.
  using ViewHandler = std::function<std::vector<wire::Call>(const View&)>;
  void SetHandlers(std::function<void(const absl::Status&)> on_failure,
                   ViewHandler on_view);
  absl::Status failure() const;

 private:
  PsClient(NetContext& context, const Options& options,
           std::unique_ptr<DealerSocket> coordinator);
  void Run();
  void RunCommands();
  void PerformMember();
  void PerformClient();
  void SendToShardThread(const ClientCore::Send& send);
  // Hands on what has come to the end of the link.
  void PassLink();
  // How long the client's core waits for an answer before it asks again.
  absl::Duration RetryInitial(const View& view) const;
  // Connects to the servers of the view that are new in it, and leaves those
  // that are gone.
  absl::Status FollowServers(const View& view);
  void FillStats();  // Under mutex_.
  void Fail(const absl::Status& status);
  void Post(std::function<void()> command);
  // Waits under mutex_ until `done` or failure. `what` as in WaitForView().
  absl::Status WaitUntil(std::unique_lock<std::mutex>& lock,
                         absl::Duration wait_max, const std::string& what,
                         const std::function<bool()>& done);

  NetContext& context_;
  const Options options_;

  // Of the communication thread.
  MemberCore member_;
  MemberCore::Effects member_effects_;
  std::optional<ClientCore> client_;
  ClientCore::Effects client_effects_;
  std::unique_ptr<DealerSocket> coordinator_;
  struct ShardThreadLink {
    Incarnation server = 0;
    std::unique_ptr<DealerSocket> socket;
  };
  std::map<Owner, ShardThreadLink> shard_threads_;
  struct Received {
    Owner from;
    Message message;
  };
  struct Lines {
    DelayLine<ClientCore::Send> out;
    DelayLine<Received> in;
  };
  std::optional<Lines> lines_;  // If there is a link to pass.
  Poller poller_;
  bool leaving_ = false;
  std::set<uint64_t> unheeded_;  // Calls of Notify() without an answer yet.

  Waker waker_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<std::function<void()>> commands_;
  absl::Status failure_;
  std::function<void(const absl::Status&)> failure_handler_;
  ViewHandler view_handler_;
  std::shared_ptr<const View> view_;
  run::WorkerStats stats_;
  std::vector<std::pair<run::MetricRecord, absl::Time>> records_;
  std::map<uint64_t, MemberCore::CallResult> answers_;
  std::optional<PullResult> pulled_;
  std::optional<Clock> start_clock_;
  size_t unacknowledged_bytes_ = 0;  // Posted pushes included.
  size_t posted_bytes_ = 0;          // Of Push() commands not yet run.
  std::string waiting_for_;
  bool stopping_ = false;
  std::optional<std::string> interrupt_reason_;

  std::thread thread_;
};

}  // namespace slackline
