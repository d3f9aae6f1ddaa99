#include "server/shard/shard_parts.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

const wire::Follower* ShardParts::ListedHere(ShardId shard) const {
  for (const wire::Follower& follower : view->FollowersOf(shard)) {
    if (Owner{follower.server(), follower.thread()} == options.self)
      return &follower;
  }
  return nullptr;
}

void ShardParts::Fail(absl::string_view what, ShardId shard,
                      const absl::Status& why) const {
  failed = true;
  effects.failure = Annotate(
      why, absl::StrCat("cannot ", what, " shard ", view->ShardName(shard)));
}

void ShardParts::Sign(wire::Header* header) const {
  if (view == nullptr) return;
  header->set_view_number(view->number());
  header->set_run(view->proto().run());
}

}  // namespace slackline
