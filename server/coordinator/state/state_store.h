// StateStore: where a coordinator keeps what the one after it has to know.
//
// Values by key, as CoordinatorCore makes and reads them (coordinator_state.h);
// a store looks into none of them. What an event has changed is kept before
// anything that the event causes leaves the process. So whoever has an answer
// of the coordinator has one of its successor, too.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace slackline {

// Values by key.
using CoordinatorState = std::map<std::string, std::string>;

struct StateChange {
  std::string key;
  std::optional<std::string> value;  // nullopt: the key goes.
};

// Thread-compatible.
class StateStore {
 public:
  virtual ~StateStore() = default;

  // All of the changes or none; when it returns they outlive this process and
  // its host. After an error nothing is known of them, and no more can be kept:
  // the coordinator has to end. FAILED_PRECONDITION: another coordinator has
  // taken over.
  virtual absl::Status Commit(const std::vector<StateChange>& changes) = 0;

  // Asked before anything that follows from commits leaves the process, also
  // from none: whether this coordinator is still the one that has the state.
  // Errors as those of Commit().
  virtual absl::Status AwaitLead() { return absl::OkStatus(); }

  // Whether it surely is, without waiting: to be asked by any thread, also when
  // the store is gone.
  virtual std::function<bool()> LeadCheck() const {
    return [] { return true; };
  }
};

}  // namespace slackline
