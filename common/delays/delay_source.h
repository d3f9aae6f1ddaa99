// Where the delays of a job come from: a name, or the folder of a recorded run.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/delays/delay_plan.h"
#include "common/delays/delay_trace.h"

namespace slackline {

// Empty, or what is wrong with such a text, whether or not its folder is there.
std::string WhyNoDelays(absl::string_view given);

// Immutable; copies share what was read.
class DelaySource {
 public:
  // Reads a folder. NotFound: it has no recording; InvalidArgument: it is
  // damaged, or the text is neither a name nor a folder.
  static absl::StatusOr<DelaySource> Load(const std::string& given);
  // As if it were recorded.
  static DelaySource OfTrace(DelayTrace trace);

  // As DelayPlan::Create() has it. Of a name the same for the same seed.
  absl::StatusOr<std::shared_ptr<const DelayPlan>> PlanFor(int workers,
                                                           Clock first,
                                                           Clock steps,
                                                           uint64_t seed) const;
  // Of a recording: the SHA-256 of its files; empty for a name.
  const std::string& sha256() const { return sha256_; }

 private:
  SyntheticDelays synthetic_;
  std::shared_ptr<const DelayTrace> recorded_;  // In place of a name.
  std::string sha256_;
};

}  // namespace slackline
