// LeasedStateStore: an EtcdStateStore whose lease a thread of its own renews.
// It says when that fails, and when it works again.
//
// etcd ends the lease of a coordinator that is stopped, cut off or dead, and
// lets another one lead. The first one may not know yet: so it tells nobody
// anything unless the lease was renewed less than its length ago.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/time/time_source.h"
#include "server/coordinator/state/etcd_state_store.h"
#include "server/coordinator/state/state_store.h"

namespace slackline {

// Belongs to one thread.
class LeasedStateStore : public StateStore {
 public:
  // AwaitLead() waits for so long for an etcd that does not answer.
  LeasedStateStore(std::unique_ptr<EtcdStateStore> store,
                   absl::Duration wait_max);
  // Ends the lease, if etcd still answers.
  ~LeasedStateStore() override;
  LeasedStateStore(const LeasedStateStore&) = delete;
  LeasedStateStore& operator=(const LeasedStateStore&) = delete;

  absl::Status Commit(const std::vector<StateChange>& changes) override;
  // Returns at once, unless the lease may be over: waits until etcd has said
  // whether it is. Unavailable: etcd has not.
  absl::Status AwaitLead() override;
  std::function<bool()> LeadCheck() const override;

 private:
  void KeepAlive();

  // Fixed.
  const std::unique_ptr<EtcdStateStore> store_;
  const absl::Duration wait_max_;
  const TimeSource time_;
  // Guarded.
  Mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Nobody else leads before, by a clock that goes on in a suspended host.
  absl::Time leads_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // leads_until_ in nanoseconds, for who has a LeadCheck(); 0: nobody knows.
  const std::shared_ptr<std::atomic<int64_t>> leads_until_nanos_ =
      std::make_shared<std::atomic<int64_t>>(0);
  absl::Status renewed_ ABSL_GUARDED_BY(mutex_);  // What the last try gave.

  std::thread thread_;
};

}  // namespace slackline
