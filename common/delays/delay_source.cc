#include "common/delays/delay_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/sha256.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr size_t kBytesMax = 4096;  // Of a folder's path.

}  // namespace

std::string WhyNoDelays(absl::string_view given) {
  if (given.empty()) {
    return "is missing; constant:S, uniform:S, geometric:S or straggler:S with "
           "S clocks, or the folder of a run with train.trace, is required";
  }
  if (given.size() > kBytesMax) {
    return absl::StrCat("has ", given.size(), " bytes; at most ", kBytesMax,
                        " are allowed");
  }
  if (!IsSyntheticSpec(given)) return "";
  return std::string(ParseSyntheticDelays(given).status().message());
}

absl::StatusOr<DelaySource> DelaySource::Load(const std::string& given) {
  if (const std::string why = WhyNoDelays(given); !why.empty())
    return absl::InvalidArgumentError(why);
  DelaySource source;
  if (IsSyntheticSpec(given)) {
    SL_ASSIGN_OR_RETURN(source.synthetic_, ParseSyntheticDelays(given));
    return source;
  }
  SL_ASSIGN_OR_RETURN(DelayTrace trace, ReadRecordedTrace(given));
  std::string hashes;
  for (int file = 0; file < trace.files; ++file) {
    SL_ASSIGN_OR_RETURN(
        const std::string hash,
        Sha256File(absl::StrCat(given, "/trace-server-", file, ".jsonl")));
    absl::StrAppend(&hashes, hash, " ");
  }
  source.sha256_ = Sha256Hex(hashes);
  source.recorded_ = std::make_shared<const DelayTrace>(std::move(trace));
  return source;
}

DelaySource DelaySource::OfTrace(DelayTrace trace) {
  DelaySource source;
  source.recorded_ = std::make_shared<const DelayTrace>(std::move(trace));
  return source;
}

absl::StatusOr<std::shared_ptr<const DelayPlan>> DelaySource::PlanFor(
    int workers, Clock first, Clock steps, uint64_t seed) const {
  if (recorded_ != nullptr)
    return DelayPlan::Create(*recorded_, workers, first, steps);
  // Before so many are drawn.
  DelayTrace trace;
  trace.workers = workers;
  trace.first = first;
  trace.any_model = true;
  if (steps <= DelayPlan::kGradientsMax / workers)
    trace = MakeTrace(synthetic_, workers, steps, seed, first);
  return DelayPlan::Create(std::move(trace), workers, first, steps);
}

}  // namespace slackline
