#include "common/metrics/staleness.h"

#include <algorithm>

#include "common/metrics/histogram.h"

namespace slackline {

void CountMissed(int64_t missed, int updates_per_clock,
                 run::ServerStats* stats) {
  AddToHistogram(missed, stats->mutable_missed_updates());
  AddToHistogram(missed / updates_per_clock, stats->mutable_missed_clocks());
}

void CountLead(Clock step, Clock complete, run::ServerStats* stats) {
  AddToHistogram(std::max<Clock>(0, step - complete), stats->mutable_lead());
}

void PutStaleness(const run::ServerStats& stats, run::Summary* summary) {
  *summary->mutable_missed_clocks() = PercentilesOf(stats.missed_clocks());
  *summary->mutable_missed_updates() = PercentilesOf(stats.missed_updates());
  *summary->mutable_lead() = PercentilesOf(stats.lead());
  *summary->mutable_missed_clocks_histogram() = stats.missed_clocks().bin();
  *summary->mutable_missed_updates_histogram() = stats.missed_updates().bin();
  *summary->mutable_lead_histogram() = stats.lead().bin();
}

}  // namespace slackline
