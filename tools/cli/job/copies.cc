#include "tools/cli/job/copies.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/cli/text.h"

namespace slackline {

CopiesState CopiesOf(const wire::StatusReply& status, int replicas) {
  const wire::View& view = status.view();
  CopiesState copies;
  copies.replicas = replicas;
  copies.shards = view.owner_server_size();
  std::vector<int> in_sync(copies.shards);
  for (const wire::Follower& follower : view.follower()) {
    if (!follower.in_sync()) {
      ++copies.copying;
    } else if (follower.shard() >= 0 && follower.shard() < copies.shards) {
      ++in_sync[follower.shard()];
    }
  }
  for (const int count : in_sync) {
    if (count >= replicas) ++copies.complete;
    if (count == 0) ++copies.alone;
  }
  for (const run::ServerStats& server : status.server()) {
    for (const run::FollowerState& follower : server.follower())
      copies.copying_bytes += follower.bytes();
  }
  return copies;
}

std::string CopiesText(const CopiesState& copies) {
  std::string text;
  if (copies.complete == copies.shards) {
    text = absl::StrCat("all of ", copies.shards, " shards have ",
                        copies.replicas, " in sync");
  } else {
    const int fewer = copies.shards - copies.complete;
    text = absl::StrCat(fewer, " of ", copies.shards,
                        fewer == 1 ? " shards has" : " shards have",
                        " fewer in sync than replicas: ", copies.replicas);
  }
  if (copies.alone > 0)
    absl::StrAppend(&text, "; ", copies.alone,
                    copies.alone == 1 ? " has none" : " have none",
                    ", and the job is lost with the server of such a shard");
  if (copies.copying > 0) {
    absl::StrAppend(&text, "; being copied: ", copies.copying, " (",
                    BytesText(static_cast<double>(copies.copying_bytes)),
                    " sent)");
  }
  return text;
}

std::string FollowersText(const wire::View& view, int32_t shard) {
  std::vector<std::string> threads;
  for (const wire::Follower& follower : view.follower()) {
    if (follower.shard() != shard) continue;
    const std::string thread =
        absl::StrCat(follower.server(), ".", follower.thread());
    threads.push_back(follower.in_sync() ? thread
                                         : absl::StrCat("(", thread, ")"));
  }
  return absl::StrJoin(threads, " ");
}

}  // namespace slackline
