#include "tests/sim/check/view_questions.h"

#include <algorithm>

namespace slackline::sim {

Owner OwnerIn(const wire::View& view, int32_t shard) {
  return {view.owner_server(shard), view.owner_thread(shard)};
}

Owner ThreadOf(const wire::Follower& follower) {
  return {follower.server(), follower.thread()};
}

const wire::ServerMember* FindServer(const wire::View& view, int32_t index) {
  for (const wire::ServerMember& server : view.server()) {
    if (server.index() == index) return &server;
  }
  return nullptr;
}

bool Stays(const wire::View& before, const wire::View& view, int32_t server) {
  const wire::ServerMember* const was = FindServer(before, server);
  const wire::ServerMember* const is = FindServer(view, server);
  return was != nullptr && is != nullptr &&
         was->incarnation() == is->incarnation();
}

bool Follows(const wire::View& view, int32_t shard, Owner owner) {
  return std::any_of(view.follower().begin(), view.follower().end(),
                     [&](const wire::Follower& follower) {
                       return follower.shard() == shard &&
                              ThreadOf(follower) == owner;
                     });
}

bool HasHeir(const wire::View& before, const wire::View& view, int32_t shard) {
  return std::any_of(before.follower().begin(), before.follower().end(),
                     [&](const wire::Follower& follower) {
                       return follower.shard() == shard && follower.in_sync() &&
                              Stays(before, view, follower.server());
                     });
}

}  // namespace slackline::sim
