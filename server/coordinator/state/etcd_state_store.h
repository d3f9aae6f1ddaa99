// EtcdStateStore: the state of a coordinator in etcd, which a coordinator on
// any host goes on from. Who has it is the leader; there is one at a time.
//
// Keys, below the prefix:
//   /leader          endpoint and process of the leader, with its lease
//   /head            format, and the numbers of the first and the last batch
//   /log/NUMBER/PART batches as in a file (proto/state_batch.proto), in parts
//                    that are within etcd's bounds for a request
// A commit is a batch: its last part and the new head are one transaction, so
// that all of it counts or nothing. Each transaction asks that the leader's key
// is the one that this leader has made: whoever is not the leader any more
// changes nothing. One batch with everything replaces a log that is much longer
// than what it holds. etcd keeps what was removed until it is compacted, which
// is for its operator to set up (--auto-compaction-retention).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/coordinator/state/etcd_client.h"
#include "server/coordinator/state/state_store.h"

namespace slackline {

// Commit() and the destructor belong to one thread. KeepAlive() may be called
// from another one at the same time.
class EtcdStateStore : public StateStore {
 public:
  struct Options {
    EtcdClient::Options etcd;
    std::string prefix;    // As "/slackline/mnist", of this job alone.
    std::string endpoint;  // Of this coordinator, for people.
    // Another may lead when KeepAlive() was not called for so long. etcd may
    // make it longer. Whole seconds, at least 1.
    absl::Duration lease = absl::Seconds(10);
    // For how long an earlier leader's lease is waited for, which is said.
    absl::Duration wait_max = absl::Seconds(30);
  };
  // Become the leader; FailedPrecondition says who is. Then as those of
  // FileStateStore: Create() begins with an empty state and replaces the one
  // that is there; Open() goes on with it, and NotFound: there is none.
  // DataLoss names the key that is not as an EtcdStateStore writes it.
  static absl::StatusOr<std::unique_ptr<EtcdStateStore>> Create(
      const Options& options);
  static absl::StatusOr<std::unique_ptr<EtcdStateStore>> Open(
      const Options& options);
  // Whether anybody leads.
  static absl::StatusOr<bool> IsLed(const Options& options);
  // The state, of whoever leads. Errors as of Open(); DataLoss also when the
  // leader has written it anew, several times, while it was read.
  static absl::StatusOr<CoordinatorState> Read(const Options& options);
  // Ends the lease, if etcd still answers.
  ~EtcdStateStore() override;
  EtcdStateStore(const EtcdStateStore&) = delete;
  EtcdStateStore& operator=(const EtcdStateStore&) = delete;

  // The state with all commits that have succeeded.
  const CoordinatorState& state() const { return state_; }
  // Nobody else leads for so long after a KeepAlive() began that was ok.
  absl::Duration lease() const { return lease_.ttl; }
  // How often KeepAlive() is to be called: a third of the lease.
  absl::Duration keep_alive_every() const { return lease_.ttl / 3; }

  // etcd may be away for as long as the client's timeout.
  absl::Status Commit(const std::vector<StateChange>& changes) override;

  // Makes the lease as long as it was. FailedPrecondition: it is over; says who
  // leads now, if anybody does. After any other error it may still be tried
  // again. Each of its calls of etcd takes no longer than keep_alive_every().
  absl::Status KeepAlive();

 private:
  EtcdStateStore(const Options& options, std::unique_ptr<EtcdClient> client)
      : options_(options), client_(std::move(client)) {}
  static absl::StatusOr<std::unique_ptr<EtcdStateStore>> Connect(
      const Options& options);
  static absl::StatusOr<std::unique_ptr<EtcdStateStore>> Lead(
      const Options& options);
  // It leads; nobody has, whose lease it has to keep.
  bool leads() const { return lease_.id != 0; }
  absl::Status BecomeLeader();
  absl::StatusOr<bool> TryToLead();
  absl::Status ReadHead(bool replaces);
  absl::Status ReadLog();
  absl::Status Write(const std::string& batch, uint64_t first);
  absl::Status Transact(EtcdClient::Transaction transaction,
                        const std::string& head);
  absl::Status NotLeader(const std::optional<EtcdClient::Entry>& leader) const;
  std::string Key(absl::string_view name) const;
  std::string LogKey(uint64_t batch, uint64_t part) const;

  // Fixed when it leads.
  const Options options_;
  const std::unique_ptr<EtcdClient> client_;       // Commit()'s thread.
  std::unique_ptr<EtcdClient> keep_alive_client_;  // KeepAlive()'s thread.
  EtcdClient::Lease lease_;
  int64_t leader_revision_ = 0;  // The leader's key was made with it.

  int64_t head_revision_ = 0;  // 0: there is no head.
  uint64_t first_ = 1;
  uint64_t last_ = 0;  // Before first_: no batch.
  size_t bytes_ = 0;   // Bytes of these batches.
  size_t rewrite_above_ = 0;
  CoordinatorState state_;
  absl::Status failed_;
};

}  // namespace slackline
