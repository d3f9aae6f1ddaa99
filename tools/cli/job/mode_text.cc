#include "tools/cli/job/mode_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sync/modes/mode.h"
#include "common/sync/phases.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

std::string NextText(const wire::View& view) {
  switch (view.change().to_case()) {
    case wire::ModeChange::kEnding:
      return "the job's end";
    case wire::ModeChange::kCutting:
      return "a checkpoint";
    default:
      return ModeText(view.change().mode());
  }
}

std::string PhaseState(const wire::View& view, int phase) {
  return phase < view.entered()    ? "over"
         : phase == view.entered() ? "now"
                                   : "to come";
}

// "the workers have completed 480 to 483 of 1170 steps"
std::string StepsDoneText(const wire::StatusReply& status) {
  if (status.worker().empty()) return "there are no workers";
  const auto [slowest, fastest] = std::minmax_element(
      status.worker().begin(), status.worker().end(),
      [](const run::WorkerStats& a, const run::WorkerStats& b) {
        return a.clock() < b.clock();
      });
  std::string text =
      absl::StrCat("the workers have completed ", slowest->clock());
  if (fastest->clock() > slowest->clock()) {
    absl::StrAppend(&text, " to ", fastest->clock());
  }
  const wire::View& view = status.view();
  return absl::StrCat(
      text, " of ",
      view.end_clock() > 0 ? view.end_clock() : view.steps_total(), " steps");
}

std::string PhasesTable(const wire::View& view) {
  std::vector<std::vector<std::string>> rows;
  for (int i = 0; i < view.phase_size(); ++i) {
    const wire::Phase& phase = view.phase(i);
    rows.push_back({absl::StrCat(phase.from()), ModeText(phase.mode()),
                    PhaseState(view, i)});
  }
  if (view.has_change()) {
    rows.push_back({"?", NextText(view), "the workers settle its clock"});
  }
  return TableText({{.title = "from clock"},
                    {.title = "mode", .left = true},
                    {.title = "state", .left = true}},
                   rows);
}

}  // namespace

std::string ModeName(const wire::View& view) {
  const int entered = view.entered();
  if (entered < 0 || entered >= view.phase_size()) return "";
  return ModeText(view.phase(entered).mode());
}

std::string ModeOutlook(const wire::StatusReply& status) {
  const wire::View& view = status.view();
  std::string text = ModeName(view);
  if (text.empty()) return text;
  if (!status.mode_policy().empty()) absl::StrAppend(&text, " (auto)");
  // A phase from there on never comes.
  const bool next_comes = view.entered() + 1 < view.phase_size() &&
                          view.phase(view.entered() + 1).from() < EndOf(view);
  if (next_comes && !view.change().has_ending()) {
    const wire::Phase& next = view.phase(view.entered() + 1);
    absl::StrAppend(&text, ", ", ModeText(next.mode()), " from clock ",
                    next.from());
  } else if (view.change().has_ending()) {
    absl::StrAppend(&text, ", ending early");
  } else if (view.change().has_mode()) {
    absl::StrAppend(&text, ", changing to ", NextText(view));
  }
  return text;
}

std::string ModeChangeText(const run::ModeRecord& record) {
  std::string text = absl::StrCat("changed from ", ModeText(record.from()),
                                  " to ", ModeText(record.to()), " at clock ",
                                  record.from_clock(), "; ");
  if (record.pause_micros() == 0) {
    return absl::StrCat(text, "no worker stood still");
  }
  absl::StrAppend(&text, "the workers stood still for at most ",
                  MillisecondsText(record.pause_micros()));
  if (record.bytes() > 0) {
    absl::StrAppend(&text, " and moved ",
                    BytesText(static_cast<double>(record.bytes())));
  }
  return text;
}

std::string ModeChangesTable(const wire::StatusReply& status, int max) {
  const int count = std::min(max, status.mode_changed_size());
  if (count <= 0) return "";
  std::vector<std::vector<std::string>> rows;
  for (int i = status.mode_changed_size() - count;
       i < status.mode_changed_size(); ++i) {
    const run::ModeRecord& record = status.mode_changed(i);
    rows.push_back(
        {DurationText(record.seconds()), absl::StrCat(record.from_clock()),
         ModeText(record.from()), ModeText(record.to()),
         MillisecondsText(record.pause_micros()),
         MillisecondsText(record.connect_micros()),
         MillisecondsText(record.transfer_micros()),
         BytesText(static_cast<double>(record.bytes())), record.reason()});
  }
  return TableText({{.title = "at"},
                    {.title = "clock"},
                    {.title = "from", .left = true},
                    {.title = "to", .left = true},
                    {.title = "pause"},
                    {.title = "connecting"},
                    {.title = "moving"},
                    {.title = "moved"},
                    {.title = "reason", .left = true}},
                   rows);
}

nlohmann::ordered_json ModesJson(const wire::StatusReply& status) {
  const wire::View& view = status.view();
  nlohmann::ordered_json phases = nlohmann::ordered_json::array();
  for (int i = 0; i < view.phase_size(); ++i) {
    phases.push_back({{"from_clock", view.phase(i).from()},
                      {"mode", ModeText(view.phase(i).mode())},
                      {"state", PhaseState(view, i)}});
  }
  nlohmann::ordered_json changed = nlohmann::ordered_json::array();
  for (const run::ModeRecord& record : status.mode_changed())
    changed.push_back(ToJson(record));
  nlohmann::ordered_json json = {{"job", view.job()},
                                 {"mode", ModeName(view)},
                                 {"policy", status.mode_policy()},
                                 {"phases", std::move(phases)},
                                 {"changing_to", nullptr},
                                 {"steps_total", view.steps_total()},
                                 {"changed", std::move(changed)}};
  if (view.has_change() && !view.change().has_cutting())
    json["changing_to"] = NextText(view);
  return json;
}

std::string ModesText(const wire::StatusReply& status) {
  const wire::View& view = status.view();
  if (view.phase_size() == 0) {
    return absl::StrCat("job ", view.job(), " has no mode before it runs\n");
  }
  std::string text =
      absl::StrCat("job ", view.job(), ": mode ", ModeOutlook(status), "; ",
                   StepsDoneText(status), "\n");
  if (!status.mode_policy().empty()) {
    absl::StrAppend(&text, "policy: ", status.mode_policy(), "\n");
  }
  absl::StrAppend(&text, "\n", PhasesTable(view));
  const std::string changes =
      ModeChangesTable(status, status.mode_changed_size());
  if (!changes.empty()) {
    absl::StrAppend(&text, "\nlast changes:\n", changes,
                    "pause: the longest time that a worker stood still, "
                    "connecting and moving included\n");
  }
  return text;
}

}  // namespace slackline
