// The rendezvous store of collectives, kept by the coordinator.
#pragma once

#include <map>
#include <string>

#include "common/mutex.h"
#include "worker/collective/rendezvous_store.h"
#include "worker/session/worker_loop.h"

namespace slackline {

class CoordinatorStore final : public RendezvousStore {
 public:
  explicit CoordinatorStore(WorkerLoop* loop) : loop_(loop) {}  // Not owned.
  // The group of the view to which all further calls belong. Keys of a group go
  // with it, and calls for one that is over return FailedPrecondition.
  void SetGroup(uint64_t group);

  absl::Status Put(const std::string& key, std::string value) override;
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration wait_max) override;

 private:
  WorkerLoop* const loop_;
  Mutex mutex_;
  uint64_t group_ ABSL_GUARDED_BY(mutex_) = 0;
  // Gets without an answer so far, by key: who asks again waits for the same
  // one.
  std::map<std::string, uint64_t> pending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slackline
