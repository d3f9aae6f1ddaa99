// `slackline agent`: the processes of a job on one host, for a `slackline run`
// on another one that talks to it over stdin and stdout (proto/agent.proto).
//
// When stdin is closed, or nothing is heard for a minute, the program on the
// other side is gone: all processes are killed, and the agent ends.
#pragma once

namespace slackline {

// Returns the exit code: kExitDone if stdin was closed. Leaves no process.
int RunAgent();

}  // namespace slackline
