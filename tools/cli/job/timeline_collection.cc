#include "tools/cli/job/timeline_collection.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/job/perfetto_packets.h"
#include "tools/cli/job/torch_profile.h"

namespace slackline {
namespace {

// About 140 years.
constexpr int64_t kOffsetMicrosMax = int64_t{1} << 52;

std::string TextOfMicros(int64_t micros) {
  return absl::StrFormat(
      "%.1f ms", std::max<double>(static_cast<double>(micros), 100) / 1000);
}

}  // namespace

std::string TimelineName(absl::Time wall_now) {
  return absl::StrCat(
      "timeline-",
      absl::FormatTime("%Y%m%dT%H%M%SZ", wall_now, absl::UTCTimeZone()),
      ".pftrace");
}

absl::Status CheckTimelinePath(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is there already; choose another name with --out, or remove it"));
}

std::string NameOf(const wire::MemberName& name) {
  return absl::StrCat(name.worker() ? "worker " : "server ", name.index());
}

std::string NamesOf(const std::vector<std::string>& names) {
  constexpr size_t kNamedMax = 5;
  if (names.size() <= kNamedMax) return absl::StrJoin(names, ", ");
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + kNamedMax);
  return absl::StrCat(absl::StrJoin(first, ", "), " and ",
                      names.size() - kNamedMax, " more");
}

// ---- Clocks -----------------------------------------------------------------

void ClockAlignment::Add(const std::string& member, int64_t bound_micros) {
  bounds_.push_back({.member = member, .micros = bound_micros});
}

std::string ClockAlignment::Text() const {
  std::vector<int64_t> measured;
  std::vector<std::string> unmeasured;
  for (const Bound& bound : bounds_) {
    if (bound.micros >= 0) {
      measured.push_back(bound.micros);
    } else {
      unmeasured.push_back(bound.member);
    }
  }
  std::sort(measured.begin(), measured.end());
  std::string text;
  if (!measured.empty()) {
    const int64_t usual_max = 2 * measured[measured.size() / 2];
    int64_t usual = 0;
    for (const int64_t micros : measured)
      if (micros <= usual_max) usual = std::max(usual, micros);
    text = absl::StrCat("clocks agree with the coordinator's to within ",
                        TextOfMicros(usual));
    for (const Bound& bound : bounds_) {
      if (bound.micros > usual_max) {
        absl::StrAppend(&text, "; ", bound.member, ": ",
                        TextOfMicros(bound.micros));
      }
    }
  }
  if (!unmeasured.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", "not measured of ",
                    NamesOf(unmeasured),
                    ", whose times are of the clocks of their hosts");
  }
  return text;
}

// ---- The collection ---------------------------------------------------------

absl::StatusOr<std::unique_ptr<TimelineCollection>> TimelineCollection::Begin(
    CoordinatorClient* client, const Options& options,
    absl::Duration wait_max) {
  SL_RETURN_IF_ERROR(CheckTimelinePath(options.path));
  SL_ASSIGN_OR_RETURN(std::unique_ptr<AtomicFile> file,
                      AtomicFile::Create(options.path));
  wire::Inspect inspect;
  inspect.mutable_timeline()->set_ms(
      static_cast<int32_t>(absl::ToInt64Milliseconds(options.time)));
  SL_ASSIGN_OR_RETURN(const wire::InspectionState state,
                      client->BeginInspection(inspect, wait_max));
  std::unique_ptr<TimelineCollection> collection(
      new TimelineCollection(client, options, std::move(file)));
  collection->number_ = state.number();
  collection->begun_at_ = TimeSource().Now();
  collection->Note(state);
  return collection;
}

void TimelineCollection::Note(const wire::InspectionState& state) {
  missing_.clear();
  for (const wire::MemberName& name : state.missing())
    missing_.push_back(NameOf(name));
  gone_.assign(state.gone().begin(), state.gone().end());
  over_ = !state.has_part() && missing_.empty();
}

absl::StatusOr<bool> TimelineCollection::ReceivePart(absl::Duration wait_max) {
  SL_ASSIGN_OR_RETURN(const CoordinatorClient::InspectionNews news,
                      client_.NextOfInspection(number_, received_, wait_max));
  Note(news.state);
  if (!news.state.has_part()) return false;
  ++received_;
  SL_RETURN_IF_ERROR(Write(news.state.part(), news.frame));
  return true;
}

