// PeerLinks: a thread's channels to the shard threads of the job's servers. A
// worker's communication thread and each shard thread have one.
//
// A channel is made when the first message for a shard thread comes, so a
// server that owns nothing is never connected to; and it ends with the life of
// the server that it was made for. Decides which endpoint of a shard thread is
// the right one. Where that turns out to be none for this process, as when it
// may not map the memory of the other one, it takes tcp in its place, and says
// so once in the log.
//
// Thread-compatible; belongs to the thread of its Poller.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/net/poller.h"
#include "common/net/shard_endpoint.h"
#include "common/net/transport.h"
#include "common/view/shard_map.h"
#include "proto/cluster.pb.h"

namespace slackline {

class PeerLinks {
 public:
  // Waits go through `poller`, which outlives this, as `transport` does.
  PeerLinks(Transport& transport, Poller& poller,
            config::Limits::Transport kind);
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // The servers are those of `view` from now on; whoever is called from here
  // on knows this thread as `self`. Ends the channels to servers that are gone
  // or live anew.
  void Follow(const PeerId& self, std::shared_ptr<const View> view);

  // Queues a message. Does not block. OK also if the message is dropped: there
  // is no such shard thread, or the queue is full; the caller's protocol
  // repeats it. InvalidArgument: no endpoint of the shard thread can be
  // connected to, or not the kind that the config asks for; the error names the
  // server and the fix. Others as of
  // Channel::Send().
  absl::Status Send(Owner to, const Message& message);

  // Calls take(from, message) for every message that has arrived. `take` may
  // call Send(), not Follow(). The first error of a channel ends it.
  absl::Status Receive(absl::FunctionRef<void(Owner, Message&)> take);

 private:
  struct Link {
    Incarnation server = 0;  // The life of the server at the other end.
    std::unique_ptr<Channel> channel;
  };

  absl::StatusOr<std::unique_ptr<Channel>> Connect(
      const wire::ServerMember& server, int thread);
  // The endpoint of the link is none for this process.
  absl::Status FallBackToTcp(Owner to, Link& link, const absl::Status& why);

  Transport& transport_;
  Poller& poller_;
  const config::Limits::Transport kind_;
  const LocalProcess process_;
  PeerId self_;
  std::shared_ptr<const View> view_;  // Null until the first Follow().
  std::map<Owner, Link> links_;
  bool told_of_tcp_ = false;
};

}  // namespace slackline
