// Whose a key of a job is.
#pragma once

#include <optional>
#include <string>

#include "common/ids.h"
#include "common/keys/role.h"

namespace slackline {

// Anybody's who has the role, or that of one worker.
struct KeyHolder {
  KeyHolder(Role role, std::optional<Rank> rank = std::nullopt)
      : role(role), rank(rank) {}
  bool operator==(const KeyHolder&) const = default;

  Role role;
  std::optional<Rank> rank;  // Of kWorker alone.

  // "a server", "a worker", "worker 3".
  std::string ToString() const;
};

}  // namespace slackline
