#include "tools/cli/job/torch_profile.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

using nlohmann::json;

constexpr uintmax_t kBytesMax = uintmax_t{1} << 30;
constexpr size_t kEventsMax = 4'000'000;
constexpr size_t kNameBytesMax = 512;

struct Event {
  int32_t name = 0;
  double ts_micros = 0;
  double took_micros = 0;
};

// Events of the file as they come, so that its text is all that is kept of it.
class Profile {
 public:
  // An element of traceEvents.
  void Take(const json& event) {
    if (!event.is_object()) return;
    const std::string kind = event.value("ph", json()).is_string()
                                 ? event["ph"].get<std::string>()
                                 : "";
    if (!event.contains("pid") || !event.contains("tid")) return;
    const std::string thread =
        absl::StrCat(event["pid"].dump(), "/", event["tid"].dump());
    if (kind == "M") return TakeName(thread, event);
    if (kind != "X" || !event.contains("name") || !event["name"].is_string() ||
        !event.contains("ts") || !event["ts"].is_number() ||
        !event.contains("dur") || !event["dur"].is_number()) {
      return;
    }
    if (count_++ >= kEventsMax) return;
    const std::string name =
        event["name"].get<std::string>().substr(0, kNameBytesMax);
    const auto index = static_cast<int32_t>(names_.size());
    const auto [found, is_new] = names_.emplace(name, index);
    threads_[thread].push_back({.name = found->second,
                                .ts_micros = event["ts"].get<double>(),
                                .took_micros = event["dur"].get<double>()});
  }

  bool has_too_many() const { return count_ > kEventsMax; }
  bool empty() const { return count_ == 0; }

  void AddTo(ProcessTimeline* timeline, int64_t base_nanos) const {
    const auto first_name = static_cast<int32_t>(timeline->names.size());
    timeline->names.resize(timeline->names.size() + names_.size());
    for (const auto& [name, index] : names_)
      timeline->names[static_cast<size_t>(first_name + index)] = name;
    // A time of day plus this is one of the clock.
    const int64_t offset = timeline->from_nanos - timeline->from_wall_nanos;
    for (const auto& [thread, events] : threads_) {
      const auto known = thread_names_.find(thread);
      ProcessTimeline::Thread& to = timeline->threads.emplace_back();
      to.name = absl::StrCat(
          "torch ", known == thread_names_.end() ? thread : known->second);
      for (const Event& event : events) {
        const double begun =
            event.ts_micros * 1e3 + static_cast<double>(offset + base_nanos);
        const double took = event.took_micros * 1e3;
        // Not "<": NaN is outside, too.
        if (!(begun >= 0 && took >= 0 &&
              begun + took <= static_cast<double>(kTimelineNanosMax) / 2)) {
          continue;
        }
        to.events.push_back({.name = first_name + event.name,
                             .begun_nanos = static_cast<int64_t>(begun),
                             .took_nanos = static_cast<int64_t>(took)});
        timeline->from_nanos =
            std::min(timeline->from_nanos, to.events.back().begun_nanos);
        timeline->until_nanos =
            std::max(timeline->until_nanos, to.events.back().begun_nanos +
                                                to.events.back().took_nanos);
      }
    }
  }

 private:
  void TakeName(const std::string& thread, const json& event) {
    if (event.value("name", json()) != "thread_name") return;
    const json args = event.value("args", json::object());
    if (!args.is_object() || !args.contains("name") ||
        !args["name"].is_string()) {
      return;
    }
    thread_names_[thread] =
        args["name"].get<std::string>().substr(0, kNameBytesMax);
  }

  size_t count_ = 0;
  std::map<std::string, int32_t> names_;
  std::map<std::string, std::vector<Event>> threads_;  // By process and thread.
  std::map<std::string, std::string> thread_names_;
};

}  // namespace

absl::Status AddTorchProfile(const std::string& path,
                             ProcessTimeline* timeline) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the profile cannot be read: ",
                     error ? error.message() : "it cannot be opened"));
  }
  if (bytes > kBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the profile has ", bytes, " bytes; at most ", kBytesMax,
        " are read: profile fewer steps (torch.profiler.schedule)"));
  }
  Profile profile;
  // Of the file, traceEvents and an event of it.
  constexpr int kEventDepth = 2;
  std::string key;
  const auto take = [&](int depth, json::parse_event_t what, json& parsed) {
    if (depth == 1 && what == json::parse_event_t::key)
      key = parsed.get<std::string>();
    if (depth != kEventDepth || what != json::parse_event_t::object_end ||
        key != "traceEvents") {
      return true;
    }
    profile.Take(parsed);
    return false;
  };
  const json rest = json::parse(file, take, /*allow_exceptions=*/false);
  if (rest.is_discarded() || !rest.is_object() || profile.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": it is no profile of PyTorch, or has no events; one is what "
        "torch.profiler.profile(...).export_chrome_trace() writes"));
  }
  if (profile.has_too_many()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the profile has more than ", kEventsMax,
                     " events: profile fewer steps (torch.profiler.schedule)"));
  }
  // Times of newer profiles count from there; those of others from 1970.
  const json base = rest.value("baseTimeNanoseconds", json(0));
  profile.AddTo(timeline, base.is_number_integer() ? base.get<int64_t>() : 0);
  return absl::OkStatus();
}

}  // namespace slackline
