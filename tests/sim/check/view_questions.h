// What a view says of servers, owners and followers.
#pragma once

#include <cstdint>

#include "proto/view.pb.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {

Owner OwnerIn(const wire::View& view, int32_t shard);
Owner ThreadOf(const wire::Follower& follower);
// nullptr: it has none of this index.
const wire::ServerMember* FindServer(const wire::View& view, int32_t index);
// The server of `before` is in `view`, too.
bool Stays(const wire::View& before, const wire::View& view, int32_t server);
bool Follows(const wire::View& view, int32_t shard, Owner owner);
// The shard has a follower in sync on a server that stays.
bool HasHeir(const wire::View& before, const wire::View& view, int32_t shard);

}  // namespace slackline::sim
