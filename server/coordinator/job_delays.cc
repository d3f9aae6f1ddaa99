#include "server/coordinator/job_delays.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/shortened.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "google/protobuf/text_format.h"

namespace slackline {
namespace {

constexpr size_t kGivenBytesShown = 96;
constexpr size_t kStaleBytesShown = 256;

std::string TextOf(const checkpoint::Delays& delays) {
  return absl::StrCat("\"", Shortened(delays.given(), kGivenBytesShown), "\"",
                      delays.sha256().empty()
                          ? ""
                          : absl::StrCat(", recorded with sha256 ",
                                         delays.sha256().substr(0, 16)));
}

// A recording may lie in another folder by now.
bool AreSame(const checkpoint::Delays& a, const checkpoint::Delays& b) {
  return a.sha256() == b.sha256() &&
         (!a.sha256().empty() || a.given() == b.given());
}

std::string StaleText(const checkpoint::Delays& delays) {
  std::vector<std::string> rules;
  for (const std::string& rule : delays.stale())
    rules.push_back(absl::StrCat("stale { ", rule, " }"));
  if (rules.empty()) return "none";
  return Shortened(absl::StrJoin(rules, " "), kStaleBytesShown);
}

}  // namespace

absl::StatusOr<const DelayPlan*> JobDelays::PlanOf(const wire::View& view) {
  const wire::Phase* const given = GivenDelaysPhase(view);
  if (given == nullptr) return nullptr;
  SL_CHECK(options_.source != nullptr, "the delays of the job are not here");
  if (plan_ == nullptr) {
    SL_ASSIGN_OR_RETURN(
        plan_, options_.source->PlanFor(options_.workers, given->from(),
                                        view.steps_total(), options_.seed));
  }
  return plan_.get();
}

void JobDelays::Put(const wire::View& view,
                    checkpoint::Manifest* manifest) const {
  const wire::Phase* const given = GivenDelaysPhase(view);
  if (given == nullptr) return;
  checkpoint::Delays& delays = *manifest->mutable_delays();
  delays.set_given(RuleOf(given->mode()).GivenDelaysOf(given->mode()));
  delays.set_sha256(options_.source->sha256());
  delays.set_first(given->from());
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  for (const config::StaleGradients& rule : options_.stale) {
    std::string& text = *delays.add_stale();
    SL_CHECK(printer.PrintToString(rule, &text), "a rule cannot be printed");
    absl::StripTrailingAsciiWhitespace(&text);
  }
}

std::string JobDelays::WhyNotResumed(const wire::View& view) const {
  const checkpoint::Manifest& there = *options_.resume;
  checkpoint::Manifest here;
  Put(view, &here);
  if (!here.has_delays() && !there.has_delays()) return "";
  if (!here.has_delays()) {
    return absl::StrCat(
        "it is of a job with given delays, ", TextOf(there.delays()),
        ", whose gradients wait there for their turns; go on with the same "
        "delays, or take the model as it is there with slackline export");
  }
  if (!there.has_delays()) {
    return "delays are given for a whole job, from its first to its last step, "
           "and it is of a job without; start the job anew, without the "
           "checkpoint";
  }
  if (!AreSame(here.delays(), there.delays())) {
    return absl::StrCat("it is of a job with the delays ",
                        TextOf(there.delays()), ", and the job has ",
                        TextOf(here.delays()), "; give it the same");
  }
  if (!std::ranges::equal(here.delays().stale(), there.delays().stale())) {
    return absl::StrCat("its rules for stale gradients are ",
                        StaleText(there.delays()), ", and those of the job ",
                        StaleText(here.delays()),
                        "; give sync { stale } as it was");
  }
  const struct {
    const char* what;
    const char* fix;
    int64_t there;
    int64_t here;
  } numbers[] = {
      {"workers", "give it as many", there.workers(), options_.workers},
      {"steps", "set train { epochs max_steps } as they were",
       there.steps_total(), view.steps_total()},
      {"steps in an epoch", "take the same data and batch_size",
       there.steps_per_epoch(), view.steps_per_epoch()},
      {"as train.seed", "set the same", there.seed(),
       static_cast<int64_t>(options_.seed)},
      {"as the clock of its first turns", "begin it as it was begun",
       there.delays().first(), here.delays().first()}};
  for (const auto& [what, fix, was, is] : numbers) {
    if (was == is) continue;
    return absl::StrCat("it has ", was, " ", what, ", and the job has ", is,
                        "; the turns of given delays are those of one such "
                        "job, so ",
                        fix);
  }
  return "";
}

}  // namespace slackline
