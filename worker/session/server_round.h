// ServerRound: steps over servers. Gradients leave as they come, compressed as
// the config says; what becomes of them is the servers' business, so the step
// ends with the last one.
#pragma once

#include <functional>
#include <utility>

#include "common/compress/gradient_compressor.h"
#include "worker/session/run_report.h"
#include "worker/session/step_round.h"
#include "worker/session/worker_loop.h"

namespace slackline {

class ServerRound : public StepRound {
 public:
  // What it works with outlives it. `counts` is told of each step that counts.
  ServerRound(GradientCompressor* compressor, WorkerLoop* loop,
              RunReport* report, std::function<void(const End&)> counts)
      : compressor_(*compressor),
        loop_(*loop),
        report_(*report),
        counts_(std::move(counts)) {}

  StepKind kind() const override { return StepKind::kOverServers; }
  absl::Status Add(Clock clock, TableId table, const Payload& gradient,
                   const StepOptions& options) override;
  absl::Status Skip(TableId table) override { return loop_.SkipTable(table); }
  absl::Status Finish(const End& step) override;

 private:
  GradientCompressor& compressor_;
  WorkerLoop& loop_;
  RunReport& report_;
  const std::function<void(const End&)> counts_;
};

}  // namespace slackline
