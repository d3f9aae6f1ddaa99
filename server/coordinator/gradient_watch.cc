#include "server/coordinator/gradient_watch.h"

#include <algorithm>
#include <utility>

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

// The rank has such gradients, and nothing has been said of them yet.
template <typename Bad>
bool IsNews(const Bad& bad, std::set<int32_t>* said) {
  return bad.gradients() > 0 && bad.rank() >= 0 && said->size() < kSaidMax &&
         said->insert(bad.rank()).second;
}

// "worker 3 has pushed a gradient WHAT for net.weight[0, 100) at clock 7".
template <typename Bad>
std::string SentenceOf(const Bad& bad, const std::string& what,
                       const wire::View& view) {
  return absl::StrCat("worker ", bad.rank(), " has pushed a gradient ", what,
                      " for ", ShardText(view, bad.last_shard()), " at clock ",
                      bad.last_clock());
}

// Goes on, or ends the job with the sentence and the fix unless it ends
// already.
template <typename Bad>
void Decide(const Bad& bad, bool skip, const std::string& sentence,
            const std::string& fix, GradientWatch::News* news) {
  if (skip) {
    news->log.push_back(absl::StrCat(
        sentence, "; it is not applied, and further ones are only counted"));
  } else if (!news->end.has_value()) {
    news->end =
        JobEndOf(wire::JobEnd::DIVERGED,
                 absl::StrCat(sentence, "; it is not in the model; ", fix));
    news->end->add_worker(bad.rank());
    news->end->set_clock(std::clamp<Clock>(bad.last_clock(), 0, kClockMax));
  }
}

}  // namespace

GradientWatch::News GradientWatch::OnReport(const run::ServerStats& stats,
                                            const wire::View& view) {
  News news;
  for (const run::NonfiniteGradients& bad : stats.nonfinite())
    Look(bad, view, &news);
  for (const run::OversizedGradients& bad : stats.oversized())
    Look(bad, view, &news);
  return news;
}

void GradientWatch::Look(const run::NonfiniteGradients& bad,
                         const wire::View& view, News* news) {
  if (!IsNews(bad, &said_nonfinite_)) return;
  Decide(bad, train_.nonfinite() == config::Train::SKIP,
         SentenceOf(bad, "with a NaN or an infinity", view),
         "lower the learning rate, look at the data, or skip such gradients "
         "with train { nonfinite: SKIP }",
         news);
}

void GradientWatch::Look(const run::OversizedGradients& bad,
                         const wire::View& view, News* news) {
  // Servers of a job without a bound have nothing to say.
  if (!train_.has_gradient_bound() || !IsNews(bad, &said_oversized_)) return;
  const std::string bound =
      bad.has_last_running_rms()
          ? absl::StrCat("train.gradient_bound.times_running_rms (",
                         train_.gradient_bound().times_running_rms(),
                         ") times ", bad.last_running_rms(),
                         ", that of the shard's gradients before it")
          : absl::StrCat("train.gradient_bound.rms (", bad.last_bound(), ")");
  Decide(bad, train_.gradient_bound().policy() == config::GradientBound::SKIP,
         SentenceOf(bad,
                    absl::StrCat("whose root mean square is ", bad.last_rms(),
                                 ", above ", bound, ","),
                    view),
         "see what is wrong with that worker or its data, raise the bound, or "
         "skip such gradients with train { gradient_bound { policy: SKIP } }",
         news);
}

}  // namespace slackline
