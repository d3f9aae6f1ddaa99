// `slackline agent`: the processes of a job on one host, for a `slackline run`
// on another one that talks to it over stdin and stdout (proto/agent.proto).
//
// When stdin is closed, or nothing is heard for a minute, the program on the
// other side is gone: all processes are killed, and the agent ends.
#pragma once

#include <string>

namespace slackline {

// `user_key`: the user's key file on this host. Returns the exit code:
// kExitDone if stdin was closed. Leaves no process.
int RunAgent(const std::string& user_key);

}  // namespace slackline
