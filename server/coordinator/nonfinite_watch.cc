#include "server/coordinator/nonfinite_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/ids.h"
#include "server/coordinator/job_end.h"

namespace slackline {
namespace {

// More ranks than jobs have: servers that say so are wrong.
constexpr size_t kSaidMax = 4096;

std::string ShardText(const wire::View& proto, int32_t shard) {
  const absl::StatusOr<std::shared_ptr<const View>> view = View::Create(proto);
  if (!view.ok() || shard < 0 || shard >= (*view)->shard_count())
    return absl::StrCat("shard ", shard);
  return (*view)->ShardName(ShardId{shard});
}

}  // namespace

NonfiniteWatch::News NonfiniteWatch::OnReport(const run::ServerStats& stats,
                                              const wire::View& view) {
  News news;
  for (const run::NonfiniteGradients& bad : stats.nonfinite()) {
    if (bad.gradients() == 0 || bad.rank() < 0 || said_.size() >= kSaidMax ||
        !said_.insert(bad.rank()).second) {
      continue;
    }
    const std::string sentence = absl::StrCat(
        "worker ", bad.rank(),
        " has pushed a gradient with a NaN or an infinity for ",
        ShardText(view, bad.last_shard()), " at clock ", bad.last_clock());
    if (policy_ == config::Train::SKIP) {
      news.log.push_back(absl::StrCat(
          sentence, "; it is not applied, and further ones are only counted"));
    } else if (!news.end.has_value()) {
      news.end = JobEndOf(
          wire::JobEnd::DIVERGED,
          absl::StrCat(
              sentence,
              "; it is not in the model; lower the learning rate, look at the "
              "data, or skip such gradients with train { nonfinite: SKIP }"));
      news.end->add_worker(bad.rank());
      news.end->set_clock(std::clamp<Clock>(bad.last_clock(), 0, kClockMax));
    }
  }
  return news;
}

}  // namespace slackline
