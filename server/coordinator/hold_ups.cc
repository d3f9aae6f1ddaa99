#include "server/coordinator/hold_ups.h"

#include <iterator>
#include <utility>

namespace slackline {
namespace {

constexpr int kLooksPerHeartbeat = 4;

}  // namespace

HoldUps::HoldUps(const StallWatch::Options& options, const ViewEditor* editor)
    : editor_(editor),
      look_every_(options.lease /
                  (kLooksPerHeartbeat * Membership::kHeartbeatsPerLease)),
      stalls_(options),
      stragglers_(StragglerWatch::Options()) {}

void HoldUps::OnWorkerStats(const Member& worker, const run::WorkerStats& stats,
                            absl::Time now) {
  stalls_.OnReport(worker.incarnation, stats.progress(), worker.trained, now);
  if (worker.trained) {
    stragglers_.OnTrained(worker.incarnation);
  } else {
    stragglers_.OnReport(worker.incarnation, stats);
  }
}

void HoldUps::OnServerStats(const Member& server) {
  stragglers_.OnServerReport(server.incarnation, server.server);
}

std::optional<HoldUps::Findings> HoldUps::Look(absl::Time now,
                                               CoordinatorEffects* effects) {
  if (!editor_->running()) {
    stragglers_.Clear();
    held_up_.clear();
    return std::nullopt;
  }
  if (now < next_look_) return std::nullopt;
  Findings found;
  StragglerWatch::News slow = stragglers_.Look(editor_->view());
  found.stragglers = slow.begun;
  for (std::vector<std::string>* const sentences : {&slow.begun, &slow.ended})
    std::move(sentences->begin(), sentences->end(),
              std::back_inserter(effects->log));
  next_look_ = now + look_every_;
  found.stalls = stalls_.Look(editor_->view(), now);
  held_up_ = found.stalls.held_up;
  std::move(found.stalls.news.begin(), found.stalls.news.end(),
            std::back_inserter(effects->log));
  return found;
}

void HoldUps::PutStatus(const StatusQuestion&,
                        wire::StatusReply* status) const {
  for (const std::string& sentence : held_up_) status->add_held_up(sentence);
  stragglers_.PutStatus(status);
}

}  // namespace slackline
