// What somebody may order from the page of a job, as `slackline mode set`,
// `move`, `drain`, `rebalance`, `checkpoint` and `stop` do, and what he may ask
// of its processes, as `slackline status --stacks` does.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "tools/cli/job/job_connection.h"

namespace slackline {

// Thread-compatible.
class JobOrders {
 public:
  // `job` must outlive it.
  explicit JobOrders(JobConnection* job) : job_(job) {}

  // {"order": NAME} and its fields: "mode" {"mode": "ssp:3"}, "move" {"shards":
  // "3-7 mlp.0.weight", "to": "1"}, "drain" {"server": 1}, "rebalance",
  // "checkpoint", "finish", "suspend", "stop". Returns what the coordinator
  // says, once it is ordered; of "stacks" {"of": "worker 2"}, which a reader
  // may ask, too, where that process is. InvalidArgument: no such order, or a
  // field that cannot be; else as CoordinatorClient.
  absl::StatusOr<std::string> Give(const nlohmann::ordered_json& order);

  // Now and then: takes the answer to "checkpoint", which comes when it is
  // there.
  void Look();

 private:
  absl::StatusOr<std::string> Move(const nlohmann::ordered_json& order);
  absl::StatusOr<std::string> Drain(const nlohmann::ordered_json& order);
  absl::StatusOr<std::string> Checkpoint();
  absl::StatusOr<std::string> Stacks(const nlohmann::ordered_json& order);

  JobConnection* const job_;
  bool takes_checkpoint_ = false;
};

}  // namespace slackline
