// LinkTrial: connects to the endpoints that a member of a job that forms is to
// try (wire::TryLinks), and looks who listens there. Sends nothing.
//
// Shard threads that are reached through the memory of this host are not tried.
// Thread-compatible; belongs to the thread of its Poller.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "common/ids.h"
#include "common/net/poller.h"
#include "common/net/shard_endpoint.h"
#include "common/net/transport.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"

namespace slackline {

class LinkTrial {
 public:
  // Both outlive it. The others know it as `self` while it tries.
  LinkTrial(Transport& transport, Poller& poller,
            config::Limits::Transport kind, const PeerId& self)
      : transport_(transport), poller_(poller), kind_(kind), self_(self) {}
  ~LinkTrial() { End(); }
  LinkTrial(const LinkTrial&) = delete;
  LinkTrial& operator=(const LinkTrial&) = delete;

  // In place of what is tried so far.
  void Begin(const wire::TryLinks& links);
  // Call it after each wait of the poller. Returns who is not reached so far,
  // if that is news.
  std::optional<wire::LinksTried> Look();
  // Tries no more.
  void End();

 private:
  // Whether it is a worker; index; shard thread of a server.
  using Key = std::tuple<bool, int32_t, int32_t>;
  void Try(const Key& key, const std::string& endpoint, Role listener);

  Transport& transport_;
  Poller& poller_;
  const config::Limits::Transport kind_;
  const PeerId self_;
  const LocalProcess process_;
  uint64_t round_ = 0;
  bool news_ = false;
  // The connections to those who are not reached so far; null for one whose
  // endpoint cannot be connected to.
  std::map<Key, std::unique_ptr<Channel>> trying_;
};

}  // namespace slackline
