// LinkTrial: connects to the endpoints that a member of a job that forms is to
// try (wire::TryLinks), and looks who listens there. Sends nothing. And the
// door of a worker, which others connect to meanwhile.
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

  // A listener at which others try this process, until End(). What they send is
  // dropped.
  void Open(std::unique_ptr<Listener> door);
  // Tries these links, in place of what is tried so far.
  void Begin(const wire::TryLinks& links);
  // Call it after each wait of the poller. Returns who is not reached so far,
  // if that is news.
  std::optional<wire::LinksTried> Look();
  // Tries no more, and closes the door.
  void End();

 private:
  void StopTrying();
  // What has come to it is read: it follows an exchange of keys so, and what
  // strangers send takes no memory.
  void Tend();
  // Whether it is a worker; its index; the shard thread of a server.
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
  std::unique_ptr<Listener> door_;  // Null: it has none, or not any more.
};

}  // namespace slackline
