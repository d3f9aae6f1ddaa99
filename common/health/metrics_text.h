// The page /metrics of a process, for Prometheus.
#pragma once

#include <optional>
#include <string>

#include "common/health/health_board.h"
#include "common/health/process_figures.h"

namespace slackline {

// `facts` say which process it is. Its own figures have no label but those; of
// the job, which the process with the coordinator tells, all names begin with
// "slackline_job_".
std::string MetricsText(const HealthFacts& facts,
                        const HealthBoard::Figures& figures,
                        const std::optional<ProcessFigures>& process);

}  // namespace slackline