absl::Status TimelineCollection::Write(const wire::Inspected& part,
                                       const Payload& frame) {
  const std::string name = NameOf(part.of());
  const auto leave_out = [&](const std::string& why) {
    notes_.push_back(absl::StrCat(name, " is not in it: ", why));
    return absl::OkStatus();
  };
  if (!part.has_timeline()) {
    return leave_out(part.error().empty() ? "it has sent no timeline"
                                          : part.error());
  }
  const wire::Timeline& of = part.timeline();
  if (std::abs(of.offset_micros()) > kOffsetMicrosMax)
    return leave_out("its clock is too far off to be one");
  absl::StatusOr<ProcessTimeline> timeline = ReadTimelinePart(absl::string_view(
      reinterpret_cast<const char*>(frame.data()), frame.size()));
  if (!timeline.ok())
    return leave_out(std::string(timeline.status().message()));
  std::vector<std::string> lossy;
  int64_t events = 0;
  for (const ProcessTimeline::Thread& thread : timeline->threads) {
    events += static_cast<int64_t>(thread.events.size());
    if (thread.lost > 0)
      lossy.push_back(absl::StrCat(thread.lost, " of ", thread.name));
  }
  if (const auto profile = options_.profiles.find(part.of().index());
      part.of().worker() && profile != options_.profiles.end()) {
    profiled_[profile->first] = true;
    const absl::Status added = AddTorchProfile(profile->second, &*timeline);
    if (!added.ok()) {
      notes_.push_back(absl::StrCat(name, ": ", added.message(),
                                    "; the rest of it is there"));
    }
  }
  absl::StatusOr<std::string> packets =
      PerfettoPackets({.number = received_ - 1,
                       .name = absl::StrCat(name, " (process ", part.pid(),
                                            " on ", part.host(), ")"),
                       .offset_nanos = of.offset_micros() * 1000,
                       .timeline = *std::move(timeline)});
  if (!packets.ok()) return leave_out(std::string(packets.status().message()));
  SL_RETURN_IF_ERROR(file_->Append(*packets));
  ++written_;
  if (part.of().worker()) ++workers_written_;
  events_ += events;
  clocks_.Add(name, of.offset_bound_micros());
  if (!lossy.empty()) {
    notes_.push_back(absl::StrCat(name, " had no room for its oldest events: ",
                                  absl::StrJoin(lossy, ", "),
                                  "; record for a shorter time"));
  }
  return absl::OkStatus();
}

std::string TimelineCollection::Line(absl::Time now) const {
  const absl::Duration left = options_.time - (now - begun_at_);
  if (left > absl::ZeroDuration()) {
    return absl::StrFormat("records for %.1f s more",
                           absl::ToDoubleSeconds(left));
  }
  return missing_.empty() ? "takes in what was recorded"
                          : absl::StrCat("waits for what was recorded by ",
                                         NamesOf(missing_));
}

absl::StatusOr<std::string> TimelineCollection::Finish() {
  for (const std::string& sentence : gone_) notes_.push_back(sentence);
  if (!missing_.empty()) {
    notes_.push_back(
        absl::StrCat("nothing has come of ", NamesOf(missing_), " in time"));
  }
  for (const auto& [rank, path] : options_.profiles) {
    if (!profiled_[rank]) {
      notes_.push_back(absl::StrCat(path,
                                    " is not in it: nothing has come of "
                                    "worker ",
                                    rank));
    }
  }
  if (written_ == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no timeline has come, so there is no file: ",
                     absl::StrJoin(notes_, "; ")));
  }
  SL_RETURN_IF_ERROR(file_->Commit());
  std::string text = absl::StrCat(
      options_.path, ": ", events_, " events of ", written_,
      written_ == 1 ? " process" : " processes", "; ", clocks_.Text());
  for (const std::string& note : notes_) absl::StrAppend(&text, "\n", note);
  absl::StrAppend(&text,
                  "\nOpen it at https://ui.perfetto.dev (Open trace file); it "
                  "stays on your machine.");
  return text;
}

}  // namespace slackline
