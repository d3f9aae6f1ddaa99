// The rendezvous store of collectives, kept by the coordinator.
#pragma once

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
};

}  // namespace slackline
