// Where the control thread of a server listens for what the server's shard
// threads have counted. They connect to it by the transport that they were made
// with: one for each server.
#pragma once

namespace slackline {

// Each shard thread sends a StatsReply at once, another one for each
// StatsRequest, and some unasked.
inline constexpr char kControlEndpoint[] = "inproc://control";

}  // namespace slackline
