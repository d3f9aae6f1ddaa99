// Names for what is local to this host.
#pragma once

#include <string>

namespace slackline {

// Two processes with the same HostId() reach each other over ipc:// and shm://
// endpoints: same boot of the same kernel, same host name and same network
// namespace (abstract Unix sockets are looked up per network namespace). Parts
// that /proc does not tell are replaced by "unknown", which never makes two
// hosts equal as long as their names differ.
std::string HostId();

// An ipc:// endpoint that nobody else uses: an abstract Unix socket with a
// random name. It leaves no file behind.
std::string UniqueIpcEndpoint();
// A shm://@name endpoint (common/net/shm/) that nobody else uses; it leaves no
// file behind, either.
std::string UniqueShmEndpoint();

}  // namespace slackline
