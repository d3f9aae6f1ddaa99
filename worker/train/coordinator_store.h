// The rendezvous store of collectives, kept by the coordinator.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "worker/client/ps_client.h"
#include "worker/collective/rendezvous_store.h"

namespace slackline {

class CoordinatorStore final : public RendezvousStore {
 public:
  explicit CoordinatorStore(PsClient* client)
      : client_(client) {}  // Not owned.
  absl::Status Put(const std::string& key, std::string value) override;
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration wait_max) override;

 private:
  PsClient* const client_;
  std::mutex mutex_;
  // Gets without an answer so far, by key: who asks again waits for the same
  // one.
  std::map<std::string, std::shared_ptr<const PsClient::PendingCall>> pending_;
};

}  // namespace slackline
