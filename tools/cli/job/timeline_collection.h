// One timeline of a job: asks its members for what they do in a time, and
// writes what comes, part by part, into a file for Perfetto.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/io/atomic_file.h"
#include "proto/control.pb.h"
#include "tools/cli/job/coordinator_client.h"

namespace slackline {

// What the coordinator allows.
inline constexpr absl::Duration kTimelineMin = absl::Milliseconds(100);
inline constexpr absl::Duration kTimelineMax = absl::Seconds(120);

// "timeline-20260102T030405Z.pftrace".
std::string TimelineName(absl::Time wall_now);
// FailedPrecondition: there is something at `path`.
absl::Status CheckTimelinePath(const std::string& path);

// "worker 1", "server 0".
std::string NameOf(const wire::MemberName& name);
// "worker 0, worker 1 and 2 more".
std::string NamesOf(const std::vector<std::string>& names);

// How well the members' clocks are known.
class ClockAlignment {
 public:
  // As wire::Timeline.
  void Add(const std::string& member, int64_t bound_micros);
  // "clocks agree with the coordinator's to within 0.2 ms; worker 3: 1.4 ms";
  // those are named whose bound is more than twice the median. Empty: of no
  // member.
  std::string Text() const;

 private:
  struct Bound {
    std::string member;
    int64_t micros = 0;  // Below 0: not measured.
  };
  std::vector<Bound> bounds_;
};

class TimelineCollection {
 public:
  struct Options {
    absl::Duration time;  // From kTimelineMin to kTimelineMax.
    std::string path;     // Of the file, which is not there.
    // By rank: a file of torch.profiler, which is added to what the worker did.
    std::map<int32_t, std::string> profiles;
  };
  // Asks the members. Errors as of CoordinatorClient::BeginInspection(), or of
  // the file. `client` outlives the collection.
  static absl::StatusOr<std::unique_ptr<TimelineCollection>> Begin(
      CoordinatorClient* client, const Options& options,
      absl::Duration wait_max);

  // Takes in a part, if one is there: true. Errors of the connection, or of the
  // file; what has come before stays.
  absl::StatusOr<bool> ReceivePart(absl::Duration wait_max);
  // Nothing more will come.
  bool over() const { return over_; }
  int32_t parts() const { return written_; }
  int32_t worker_parts() const { return workers_written_; }
  // "worker 1, worker 2", of those that were asked and have sent nothing;
  // empty: there are none.
  std::string Missing() const { return NamesOf(missing_); }
  // "records for 7 s more", or whom it waits for.
  std::string Line(absl::Time now) const;

  // The file gets its name. FailedPrecondition: nothing has come; then there is
  // no file. Returns, for people and over several lines, what is in it, how
  // well its clocks agree, and what it lacks.
  absl::StatusOr<std::string> Finish();

 private:
  TimelineCollection(CoordinatorClient* client, const Options& options,
                     std::unique_ptr<AtomicFile> file)
      : client_(*client), options_(options), file_(std::move(file)) {}
  // Of one member, to the file; a part that makes no sense is left out, and
  // noted.
  absl::Status Write(const wire::Inspected& part, const Payload& frame);
  void Note(const wire::InspectionState& state);

  CoordinatorClient& client_;
  const Options options_;
  const std::unique_ptr<AtomicFile> file_;
  uint64_t number_ = 0;
  absl::Time begun_at_;
  int32_t received_ = 0;
  int32_t written_ = 0;
  int32_t workers_written_ = 0;
  int64_t events_ = 0;
  bool over_ = false;
  std::vector<std::string> missing_;
  std::vector<std::string> gone_;   // Sentences of the coordinator.
  std::vector<std::string> notes_;  // Sentences of ours.
  std::map<int32_t, bool> profiled_;
  ClockAlignment clocks_;
};

}  // namespace slackline
