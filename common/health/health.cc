#include "common/health/health.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

const char* NameOf(HealthStage stage) {
  switch (stage) {
    case HealthStage::kStarting:
      return "starting";
    case HealthStage::kJoining:
      return "joining";
    case HealthStage::kTakingPart:
      return "running";
    case HealthStage::kEnding:
      return "ending";
  }
  return "";
}

double Seconds(absl::Duration time) {
  return std::round(absl::ToDoubleSeconds(time) * 10) / 10;
}

std::string SecondsText(absl::Duration time) {
  return absl::StrCat(absl::ToInt64Seconds(time), " s");
}

// Empty: it gets on.
std::string WhatStandsStill(const HealthFacts& facts,
                            const HealthBounds& bounds, absl::Time now) {
  if (facts.stage == HealthStage::kEnding) return "";
  const std::string bound = absl::StrCat(
      ", more than ", SecondsText(bounds.stall), " (limits.stall_timeout_ms)");
  if (facts.looked_at.has_value() && now - *facts.looked_at > bounds.stall) {
    return absl::StrCat(
        "the thread that keeps the process in the job has not looked for "
        "messages for ",
        SecondsText(now - *facts.looked_at), bound);
  }
  if (facts.still_since.has_value() &&
      now - *facts.still_since > bounds.stall) {
    return absl::StrCat(facts.doing.empty() ? "its work" : facts.doing,
                        " has come no further for ",
                        SecondsText(now - *facts.still_since), bound);
  }
  return "";
}

// Empty: it takes part.
std::string WhatIsMissing(const HealthFacts& facts) {
  switch (facts.stage) {
    case HealthStage::kStarting:
      return "it reads its config and its data";
    case HealthStage::kJoining:
      return "the coordinator does not answer yet, or not all others have "
             "joined";
    case HealthStage::kTakingPart:
      return "";
    case HealthStage::kEnding:
      return "the job is over for it";
  }
  return "";
}

HealthReport Report(const HealthFacts& facts, const std::string& why,
                    absl::Time now) {
  nlohmann::ordered_json json = {
      {"ok", why.empty()},
      {"role", facts.role},
      {"index", facts.index},
      {"stage", NameOf(facts.stage)},
      {"stage_seconds", Seconds(now - facts.stage_since)}};
  if (facts.looked_at.has_value())
    json["looked_seconds_ago"] = Seconds(now - *facts.looked_at);
  if (facts.clock.has_value()) json["clock"] = *facts.clock;
  if (!facts.doing.empty()) json["doing"] = facts.doing;
  if (!why.empty()) json["why"] = why;
  // Names from elsewhere need not be UTF-8.
  return {.ok = why.empty(),
          .json = absl::StrCat(
              json.dump(-1, ' ', false,
                        nlohmann::ordered_json::error_handler_t::replace),
              "\n")};
}

}  // namespace

HealthReport Healthz(const HealthFacts& facts, const HealthBounds& bounds,
                     absl::Time now) {
  return Report(facts, WhatStandsStill(facts, bounds, now), now);
}

HealthReport Readyz(const HealthFacts& facts, const HealthBounds& bounds,
                    absl::Time now) {
  const std::string missing = WhatIsMissing(facts);
  return Report(facts,
                missing.empty() ? WhatStandsStill(facts, bounds, now) : missing,
                now);
}

}  // namespace slackline
