// What a process is to a job, by the key that it holds.
#pragma once

namespace slackline {

enum class Role {
  kServer,  // Also the coordinator, which any server may become.
  kWorker,
  kOperator,  // `slackline` the tool: orders, and takes no part.
  kReader,    // Looks.
};

// "server", "worker", "operator", "reader".
const char* RoleName(Role role);

}  // namespace slackline
